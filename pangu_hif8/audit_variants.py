"""The audit's experiments: one of the paper's eight each, changed as the published code or a doubt asks.

A1 to A6 as README's audit section names them; A7 and A8 need no runs of their own.
"""

from __future__ import annotations

from typing import Any

from pangu_hif8.config import Profile
from pangu_hif8.variants import Variant, checked

MICRO_BATCHES = 4  # of a step in A4, where the profile's own step has fewer; the published code has 8


def audit_variants(profile: Profile) -> tuple[Variant, ...]:
    """The variants at a profile's scale, each after what it is compared with."""
    return checked([*_labels(), *_weights(), *_taper(), *_window(profile), *_warmup(profile), *_gradients()])


def _labels() -> list[Variant]:
    """A1: labels shifted twice, at both learning rates, unquantized."""
    changes = {"label_shift": 2}
    return [
        Variant("A1-E1", "labels shifted twice", "E1", "E1", changes),
        Variant("A1-E6", "labels shifted twice", "E6", "E6", changes),
    ]


def _weights() -> list[Variant]:
    """A2: bfloat16 weights without master copies; and float32 ones with the moved share recorded."""
    watched: dict[str, Any] = {"record_moved_share": True}
    rounded = watched | {"weight_dtype": "bfloat16"}
    return [
        Variant("A2-E1-float32", "float32 weights", "E1", "E1", watched),
        Variant("A2-E6-float32", "float32 weights", "E6", "E6", watched),
        Variant("A2-E1-bfloat16", "bfloat16 weights", "E1", "E1", rounded),
        Variant("A2-E6-bfloat16", "bfloat16 weights", "E6", "E6", rounded),
    ]


def _taper() -> list[Variant]:
    """A3: most-recent without clipping; the format's own taper above the target."""
    changes = {"overflow": "taper"}
    return [
        Variant("A3-E2-taper", "most-recent, no clipping", "E2", "E1", changes),
        Variant("A3-E7-taper", "most-recent, no clipping", "E7", "E6", changes),
    ]


def _window(profile: Profile) -> list[Variant]:
    """A4: history by micro-batch, emptied at the switch, against ours with as many micro-batches."""
    train = profile.train
    size = min(train.micro_batch_size, max(1, train.batch_size // MICRO_BATCHES))
    ours: dict[str, Any] = {"micro_batch_size": size}
    published = ours | {"history_unit": "micro_batch", "warmup_history": "emptied", "reduce_amax": False}
    by_micro_batch = ours | {"history_unit": "micro_batch"}
    emptied = ours | {"warmup_history": "emptied"}
    return [
        Variant("A4-E6", "BF16 in as many micro-batches", "E6", "E6", ours),
        Variant("A4-E8-steps", "window of steps, kept at the switch", "E8", "A4-E6", ours),
        Variant("A4-E8-micro", "window of micro-batches", "E8", "A4-E6", by_micro_batch),
        Variant("A4-E8-emptied", "window emptied at the switch", "E8", "A4-E6", emptied),
        Variant("A4-E8-published", "of micro-batches, emptied, per rank", "E8", "A4-E6", published),
    ]


def _warmup(profile: Profile) -> list[Variant]:
    """A5: the warm-up alone: max-window at 1e-5 without it, most-recent with it."""
    steps = profile.train.bf16_warmup_steps
    return [
        Variant("A5-E8-no-warmup", "max-window without warm-up", "E8", "E6", {"bf16_warmup_steps": 0}),
        Variant("A5-E7-warmup", "most-recent with warm-up", "E7", "E6", {"bf16_warmup_steps": steps}),
    ]


def _gradients() -> list[Variant]:
    """A6: the incoming gradient quantized too."""
    changes: dict[str, Any] = {"gradients": {}}
    return [
        Variant("A6-E5-gradients", "max-window, gradients quantized", "E5", "E1", changes),
        Variant("A6-E8-gradients", "max-window + warm-up, gradients quantized", "E8", "E6", changes),
    ]
