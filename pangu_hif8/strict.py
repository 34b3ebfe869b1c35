"""What every settings class is built on: strict types, no unknown key, and one line for every fault."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pangu_hif8.errors import UserError

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """No coercion, no unknown keys, no mutation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


T = TypeVar("T", bound=Strict)


def validated(kind: type[T], values: object, where: str) -> T:
    """Build `kind` from plain values; one line per fault in the UserError."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))
            for fault in error.errors()
        )
        raise UserError(f"{where}: {faults}") from error
