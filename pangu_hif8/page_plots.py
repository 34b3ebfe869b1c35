"""What the figures of a page of sections share: dots with intervals, series with bands, a label for a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pangu_hif8.metrics import Interval

PALETTE = sns.color_palette("colorblind")
GREY = (0.35, 0.35, 0.35)
BAND = 0.15


@dataclass(frozen=True)
class Dot:
    """One row of a dot plot."""

    label: str
    interval: Interval
    color: Any = GREY
    marker: str = "o"


def draw_dots(axes: Axes, dots: Sequence[Dot], zero: bool = True) -> None:
    """Horizontal dot plot, the first row on top; `zero` draws a line there."""
    for row, dot in enumerate(dots):
        ends = np.array([[dot.interval.value - dot.interval.low], [dot.interval.high - dot.interval.value]])
        error = ends.clip(0) if np.isfinite(ends).all() else None
        look: dict[str, Any] = {"fmt": dot.marker, "color": dot.color, "capsize": 2.5, "ms": 5, "lw": 1.3}
        axes.errorbar(dot.interval.value, row, xerr=error, **look)
    if zero:
        axes.axvline(0, color="0.3", lw=0.8, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(dots)), [dot.label for dot in dots])
    axes.set_ylim(len(dots) - 0.4, -0.6)


def draw_series(axes: Axes, x: Sequence[float], intervals: Sequence[Interval], **look: Any) -> None:
    """A line through values, with a bar for each interval."""
    values, low, high = (np.array([getattr(i, end) for i in intervals]) for end in ("value", "low", "high"))
    ends = np.array([values - low, high - values]).clip(0)
    error = np.where(np.isfinite(ends), ends, 0)
    axes.errorbar(x, values, yerr=error, **({"capsize": 2, "ms": 4, "lw": 1.2, "elinewidth": 0.8} | look))
