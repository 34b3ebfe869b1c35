"""Which mode a step runs in, and which combinations of settings are offered.

With a fixed warm-up, steps 1 to `bf16_warmup_steps` calibrate and the rest quantize. An adaptive one ends as
soon as the amax history has settled (the median over tensors of its relative spread falls under a
threshold), and at `bf16_warmup_steps` at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pangu_hif8.config import TrainConfig
from pangu_hif8.errors import UserError
from pangu_hif8.ranks import Ranks
from pangu_hif8.scaling import Mode, ScalingState, StepScaling


def begin_step(scaling: ScalingState, step: int, settings: TrainConfig) -> None:
    """Set the mode of a step counted from 1, and whether it is sampled."""
    mode = _mode(scaling, step)
    switches = mode == "quantize" and scaling.phase == "calibrate"
    if switches and scaling.config.warmup_history == "emptied":
        scaling.empty_history()
    if mode != scaling.mode:
        scaling.set_mode(mode)
    every = settings.telemetry_every
    scaling.sampling = mode == "quantize" and every > 0 and step % every == 0


def _mode(scaling: ScalingState, step: int) -> Mode:
    spread = scaling.config.adaptive_warmup_spread
    if step > scaling.config.bf16_warmup_steps:
        return "quantize"
    if spread is not None and (scaling.phase == "quantize" or float(scaling.spread().median()) < spread):
        return "quantize"
    return "calibrate"


def joined(parts: Sequence[StepScaling]) -> StepScaling:
    """The record of a step whose history counts micro-batches: largest amax, the worst estimate for it."""
    if len(parts) == 1:
        return parts[0]
    amax, estimate, saturated = (
        torch.stack([getattr(part, name) for part in parts]) for name in ("amax", "estimate", "saturated")
    )
    worst = (amax / estimate).nan_to_num(0.0).argmax(0)
    return StepScaling(
        amax.gather(0, worst[None])[0],
        estimate.gather(0, worst[None])[0],
        saturated.any(0),
        parts[-1].quantized,
        parts[-1].stats,
    )


def check_combination(settings: TrainConfig, scaling: ScalingState | None, ranks: Ranks) -> None:
    """Raises UserError that names a combination which is not offered."""
    config = scaling.config if scaling else None
    refused = {
        "compile with FSDP (use DDP)": settings.compile and ranks.is_sharded,
        "compile with quantized gradients": settings.compile and config and config.gradients,
        "compile with history_unit micro_batch": settings.compile
        and config
        and config.history_unit == "micro_batch",
        "adaptive_warmup_spread without a window of amaxes (use max_window)": config
        and config.adaptive_warmup_spread is not None
        and all(config.for_kind(kind).history_len < 2 for kind in config.kinds()),
        "adaptive_warmup_spread with reduce_amax off on several ranks": config
        and config.adaptive_warmup_spread is not None
        and not config.reduce_amax
        and ranks.world > 1,
        "weight_dtype bfloat16 with FSDP (use DDP)": settings.weight_dtype == "bfloat16" and ranks.is_sharded,
    }
    for name, present in refused.items():
        if present:
            raise UserError(f"{name} is not offered; change one of the two")
