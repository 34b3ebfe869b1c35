"""How an interval becomes a verdict, and every threshold with its reason, in one place.

A verdict is "reproduced" or "not reproduced" only when the whole 95% interval lies on one side of a stated
threshold; otherwise it is "not resolvable at this scale". A claim with several halves is reproduced when
all are, not reproduced when one is not, and otherwise not resolvable. A claim whose runs are missing is
"not available". Thresholds were set before the runs and are not tuned to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from pangu_hif8 import paper
from pangu_hif8.comparisons import Accuracy
from pangu_hif8.metrics import Interval

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
NOT_RESOLVABLE = "not resolvable at this scale"
NOT_AVAILABLE = "not available"

ACCURACY_MARGIN_POINTS = 1.0
"""Near-lossless: less than one accuracy point lost. The paper's own largest drop for E8 is 0.55 points."""
HELDOUT_MARGIN_NATS = 0.01
"""Near-lossless in held-out loss: less than 1% in perplexity."""
APE_FACTOR = 2.0
"""Tracks the baseline: APE over quantized steps at most twice the paper's after its warm-up."""
SATURATION_FLOOR = 0.25
"""Saturates: at least half of the 50% that the record law 1/(w+1) gives for the last step alone."""
WINDOW_RATIO = 0.5
"""Max-window helps: it saturates at most half as often as most-recent at the same learning rate."""
EFFECT_SHARE = 0.5
"""A published effect is ruled out when the interval excludes half of its size."""
EXACT_SHARE = 0.99
"""A property by construction must hold in 99% of (tensor, step) pairs (rounding in the CSV)."""


@dataclass(frozen=True)
class Part:
    """One half of a claim."""

    name: str
    verdict: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


def ape_limit_pct() -> float:
    """The APE below which a training loss tracks its baseline, in percent."""
    return APE_FACTOR * paper.ape_pct(after_warmup=True)


def at_least(interval: Interval, threshold: float) -> str:
    """Is the true value at or above the threshold?"""
    if interval.low >= threshold:
        return REPRODUCED
    return NOT_REPRODUCED if interval.high < threshold else NOT_RESOLVABLE


def at_most(interval: Interval, threshold: float) -> str:
    """Is the true value at or below the threshold?"""
    if interval.high <= threshold:
        return REPRODUCED
    return NOT_REPRODUCED if interval.low > threshold else NOT_RESOLVABLE


def is_lower(interval: Interval, smallest: float) -> str:
    """Is a difference below 0 (reproduced), or is even a drop of `smallest` ruled out (not reproduced)?"""
    if interval.high < 0:
        return REPRODUCED
    return NOT_REPRODUCED if interval.low > -smallest else NOT_RESOLVABLE


def exactly(holds: bool) -> str:
    """For what can be counted and has no noise."""
    return REPRODUCED if holds else NOT_REPRODUCED


def combine(verdicts: list[str]) -> str:
    """All halves reproduced; or one not reproduced; or else not resolvable."""
    if NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED
    return REPRODUCED if set(verdicts) == {REPRODUCED} else NOT_RESOLVABLE


def numbers_of(name: str, interval: Interval) -> dict[str, float | None]:
    """An interval as plain numbers; an unbounded end is None."""
    ends = {"": interval.value, "_low": interval.low, "_high": interval.high}
    return {name + end: float(f"{v:.6g}") if math.isfinite(v) else None for end, v in ends.items()}


def accuracy_numbers(name: str, found: Accuracy) -> dict[str, Any]:
    """A paired accuracy comparison as plain numbers."""
    mcnemar = found.mcnemar
    numbers: dict[str, Any] = numbers_of(f"{name}_difference_points", found.difference)
    numbers |= {f"{name}_pct": round(found.value, 4), f"{name}_baseline_pct": round(found.baseline, 4)}
    numbers |= {f"{name}_num_items": found.num_items, f"{name}_num_seeds": found.num_seeds}
    numbers[f"{name}_smallest_resolvable_points"] = round(found.difference.smallest_resolvable, 4)
    if mcnemar:
        numbers[f"{name}_mcnemar"] = [mcnemar.num_worse, mcnemar.num_better, round(mcnemar.p_value, 6)]
    return numbers


def points(interval: Interval) -> str:
    """An accuracy difference for a sentence."""
    return f"{interval.value:+.2f} points [{interval.low:+.2f}, {interval.high:+.2f}]"


def nats(interval: Interval) -> str:
    """A loss difference for a sentence."""
    return f"{interval.value:+.4f} nats [{interval.low:+.4f}, {interval.high:+.4f}]"


def percent(interval: Interval, digits: int = 1) -> str:
    """A share (0 to 1) for a sentence, in percent."""
    low, high = interval.low * 100, interval.high * 100
    return f"{interval.value * 100:.{digits}f}% [{low:.{digits}f}, {high:.{digits}f}]"
