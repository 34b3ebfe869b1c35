"""torch.compile of the whole model, and one clear error where it finds no compiler that works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.exc import InductorError

from pangu_hif8.errors import UserError


def compile_model(model: nn.Module) -> nn.Module:
    """The model, compiled when it is first called. Parameters stay those of `model`.

    Left alone, the compiler keeps a bfloat16 value that it has just computed in float32, unrounded: the amax
    recorded, and what is quantized, would be those of another tensor than without compilation.
    """
    return cast(nn.Module, torch.compile(model, options={"emulate_precision_casts": True}))


@contextmanager
def compiler_errors() -> Iterator[None]:
    """What torch.compile raises in here comes out as a UserError that says why, and what to do."""
    try:
        yield
    except (BackendCompilerFailed, InductorError) as error:
        raise UserError(
            f"torch.compile does not work here: {_reason(error)}. Install a C++ compiler such as g++ "
            "(on a GPU: Triton and a C compiler), or set compile to false."
        ) from error


def _reason(error: BaseException) -> str:
    """The first line of what went wrong first."""
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
