"""The figures of the sweeps: quality against cost, and what the setting does on the way there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from pangu_hif8.beyond_points import Point
from pangu_hif8.metrics import Interval
from pangu_hif8.page_plots import PALETTE, Dot, draw_dots, draw_series
from pangu_hif8.plot_style import legend_below, new_figure, style
from pangu_hif8.sensitivity import Sensitivity

MARKERS = "osv^P<>hX"
KIND_COLOR = {"input": PALETTE[0], "weight": PALETTE[1]}
KIND_NAME = {"input": "inputs", "weight": "weights"}
DODGE = 0.035  # of the axis, between points of equal cost
Series = dict[str, list[Interval]]


def looks(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Colour, marker and label of each point: the paper's own setting is a black diamond."""
    found, number = [], 0
    for point in points:
        if point.is_own:
            found.append({"color": "black", "fmt": "D", "label": f"{point.title} ({point.name})"})
            continue
        color, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        found.append({"color": color, "fmt": marker, "label": point.title})
        number += 1
    return found


def draw_tradeoff(
    axes: Axes,
    points: Sequence[Point],
    costs: Sequence[float],
    quality: Sequence[Interval],
    num_ticks: int = 3,
) -> None:
    """Quality with its interval over cost; points of equal cost stand side by side."""
    for x, interval, look in zip(_dodged(costs), quality, looks(points), strict=True):
        below, above = interval.value - interval.low, interval.high - interval.value
        error = [[max(below, 0)], [max(above, 0)]] if np.isfinite([below, above]).all() else None
        axes.errorbar(x, interval.value, yerr=error, capsize=2.5, ms=5, lw=1.2, **look)
    axes.axhline(0, color="0.3", lw=0.8, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(num_ticks))


def _dodged(costs: Sequence[float]) -> list[float]:
    width = DODGE * (max(costs) - min(costs) or abs(costs[0]) or 1.0)
    found: list[float] = []
    for cost in costs:
        crowd = sum(abs(cost - other) < width / 2 for other in costs)
        place = sum(abs(cost - other) < width / 2 for other in costs[: len(found)])
        found.append(cost + width * (place - (crowd - 1) / 2))
    return found


def draw_by_setting(axes: Axes, settings: Sequence[float], series: Series, ylabel: str) -> None:
    """Something over the setting's values on a logarithmic axis, a line a tensor kind."""
    for kind, intervals in series.items():
        name = KIND_NAME[kind] if len(series) > 1 else None
        draw_series(axes, settings, intervals, color=KIND_COLOR[kind], fmt="o-", label=name)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(settings)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(settings), [f"{value:g}" for value in settings])
    axes.set_ylabel(ylabel)


def tradeoffs(
    points: Sequence[Point],
    costs: Sequence[float],
    panels: Sequence[tuple[str, Sequence[Interval]]],
    xlabel: str,
    title: str,
) -> Figure:
    """One panel for each of `panels` (its y label and values), all over one cost."""
    with style():
        figure, axes = new_figure(1, len(panels), 3.3 + 0.13 * len(points))
        for axis, (ylabel, values) in zip(axes[0], panels, strict=True):
            draw_tradeoff(axis, points, costs, values)
            axis.set(xlabel=xlabel, ylabel=ylabel)
        legend_below(figure, axes[0][0], 2)
        figure.suptitle(title)
    return figure


def warmup_figure(
    trace: pd.DataFrame,
    points: Sequence[Point],
    costs: Sequence[float],
    panels: Sequence[tuple[str, Sequence[Interval]]],
) -> Figure:
    """The spread of the amax history by step, by which a warm-up ends, over two panels of trade-off."""
    with style():
        figure, axes = new_figure(2, 2, 5.9)
        grid = axes[0][0].get_gridspec()
        for axis in axes[0]:
            axis.remove()
        _spread_panel(figure.add_subplot(grid[0, :]), trace)
        for axis, (ylabel, values) in zip(axes[1], panels, strict=True):
            draw_tradeoff(axis, points, costs, values)
            axis.set(xlabel="cost: steps trained\nunquantized (%)", ylabel=ylabel)
        legend_below(figure, axes[1][0], 2)
        figure.suptitle("A warm-up that ends when the amaxes have settled")
    return figure


def _spread_panel(axes: Axes, trace: pd.DataFrame) -> None:
    colors = {"all": "black", "input": KIND_COLOR["input"], "weight": KIND_COLOR["weight"]}
    names = {"all": "all tensors (the rule)"} | KIND_NAME
    for column, color in colors.items():
        axes.plot(trace.index, trace[column], color=color, label=names[column])
    axes.set(yscale="log", xlabel="optimizer step", ylabel="spread of the window")
    axes.set_title("E8's amaxes: median over tensors")
    axes.legend(loc="center", bbox_to_anchor=(0.5, 0.68), ncols=3)  # between inputs and weights


def sweep_and_tradeoff(
    points: Sequence[Point],
    by_setting: Sequence[tuple[str, Series]],
    setting_label: str,
    tradeoff: tuple[str, str, Sequence[float], Sequence[Interval]],
    title: str,
) -> Figure:
    """Up to three panels over the setting, and in the last one quality (y label, values) over cost."""
    settings = [point.setting for point in points]
    with style():
        figure, axes = new_figure(2, 2, 5.2 + 0.1 * len(points))
        panels = list(axes.flat)
        for axis, (ylabel, series) in zip(panels, by_setting, strict=False):
            draw_by_setting(axis, settings, series, ylabel)
            axis.set_xlabel(setting_label)
        for axis in panels[len(by_setting) : 3]:
            axis.set_visible(False)
        xlabel, ylabel, costs, quality = tradeoff
        draw_tradeoff(panels[3], points, costs, quality)
        panels[3].set(xlabel=xlabel, ylabel=ylabel)
        legend_below(figure, panels, 2)
        figure.suptitle(title)
    return figure


def blocks_figure(
    points: Sequence[Point],
    costs: Sequence[float],
    quality: Sequence[Interval],
    labels: tuple[str, str],
    measured: Sensitivity | None,
) -> Figure:
    """The sensitivity of each block, where measured, and quality over the share kept in high precision."""
    with style():
        figure, axes = new_figure(2 if measured else 1, 1, 5.8 if measured else 3.8)
        if measured:
            _sensitivity_panel(axes[0][0], measured)
        draw_tradeoff(axes[-1][0], points, costs, quality, 6)
        axes[-1][0].set(xlabel=labels[0], ylabel=labels[1])
        legend_below(figure, axes[-1][0], 2)
        figure.suptitle("Which blocks stay in high precision")
    return figure


def _sensitivity_panel(axes: Axes, measured: Sensitivity) -> None:
    found = [measured.increase(block) for block in measured.blocks]
    draw_series(axes, measured.blocks, found, color=PALETTE[0], fmt="o")
    axes.axhline(0, color="0.3", lw=0.8, zorder=0)
    axes.set(
        xlabel="the one block that is quantized",
        ylabel="held-out loss,\nrise (nats)",
        title="Untrained model with one block quantized",
    )
    axes.xaxis.set_major_locator(MaxNLocator(15, integer=True))


Row = tuple[str, str, Sequence[Interval]]


def forest(rows: Sequence[Row], titles: Sequence[str]) -> Figure:
    """Every setting of every sweep in a row: its sweep, its name, and one interval for each panel.

    F1, which is at the high learning rate, has axes of its own.
    """
    high = [row for row in rows if row[0] == "F1"]
    groups = [group for group in (high, [row for row in rows if row[0] != "F1"]) if group]
    sweeps = list(dict.fromkeys(sweep for sweep, _, _ in rows))
    with style():
        sizes = {"height_ratios": [len(group) + 0.5 for group in groups]}
        height = 0.19 * len(rows) + 0.8 * len(groups) + 0.4
        figure, axes = new_figure(len(groups), len(titles), height, sharey="row", gridspec_kw=sizes)
        for panels, group in zip(axes, groups, strict=True):
            _forest_row(panels, group, sweeps)
        for panel, title in zip(axes[0], titles, strict=True):
            panel.set_title(title)
        figure.suptitle("Held-out loss minus E5's (F1) or E8's (left is better)")
    return figure


def _forest_row(panels: Sequence[Axes], group: Sequence[Row], sweeps: list[str]) -> None:
    for index, panel in enumerate(panels):
        dots = [
            Dot(f"{sweep}: {name}", values[index], PALETTE[sweeps.index(sweep)])
            for sweep, name, values in group
        ]
        draw_dots(panel, dots)
        panel.set_xlabel("difference (nats)")
        panel.xaxis.set_major_locator(MaxNLocator(3))
