"""From the points of growth.py to growth.csv, growth.md and the figure."""

from __future__ import annotations

import csv
import io
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from step_table import INTERVAL, interval

from pangu_hif8.metrics import Interval
from pangu_hif8.page_plots import PALETTE, draw_series
from pangu_hif8.plot_style import legend_below, new_figure, style

AXES = {
    "window": "window (steps)",
    "quantized_blocks": "quantized blocks",
    "sequences": "sequences",
    "length": "tokens a sequence",
    "processes": "processes (one thread, one batch each)",
}
PROCESSES_ARE = (
    "Processes: one thread and the usual number of sequences each, in one batch; beside each other they show "
    "what their number does, beside the other rows what one thread does."
)
MIB = 2**20


@dataclass(frozen=True)
class Growth:
    """One point: the ratio of a max-window step to a plain one with its interval, and memory in bytes."""

    axis: str
    value: int
    ratio: float
    low: float
    high: float
    plain_ms: float
    state_bytes: int | None = None
    kept_bytes: int | None = None
    kept_codes_bytes: int | None = None


def ratio_of(plain: Sequence[float], quantized: Sequence[float]) -> dict[str, float]:
    """Median of the ratios within a round with its interval, and the plain step in ms."""
    ratios = [q / p for p, q in zip(plain, quantized, strict=True)]
    low, high = interval(ratios)
    found = {"ratio": statistics.median(ratios), "low": low, "high": high}
    return found | {"plain_ms": 1e3 * statistics.median(plain)}


def as_csv(found: Sequence[Growth]) -> str:
    """One line a point."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, [field.name for field in fields(Growth)], lineterminator="\n")
    writer.writeheader()
    for point in found:
        row = asdict(point)
        writer.writerow({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()})
    return sink.getvalue()


def as_markdown(found: Sequence[Growth], head: Sequence[str]) -> str:
    """A table of all points."""
    lines = ["# How the cost of HiF8 grows", "", *head, INTERVAL, ""]
    lines += ["![Step ratio and memory by window, blocks, sequences, length, processes](growth.png)", ""]
    lines += ["| what | value | ratio to the plain step | interval | plain step, ms | scales' tensors, KiB |"]
    lines[-1] += " inputs kept, MiB | as codes, MiB |"
    lines += ["|---" * 8 + "|"]
    for p in found:
        cells = [AXES[p.axis], f"{p.value:,}", f"{p.ratio:.3f}", f"{p.low:.3f} to {p.high:.3f}"]
        cells += [f"{p.plain_ms:.1f}", _size(p.state_bytes, 1024), _size(p.kept_bytes, MIB)]
        lines.append("| " + " | ".join([*cells, _size(p.kept_codes_bytes, MIB)]) + " |")
    return "\n".join(lines) + "\n"


def _size(num_bytes: int | None, unit: int) -> str:
    return "" if num_bytes is None else f"{num_bytes / unit:.1f}"


def draw(found: Sequence[Growth]) -> Figure:
    """The ratio along each axis, and what is kept for backward by the number of tokens."""
    with style():
        figure, axes = new_figure(2, 3, 5.2)
        panels = list(axes.flat)
        for panel, name in zip(panels, AXES, strict=False):
            _ratios(panel, [p for p in found if p.axis == name], name)
            panel.set_ylim(0.95, max(1.2, *(p.high for p in found)) + 0.02)
        _kept(panels[5], [p for p in found if p.axis == "length"])
        legend_below(figure, panels[5], columns=2)
        figure.suptitle("A max-window step beside the plain one: time and memory")
    return figure


def _ratios(panel: Axes, points: Sequence[Growth], name: str) -> None:
    look: dict[str, Any] = {"color": PALETTE[0], "marker": "o"}
    intervals = [Interval(p.ratio, p.low, p.high) for p in points]
    draw_series(panel, [p.value for p in points], intervals, **look)
    panel.axhline(1, color="0.3", lw=0.8, zorder=0)
    panel.set(xlabel=textwrap.fill(AXES[name], 22), ylabel="step time, ratio", xscale="log")
    _ticks(panel, points)


def _kept(panel: Axes, points: Sequence[Growth]) -> None:
    values = [p.value for p in points]
    for column, label, color in (
        ("kept_bytes", "inputs kept as float32", PALETTE[1]),
        ("kept_codes_bytes", "inputs kept as codes", PALETTE[2]),
    ):
        sizes = [getattr(p, column) / MIB for p in points]
        panel.plot(values, sizes, marker="o", ms=4, lw=1.2, color=color, label=label)
    panel.set(xlabel=AXES["length"], ylabel="kept for backward (MiB)", xscale="log", yscale="log")
    _ticks(panel, points)


def _ticks(panel: Axes, points: Sequence[Growth]) -> None:
    panel.minorticks_off()
    panel.set_xticks([p.value for p in points], [f"{p.value:g}" for p in points])
    panel.tick_params(axis="x", labelsize="x-small")
