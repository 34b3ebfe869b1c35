"""The format in one figure: how exactly HiF8 and its neighbours hold a value, and a scaled tensor.

Left above: the largest relative rounding error in each binade, measured by rounding a fine grid, not read
off a definition. The other panels: signal to quantization noise of three kinds of data against the value
that the tensor's amax is scaled to. All formats saturate at their largest value, as hardware casts do.
The data are drawn once with a fixed seed, so the figure is the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pangu_hif8.amax import tensor_to_amax
from pangu_hif8.errors import UserError
from pangu_hif8.files import atomic_path
from pangu_hif8.hif8 import MAX, quantize_dequantize
from pangu_hif8.plot_style import legend_below, new_figure, png_bytes, style

BINADES = range(-24, 17)
POINTS_PER_BINADE = 1024  # every midpoint of a format with up to 9 mantissa bits is on the grid
NUM_VALUES = 200_000
NUM_OUTLIERS, OUTLIER_FACTOR = 40, 50.0  # one value in 5,000, as in the table that the test compares with
TARGET = 15.0  # the paper's
TARGETS = tuple(2.0 ** (k / 2) for k in range(-12, 31))
FONT_PT = 11  # 6.5 points when the figure is set at half a page's width
_PALETTE = sns.color_palette("colorblind")


@dataclass(frozen=True)
class Format:
    """A number format: float32 values to the nearest of its own, and how its line looks."""

    round: Callable[[Tensor], Tensor]
    max: float
    look: Mapping[str, Any]


def _torch_format(dtype: torch.dtype, **look: Any) -> Format:
    limit = torch.finfo(dtype).max
    return Format(lambda x: x.clamp(-limit, limit).to(dtype).float(), limit, MappingProxyType(look))


def _hif8(x: Tensor) -> Tensor:
    return quantize_dequantize(x, overflow="saturate")


FORMATS: dict[str, Format] = {
    "HiF8": Format(_hif8, MAX, MappingProxyType(dict(color=_PALETTE[0], lw=3.4, ls="-", alpha=0.8))),
    "float8 e4m3fn": _torch_format(torch.float8_e4m3fn, color=_PALETTE[3], lw=1.6, ls=(0, (4, 1.5))),
    "float8 e5m2": _torch_format(torch.float8_e5m2, color="black", lw=1.3, ls="-"),
    "bfloat16": _torch_format(torch.bfloat16, color="0.45", lw=1.8, ls=(0, (1, 1.2))),
}


def worst_relative_error(name: str, exponent: int) -> tuple[float, float]:
    """Largest abs(q(x) - x) / x for x from 2^exponent on, and where the format ends within that binade.

    The error is NaN where the format has no value of that binade, or only its first.
    """
    chosen = FORMATS[name]
    low = 2.0**exponent
    x = low * (1 + torch.arange(POINTS_PER_BINADE, dtype=torch.float32) / POINTS_PER_BINADE)
    x = x[x <= chosen.max]
    if len(x) < 2 or chosen.round(x[:1]) != low:
        return float("nan"), low
    return float(((chosen.round(x) - x).abs() / x).max()), min(2 * low, chosen.max)


def sqnr_db(x: Tensor, name: str, target: float) -> float:
    """10 log10 of signal over noise for x [any shape], rounded where its amax is scaled to `target`."""
    scale = target / tensor_to_amax(x)
    noise = FORMATS[name].round(x * scale) / scale - x
    return float(10 * torch.log10(x.double().square().sum() / noise.double().square().sum()))


def sample_data(num_values: int = NUM_VALUES, seed: int = 0) -> dict[str, Tensor]:
    """The three kinds of data by their titles, float32 [num_values]."""
    rng = np.random.default_rng(seed)
    gaussian, student = rng.standard_normal(num_values), rng.standard_t(3, num_values)
    spiky = gaussian.copy()
    spiky[: NUM_OUTLIERS * num_values // NUM_VALUES] *= OUTLIER_FACTOR
    drawn = {"Gaussian": gaussian, "Student t, 3 d.o.f.": student, "Gaussian, outliers x50": spiky}
    return {title: torch.from_numpy(values).float() for title, values in drawn.items()}


def plot_format(num_values: int = NUM_VALUES) -> Figure:
    """Relative precision by binade, and SQNR against the scaling target for three kinds of data."""
    with style(), mpl.rc_context(_fonts()):
        figure, axes = new_figure(2, 2, 5.6)
        _precision_panel(axes[0, 0])
        for panel, (title, x) in zip(axes.flat[1:], sample_data(num_values).items(), strict=True):
            _sqnr_panel(panel, title, x)
        axes[1, 0].set_ylabel("SQNR (dB)")
        axes[0, 1].set_ylabel("SQNR (dB)")
        legend_below(figure, axes.flat, columns=3)
    return figure


def _fonts() -> dict[Any, Any]:
    names = ("font.size", "axes.titlesize", "axes.labelsize", "xtick.labelsize", "ytick.labelsize")
    return dict.fromkeys((*names, "legend.fontsize"), FONT_PT)


def _precision_panel(axes: Axes) -> None:
    for name, chosen in FORMATS.items():
        x, y = [], []
        for exponent in BINADES:
            error, end = worst_relative_error(name, exponent)
            x += [exponent, float(np.log2(end))]
            y += [100 * error] * 2
        axes.plot(x, y, label=name, **chosen.look)
    ticks = [0.4, 1, 3, 6, 11, 20, 33]
    axes.set(yscale="log", ylim=(0.3, 45), title="Worst rounding error")
    axes.set_yticks(ticks, [f"{tick:g}%" for tick in ticks])
    axes.minorticks_off()
    _mark_target(axes)
    _power_ticks(axes, range(-20, 11, 10), "magnitude of the value")


def _sqnr_panel(axes: Axes, title: str, x: Tensor) -> None:
    for name, chosen in FORMATS.items():
        axes.plot(np.log2(TARGETS), [sqnr_db(x, name, t) for t in TARGETS], label=name, **chosen.look)
    _mark_target(axes)
    axes.set(ylim=(10, 60), yticks=range(10, 61, 10), title=title)
    _power_ticks(axes, range(-6, 16, 5), "amax is scaled to")


def _mark_target(axes: Axes) -> None:
    axes.axvline(np.log2(TARGET), color=_PALETTE[4], lw=1.2, ls=(0, (3, 1, 1, 1)), label="15, the target")


def _power_ticks(axes: Axes, exponents: range, text: str) -> None:
    """Label the axis of exponents; ticks made later, while saving, would take the theme's font size."""
    axes.tick_params(labelsize=FONT_PT)
    axes.set_xticks(list(exponents), [f"$2^{{{e}}}$" for e in exponents])
    axes.set_xlabel(text)


def save_format_figure(path: Path) -> None:
    """Write the figure as PNG or SVG, by the file's ending. Raises UserError for another ending."""
    kind = path.suffix.lower()
    if kind not in (".png", ".svg"):
        raise UserError(f"a figure is written as .png or .svg, not {path.name!r}")
    figure = plot_format()
    with atomic_path(path) as temporary, style():
        if kind == ".png":
            temporary.write_bytes(png_bytes(figure))
        else:
            figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": None})
