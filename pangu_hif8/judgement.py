"""How an interval becomes a verdict, and every threshold with its reason, in one place.

A verdict is "reproduced" or "not reproduced" only when the whole 95% interval lies on one side of a stated
threshold; otherwise it is "not resolvable at this scale", and the text says from which size on an effect
would have shown with 80% power. Of several seeds the interval is the hull of two: over the items, sequences
or steps of these runs, and over the seeds (Student's t), so that a verdict holds for other items and for
other seeds. Of one seed it is the first alone: one run says nothing of its own repetition. A claim with
several halves is reproduced when all are, not reproduced when one is not, and otherwise not resolvable. A
claim whose runs are missing is "not available". Thresholds were set before the runs and are not tuned to
them. The level and the power, both the field's custom, stand in metrics.py, where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
"""Max-window helps: it saturates at most half as often as most-recent at the same learning rate, whichever
values the two intervals leave open."""
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


def at_most_times(interval: Interval, factor: float, other: Interval) -> str:
    """Is the true value at most `factor` times the other's? Both intervals count, end against end."""
    if interval.high <= factor * other.low:
        return REPRODUCED
    return NOT_REPRODUCED if interval.low > factor * other.high else NOT_RESOLVABLE


def is_lower(interval: Interval, smallest: float) -> str:
    """Is a difference below 0 (reproduced), or is even a drop of `smallest` ruled out (not reproduced)?"""
    if interval.high < 0:
        return REPRODUCED
    return NOT_REPRODUCED if interval.low > -smallest else NOT_RESOLVABLE


def would_show(interval: Interval, threshold: float = 0.0) -> float:
    """The smallest effect whose verdict would have been found with 80% power, in the interval's unit.

    It lies beyond the threshold by what the run can tell apart; of a drop, its size. Infinite for one value.
    """
    return abs(threshold) + interval.smallest_resolvable


def shown(verdict: str, interval: Interval, threshold: float = 0.0, unit: str = "nats") -> str:
    """For a text: from which size on an effect would have shown, where the verdict is not resolvable.

    `unit` is that of the interval; "share" is 0 to 1 and printed in percent.
    """
    if verdict != NOT_RESOLVABLE:
        return ""
    size = would_show(interval, threshold)
    if not math.isfinite(size) or (unit == "share" and size > 1):
        return " (no effect of any size would have shown)"
    return f" ({_SIZES[unit](size)} or more would have shown)"


_SIZES: dict[str, Callable[[float], str]] = {
    "points": lambda size: f"an effect of {size:.2f} points",
    "nats": lambda size: f"an effect of {size:.4f} nats",
    "octaves": lambda size: f"an effect of {size:.3f} octaves",
    "%": lambda size: f"a value of {size:.4f}%",
    "share": lambda size: f"a share of {100 * size:.1f}%",
}


def exactly(holds: bool) -> str:
    """For what can be counted and has no noise."""
    return REPRODUCED if holds else NOT_REPRODUCED


def combine(verdicts: list[str]) -> str:
    """All halves reproduced; or one not reproduced; or else not resolvable."""
    if NOT_REPRODUCED in verdicts:
        return NOT_REPRODUCED
    return REPRODUCED if set(verdicts) == {REPRODUCED} else NOT_RESOLVABLE


def numbers_of(name: str, interval: Interval) -> dict[str, Any]:
    """An interval as plain numbers, of several seeds with both its halves; an unbounded end is None."""
    numbers: dict[str, Any] = _ends(name, interval)
    if interval.over_seeds and interval.over_rows:
        numbers |= {f"{name}_by_seed": [_plain(value) for value in interval.by_seed]}
        halves = {"over_rows": interval.over_rows, "over_seeds": interval.over_seeds}
        numbers |= {k: v for half, i in halves.items() for k, v in _ends(f"{name}_{half}", i).items()}
    return numbers


def _ends(name: str, interval: Interval) -> dict[str, float | None]:
    ends = {"": interval.value, "_low": interval.low, "_high": interval.high}
    return {name + end: _plain(value) for end, value in ends.items()}


def _plain(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def effect_numbers(name: str, interval: Interval, threshold: float = 0.0) -> dict[str, Any]:
    """`numbers_of`, and what the run could have resolved: from zero, and beyond the rule's threshold."""
    numbers = numbers_of(name, interval)
    numbers[f"{name}_smallest_resolvable"] = _plain(interval.smallest_resolvable)
    numbers[f"{name}_would_show"] = _plain(would_show(interval, threshold))
    return numbers


def accuracy_numbers(name: str, found: Accuracy, threshold: float = 0.0) -> dict[str, Any]:
    """A paired accuracy comparison as plain numbers."""
    numbers = numbers_of(f"{name}_difference_points", found.difference)
    numbers |= {f"{name}_pct": round(found.value, 4), f"{name}_baseline_pct": round(found.baseline, 4)}
    numbers |= {f"{name}_num_items": found.num_items, f"{name}_num_seeds": found.num_seeds}
    numbers[f"{name}_smallest_resolvable_points"] = round(found.difference.smallest_resolvable, 4)
    numbers[f"{name}_would_show_points"] = round(would_show(found.difference, threshold), 4)
    tests = [[test.num_worse, test.num_better, round(test.p_value, 6)] for test in found.mcnemar_by_seed]
    if found.mcnemar:
        return numbers | {f"{name}_mcnemar": tests[0]}
    return numbers | {f"{name}_mcnemar_by_seed": tests}


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
