"""One look for every figure: seaborn's theme, a colour-blind palette, text of 9 points at 5.5 inches.

Figures are plain objects, made without pyplot: no window, no display, no global state. `ReportFigure` shows
itself as a PNG in a notebook. Saving is deterministic: no date, a fixed salt for SVG identifiers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.files import atomic_path
from pangu_hif8.metrics import Interval

WIDTH_IN = 5.5
DPI = 150
FONT_PT = 9
_COLORS = sns.color_palette("colorblind")
COLOR_OF = {
    None: (0.3, 0.3, 0.3),
    "most_recent": _COLORS[1],
    "exponential_smoothing": _COLORS[2],
    "current": _COLORS[4],
    "max_window": _COLORS[0],
}
GRADIENT_COLOR = _COLORS[3]
SEED_ROW = 0.27  # how far under its row a seed's own value stands
COLORS_IN_PNG = 256  # of an adaptive palette: a third of the size, and no difference to the eye
NAME_OF = {
    None: "BF16",
    "most_recent": "most-recent",
    "exponential_smoothing": "smoothing",
    "current": "current",
    "max_window": "max-window",
}
MARKERS = {"E0": "D", "E1": "o", "E2": "o", "E3": "o", "E4": "o", "E5": "o", "E6": "s", "E7": "s", "E8": "s"}
NEEDLESS_DIGITS = re.compile(r"(?<![\w.])([1-9]\d*\.\d\d)\d+")  # of an SVG: points, from the third decimal on
RC: dict[Any, Any] = {
    "font.size": FONT_PT,
    "axes.titlesize": FONT_PT + 1,
    "axes.labelsize": FONT_PT,
    "xtick.labelsize": FONT_PT,
    "ytick.labelsize": FONT_PT,
    "legend.fontsize": FONT_PT,
    "figure.titlesize": FONT_PT + 1,
    "figure.labelsize": FONT_PT,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "svg.hashsalt": "pangu_hif8",
    "path.simplify": True,
}


class ReportFigure(Figure):
    """A figure that a notebook shows without any backend."""

    def _repr_png_(self) -> bytes:
        return png_bytes(self)


@contextmanager
def style() -> Iterator[None]:
    """The theme, for drawing and for saving."""
    with mpl.rc_context(), sns.axes_style("whitegrid"), sns.plotting_context("paper"), mpl.rc_context(RC):
        yield


def new_figure(rows: int = 1, columns: int = 1, height_in: float = 3.2, **shared: Any) -> tuple[Figure, Any]:
    """A figure of the standard width and its axes as an array [rows, columns]."""
    figure = ReportFigure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def png_bytes(figure: Figure) -> bytes:
    """The figure as PNG with a palette, so that pages and notebooks stay small."""
    drawn, packed = io.BytesIO(), io.BytesIO()
    with style():
        figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
    with Image.open(drawn) as picture:
        small = picture.convert("RGB").quantize(
            COLORS_IN_PNG, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE
        )
    small.save(packed, "PNG", optimize=True, dpi=(DPI, DPI))
    return packed.getvalue()


def save_png(figure: Figure, directory: Path, name: str) -> Path:
    """Write name.png."""
    path = directory / f"{name}.png"
    with atomic_path(path) as temporary:
        temporary.write_bytes(png_bytes(figure))
    return path


def save_figure(figure: Figure, directory: Path, name: str) -> tuple[Path, Path]:
    """Write name.png and name.svg; equal figures give equal bytes on one machine."""
    png, svg = save_png(figure, directory, name), directory / f"{name}.svg"
    figure.set_layout_engine("none")  # laid out once; the SVG takes the same places
    with atomic_path(svg) as temporary, style():
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
        drawn = temporary.read_text(encoding="utf-8")
        temporary.write_text(NEEDLESS_DIGITS.sub(r"\1", drawn), encoding="utf-8")
    return png, svg


def color(experiment: str) -> Any:
    """An experiment's colour: that of its estimator; E0 is a lighter grey than BF16 training."""
    return (0.6, 0.6, 0.6) if experiment == "E0" else COLOR_OF[EXPERIMENTS[experiment].amax_compute_algo]


def label(experiment: str) -> str:
    """Short name for axes and legends."""
    if experiment == "E0":
        return "E0 untouched"
    warmup = " + warm-up" if EXPERIMENTS[experiment].bf16_warmup else ""
    return f"{experiment} {NAME_OF[EXPERIMENTS[experiment].amax_compute_algo]}{warmup}"


def rate_text(lr: float) -> str:
    """A learning rate as people write it."""
    mantissa, exponent = f"{lr:.1e}".split("e")
    return f"lr {float(mantissa):g}e{int(exponent)}"


def legend_below(figure: Figure, axes: Axes | Iterable[Axes], columns: int = 3) -> None:
    """One legend under the panels, so that it covers no data."""
    found = [axes] if isinstance(axes, Axes) else list(axes)
    pairs = [pair for panel in found for pair in zip(*panel.get_legend_handles_labels(), strict=True)]
    once = {text: handle for handle, text in reversed(pairs)}
    names = list(dict.fromkeys(text for _, text in pairs))
    figure.legend(
        [once[name] for name in names], names, loc="outside lower center", ncols=columns, frameon=False
    )


def dots_with_intervals(axes: Axes, names: list[str], found: list[Interval]) -> None:
    """Horizontal dot plot: one row a name, value with its interval, the first on top; a tick a seed."""
    for row, (name, interval) in enumerate(zip(names, found, strict=True)):
        value, low, high = interval.value, interval.low, interval.high
        ends = [[max(value - low, 0)], [max(high - value, 0)]] if np.isfinite([low, high]).all() else None
        axes.errorbar(value, row, xerr=ends, fmt=MARKERS[name], color=color(name), capsize=2.5, ms=5, lw=1.3)
        seeds: dict[str, Any] = {"color": "black", "ms": 5, "mew": 0.8, "zorder": 4}
        axes.plot(interval.by_seed, [row + SEED_ROW] * len(interval.by_seed), "|", **seeds)
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
