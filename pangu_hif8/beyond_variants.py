"""The sweeps beyond the paper: its three pieces of future work, and settings that it fixes without a sweep.

Each sweep changes one setting of one experiment. The point at the paper's own value is that experiment itself
and is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pangu_hif8.config import Profile
from pangu_hif8.plan_workload import shape_of
from pangu_hif8.variants import Variant, checked

LR_DECAYS = (0.95, 0.85, 0.7)
SPREADS = (0.1, 0.001, 0.00001)  # of the median tensor: of all magnitudes, as models differ by such
NUM_BLOCKS = (0, 5, 10)
WINDOWS = (1, 4, 16, 64, 256)
TARGETS = (8.0, 15.0, 56.0, 224.0)


def beyond_variants(profile: Profile, ranking: Sequence[int] = ()) -> tuple[Variant, ...]:
    """The variants at a profile's scale.

    `ranking`: the blocks' indices, the most sensitive to quantization first, as measured (`sensitivity.py`);
    without it the sweep over the choice of blocks has its first and last ones only.
    """
    parts = (
        _layerwise(),
        _adaptive(profile),
        _blocks(profile, ranking),
        _windows(profile),
        _targets(profile),
    )
    return checked([variant for part in parts for variant in part])


def _layerwise() -> list[Variant]:
    """F1: the learning rate falls from the last block to the first."""
    rows = [(f"F1-E5-{decay:g}", f"rate x {decay:g} a block", decay) for decay in LR_DECAYS]
    return [Variant(name, title, "E5", "E1", {"lr_decay_per_block": decay}) for name, title, decay in rows]


def _adaptive(profile: Profile) -> list[Variant]:
    """F2: quantize as soon as the amax history has settled, at half of the run at the latest."""
    latest = max(1, profile.train.steps // 2)
    found = [Variant("F2-E8-none", "no warm-up", "E8", "E6", {"bf16_warmup_steps": 0})]
    for spread in SPREADS:
        changes: dict[str, Any] = {"adaptive_warmup_spread": spread, "bf16_warmup_steps": latest}
        found.append(
            Variant(f"F2-E8-{spread:g}", f"adaptive warm-up, spread {spread:g}", "E8", "E6", changes)
        )
    return found


def _blocks(profile: Profile, ranking: Sequence[int]) -> list[Variant]:
    """F3: how many blocks stay in high precision, and which: the first, the last, the most sensitive."""
    total = num_blocks(profile)
    found = [Variant("F3-E8-0", "every block quantized", "E8", "E6", {"hp_blocks": []})]
    for number in NUM_BLOCKS[1:]:
        if number >= total:
            continue
        choices = {"first": list(range(number)), "last": list(range(total - number, total))}
        if ranking:
            choices["sensitive"] = sorted(ranking[:number])
        for which, kept in choices.items():
            title = f"the {number} most sensitive" if which == "sensitive" else f"the {which} {number}"
            found.append(
                Variant(f"F3-E8-{number}-{which}", f"{title} blocks kept", "E8", "E6", {"hp_blocks": kept})
            )
    return found


def num_blocks(profile: Profile) -> int:
    """Blocks of the profile's model. Raises UserError for a model whose shape is not known."""
    return shape_of(profile.model).num_blocks


def _windows(profile: Profile) -> list[Variant]:
    """The window's length; one longer than the run would be the whole run, as the longest below is."""
    lengths = [w for w in WINDOWS if w != profile.train.amax_history_len and w <= 2 * profile.train.steps]
    return [Variant(f"W-E8-{w}", window_title(w), "E8", "E6", {"amax_history_len": w}) for w in lengths]


def window_title(length: int) -> str:
    """A window for people."""
    return "window of 1 step" if length == 1 else f"window of {length} steps"


def _targets(profile: Profile) -> list[Variant]:
    """The value that amax is mapped to."""
    rows = [target for target in TARGETS if target != 15.0]
    return [Variant(f"T-E8-{t:g}", f"amax mapped to {t:g}", "E8", "E6", {"hif8_max": t}) for t in rows]
