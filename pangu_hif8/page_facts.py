"""A section's numbers and the words made of them: nothing is said that is not among the numbers.

Every method notes what it was given, under a name, and returns it as text with its 95% interval. Where an
interval of a difference leaves the sign open, the text says so, and from which size on it would have shown.
"""

from __future__ import annotations

import math
from typing import Any

from pangu_hif8.judgement import NOT_RESOLVABLE, effect_numbers, nats, numbers_of, points
from pangu_hif8.metrics import Interval

UNITS = {"points": (points, "{:.2f} points"), "nats": (nats, "{:.4f} nats")}
TINY = 0.0005  # nats: the half width of an interval below which four decimals say nothing


def _tiny(interval: Interval) -> str:
    return f"{interval.value:+.1e} nats [{interval.low:+.1e}, {interval.high:+.1e}]"


TINY_NATS = (_tiny, "{:.1e} nats")


class Facts:
    """What a section has found so far."""

    def __init__(self) -> None:
        self.numbers: dict[str, Any] = {}

    def points(self, name: str, interval: Interval) -> str:
        """A difference of accuracies, in points."""
        return self._difference(name, interval, "points")

    def nats(self, name: str, interval: Interval) -> str:
        """A difference of losses, in nats."""
        return self._difference(name, interval, "nats")

    def _difference(self, name: str, interval: Interval, unit: str) -> str:
        self.numbers |= effect_numbers(f"{name}_{unit}", interval)
        words, size = TINY_NATS if unit == "nats" and interval.half_width < TINY else UNITS[unit]
        if interval.low == interval.high == 0:
            return "no difference"
        if interval.low > 0 or interval.high < 0:
            return words(interval)
        resolvable = interval.smallest_resolvable
        if not math.isfinite(resolvable):
            return f"{words(interval)} ({NOT_RESOLVABLE})"
        return f"{words(interval)} ({NOT_RESOLVABLE}; {size.format(resolvable)} would have shown)"

    def share(self, name: str, interval: Interval, digits: int = 1) -> str:
        """A share (0 to 1) in percent."""
        return self.percent(name, interval.scaled(100), digits)

    def percent(self, name: str, interval: Interval, digits: int = 1) -> str:
        """A value that is in percent already."""
        self.numbers |= numbers_of(f"{name}_pct", interval)
        form = ".1e" if 0 < abs(interval.value) < 0.5 * 10**-digits else f".{digits}f"
        return f"{interval.value:{form}}% [{interval.low:{form}}, {interval.high:{form}}]"

    def value(self, name: str, value: float, form: str = ".2f", unit: str = "") -> str:
        """A value without an interval; NaN as "none"."""
        if not math.isfinite(value):
            self.numbers[name] = None
            return "none"
        self.numbers[name] = value if isinstance(value, int) else float(f"{value:.8g}")
        return f"{value:{form}}{unit}"
