"""What a run is made of, as data. A profile is a YAML file; nothing about it is code.

Types are strict (`1e-3` in YAML is a string and refused, `1.0e-3` is a number) and an unknown key is an
error, so a misspelt setting ends before any work starts.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pangu_hif8.errors import UserError
from pangu_hif8.paths import PROFILES_DIR

AmaxAlgo = Literal["most_recent", "exponential_smoothing", "max_window", "current"]
Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """No coercion, no unknown keys, no mutation."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OptimizerConfig(Strict):
    """AdamW with a cosine to zero after a linear learning-rate warm-up (the published settings)."""

    adam_beta1: PositiveFloat = 0.9
    adam_beta2: PositiveFloat = 0.95
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    max_grad_norm: PositiveFloat = 1.0
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 0


class PretrainConfig(Strict):
    """Training from scratch in the prepare step (smoke): it makes the checkpoint that the runs start from."""

    steps: Positive
    batch_size: Positive
    lr: PositiveFloat
    seed: int = 0
    optimizer: OptimizerConfig = OptimizerConfig()


class ModelConfig(Strict):
    """The model that every run starts from, and which of its blocks stay in high precision."""

    source: Literal["scratch", "gguf"]
    wheel: str | None = None
    file: str | None = None
    architecture: dict[str, int | float | bool] | None = None
    vocab_size: Positive | None = None
    pretrain: PretrainConfig | None = None
    num_first_hp_blocks: Annotated[int, Field(ge=0)] = 3
    num_last_hp_blocks: Annotated[int, Field(ge=0)] = 2

    @model_validator(mode="after")
    def _complete(self) -> ModelConfig:
        if self.source == "gguf" and not (self.wheel and self.file):
            raise ValueError("source gguf needs wheel and file")
        if self.source == "scratch" and not (self.architecture and self.pretrain and self.vocab_size):
            raise ValueError("source scratch needs architecture, vocab_size and pretrain")
        return self


class DataConfig(Strict):
    """The training text and the two held-out texts, in sequences of `sequence_length` tokens."""

    source: Literal["world", "wiki"]
    sequence_length: Positive
    num_train_sequences: Positive
    num_heldout_sequences: Positive
    num_second_domain_sequences: Positive
    num_people: Positive | None = None
    seed: int = 0


class TrainConfig(Strict):
    """Sizes of one training run. A step is one optimizer update over `batch_size` sequences."""

    steps: Positive
    batch_size: Positive
    micro_batch_size: Positive
    lr_scale: PositiveFloat = 1.0
    amax_history_len: Positive = 64
    bf16_warmup_steps: Annotated[int, Field(ge=0)] = 500
    num_threads: Positive = 1
    optimizer: OptimizerConfig = OptimizerConfig()

    @model_validator(mode="after")
    def _divides(self) -> TrainConfig:
        if self.batch_size % self.micro_batch_size:
            raise ValueError("batch_size must be a multiple of micro_batch_size")
        return self


class TaskConfig(Strict):
    """One benchmark: a fixed sample of `num_items` items, scored by lm-eval with its metric."""

    name: str
    num_items: Positive
    metric: Literal["acc", "acc_norm"]
    num_fewshot: Annotated[int, Field(ge=0)] = 0


class EvalConfig(Strict):
    """Evaluation settings; the same for every run of a profile."""

    tasks: list[TaskConfig]
    batch_size: Positive
    item_seed: int = 0


class QuantConfig(Strict):
    """HiF8 W8A8 fake quantization with a per-tensor scale."""

    amax_compute_algo: AmaxAlgo
    amax_history_len: Positive = 64
    smoothing_decay: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.9
    hif8_max: Annotated[float, Field(gt=0, le=32768)] = 15.0
    overflow: Literal["saturate", "taper"] = "saturate"
    bf16_warmup_steps: Annotated[int, Field(ge=0)] = 0

    def effective(self) -> dict[str, str | float | int]:
        """Only the settings that this estimator reads."""
        unused = {
            "max_window": {"smoothing_decay"},
            "exponential_smoothing": {"amax_history_len"},
        }.get(self.amax_compute_algo, {"smoothing_decay", "amax_history_len"})
        return self.model_dump(exclude=unused)


class Profile(Strict):
    """A scale at which the eight experiments run."""

    name: str
    title: str
    description: str
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    evaluation: EvalConfig


T = TypeVar("T", bound=Strict)


def profile_names() -> list[str]:
    """Names of the profiles that the package ships."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """Load a profile by name. Raises UserError with the valid names, or with the faulty key."""
    if not isinstance(name, str) or name not in profile_names():
        raise UserError(f"unknown profile {name!r}; valid: {', '.join(profile_names())}")
    with (PROFILES_DIR / f"{name}.yaml").open(encoding="utf-8") as handle:
        return validated(Profile, yaml.safe_load(handle), f"profile {name}")


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
