"""What may be changed about an experiment, by name and strict type, and which of its parts each changes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from pangu_hif8.quant_config import ENGINE_SETTINGS, AmaxAlgo
from pangu_hif8.strict import Positive, PositiveFloat, Strict


class Overrides(Strict):
    """What a notebook's parameters cell may change. None means: as the paper and the profile say.

    `weights` and `gradients` take settings of `TensorConfig`, the others as for inputs; `gradients={}` (or
    true in a notebook's cell) quantizes gradients as the published code does.
    """

    lr: PositiveFloat | None = None
    steps: Positive | None = None
    amax_compute_algo: AmaxAlgo | None = None
    amax_history_len: Positive | None = None
    smoothing_decay: float | None = Field(default=None, ge=0, lt=1)
    bf16_warmup_steps: int | None = Field(default=None, ge=0)
    hif8_max: float | None = Field(default=None, gt=0, le=32768)
    overflow: Literal["saturate", "taper"] | None = None
    margin: float | None = Field(default=None, ge=-16, le=16)
    weights: dict[str, Any] | None = None
    gradients: dict[str, Any] | bool | None = None
    amax_update_interval: Positive | None = None
    adaptive_warmup_spread: PositiveFloat | None = None
    history_unit: Literal["step", "micro_batch"] | None = None
    warmup_history: Literal["kept", "emptied"] | None = None
    reduce_amax: bool | None = None
    margin_layers: Literal["all", "gate_up", "down"] | None = None
    micro_batch_size: Positive | None = None
    label_shift: Literal[1, 2] | None = None
    weight_dtype: Literal["float32", "bfloat16"] | None = None
    compile: bool | None = None
    activation_checkpointing: bool | None = None
    checkpoint_every: int | None = Field(default=None, ge=0)
    telemetry_every: int | None = Field(default=None, ge=0)
    record_moved_share: bool | None = None
    lr_decay_per_block: float | None = Field(default=None, gt=0, le=1)
    num_first_hp_blocks: int | None = Field(default=None, ge=0)
    num_last_hp_blocks: int | None = Field(default=None, ge=0)
    hp_blocks: list[int] | None = None

    def given(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of `names` that were set."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


TENSOR_SETTINGS = (
    "amax_compute_algo",
    "amax_history_len",
    "smoothing_decay",
    "hif8_max",
    "overflow",
    "margin",
)
TRAIN_SETTINGS = (
    "steps",
    "amax_history_len",
    "bf16_warmup_steps",
    "micro_batch_size",
    "label_shift",
    "weight_dtype",
    "compile",
    "activation_checkpointing",
    "checkpoint_every",
    "telemetry_every",
    "record_moved_share",
)
BLOCKS_SETTINGS = ("num_first_hp_blocks", "num_last_hp_blocks", "hp_blocks")
QUANTIZER_SETTINGS = {
    *TENSOR_SETTINGS,
    *ENGINE_SETTINGS,
    *BLOCKS_SETTINGS,
    "bf16_warmup_steps",
    "weights",
    "gradients",
    "telemetry_every",
}
