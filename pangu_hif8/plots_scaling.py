"""Figures about scales: how often, where, by how much estimates are exceeded, and how they move.

Inputs and weights always stand apart: an input's amax jumps with the batch, a weight's drifts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from pangu_hif8.comparisons import (
    expected_share,
    jitter_table,
    overshoot,
    saturation_interval,
    saturation_rows,
)
from pangu_hif8.plot_style import color, label, legend_below, new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import KINDS, LAYERS

KIND_TITLE = {"input": "Inputs", "weight": "Weights"}
CURVE_POINTS = 300  # of a distribution's curve: more than can be told apart
SMOOTH_STEPS = 5  # a centred mean over steps, for the eye; statistics use single steps


def quantized_experiments(results: ProfileResults) -> list[str]:
    """Experiments with a saturation table."""
    return [name for name in results.experiments() if results.of(name)[0].saturation is not None]


def _kind_panels(height_in: float, **shared: Any) -> tuple[Figure, Any]:
    figure, axes = new_figure(1, 2, height_in, **shared)
    for panel, kind in zip(axes[0], KINDS, strict=True):
        panel.set_title(KIND_TITLE[kind])
    return figure, axes[0]


def plot_saturation_over_steps(results: ProfileResults) -> Figure | None:
    """Share of the quantized tensors that saturate, by step and estimator."""
    names = quantized_experiments(results)
    if not names:
        return None
    with style():
        figure, axes = _kind_panels(3.5, sharey=True)
        for panel, kind in zip(axes, KINDS, strict=True):
            for name in names:
                shares = saturation_rows(results, name, kind).groupby("step")["saturated"].mean() * 100
                smooth = shares.rolling(SMOOTH_STEPS, center=True, min_periods=1).mean()
                style_ = "--" if name in ("E7", "E8") else "-"
                panel.plot(smooth.index, smooth, color=color(name), ls=style_, label=label(name))
            panel.set(xlabel="optimizer step", ylim=(-3, 103))
        axes[0].set_ylabel(f"saturated tensors (%),\nmean over {SMOOTH_STEPS} steps")
        legend_below(figure, axes[0])
        figure.suptitle("Saturation by estimator over training (dashed: low learning rate)")
    return figure


def plot_saturation_by_layer(results: ProfileResults) -> Figure | None:
    """Share of saturated (tensor, step) pairs by layer kind, with intervals and the record law."""
    names = quantized_experiments(results)
    if not names:
        return None
    with style():
        figure, axes = _kind_panels(3.6, sharey=True)
        for panel, kind in zip(axes, KINDS, strict=True):
            for index, name in enumerate(names):
                _layer_bars(panel, results, name, kind, (index - (len(names) - 1) / 2) * 0.8 / len(names))
            panel.set_xticks(range(len(LAYERS)), [layer.removesuffix("_proj") for layer in LAYERS])
            panel.set(ylim=(0, 100))
            panel.grid(axis="x", visible=False)
        axes[0].set_ylabel("saturated (tensor, step) pairs (%)")
        legend_below(figure, axes[0])
        figure.suptitle("Saturation by layer (black tick: the law 1/(w+1) for independent steps)")
    return figure


def _layer_bars(axes: Axes, results: ProfileResults, name: str, kind: str, shift: float) -> None:
    found = [saturation_interval(results, name, kind, layer).scaled(100) for layer in LAYERS]
    x, width = np.arange(len(LAYERS)) + shift, 0.8 / len(quantized_experiments(results))
    ends = np.array([[i.value - i.low for i in found], [i.high - i.value for i in found]]).clip(0)
    hatch = "///" if name in ("E7", "E8") else None
    axes.bar(
        x,
        [i.value for i in found],
        width,
        yerr=ends,
        color=color(name),
        hatch=hatch,
        edgecolor="white",
        lw=0,
        label=label(name),
        error_kw={"lw": 0.8},
    )
    expected = expected_share(results, name)
    if expected is not None and kind == "input":
        axes.hlines([100 * expected] * len(x), x - width / 2, x + width / 2, color="black", lw=1.6, zorder=3)


def plot_saturation_by_block(results: ProfileResults) -> Figure | None:
    """Share of saturated steps of the down_proj input, by block and experiment."""
    names = quantized_experiments(results)
    if not names:
        return None
    rows = {
        name: saturation_rows(results, name, "input", "down_proj").groupby("block")["saturated"].mean() * 100
        for name in names
    }
    blocks = sorted(set().union(*(series.index for series in rows.values())))
    values = np.array([rows[name].reindex(blocks).to_numpy() for name in names])
    with style():
        figure, axes = new_figure(1, 1, 0.3 * len(names) + 1.3)
        panel = axes[0][0]
        sns.heatmap(
            values,
            ax=panel,
            cmap="cividis",
            vmin=0,
            vmax=100,
            xticklabels=blocks,
            yticklabels=[label(n) for n in names],
            cbar_kws={"label": "saturated steps (%)"},
        )
        step = max(1, len(blocks) // 12)
        panel.set_xticks(np.arange(0, len(blocks), step) + 0.5, blocks[::step], rotation=0)
        panel.set(title="Saturation of down_proj's input by block", xlabel="block")
        panel.tick_params(axis="y", rotation=0)
    return figure


def plot_overshoot(results: ProfileResults) -> Figure | None:
    """Distribution of amax over estimate among saturated pairs: share that exceeds a given factor."""
    names = quantized_experiments(results)
    sizes = {(n, k): overshoot(saturation_rows(results, n, k)) for n in names for k in KINDS}
    if not any(found.size for found in sizes.values()):
        return None
    with style():
        figure, axes = _kind_panels(3.5, sharey=True)
        for panel, kind in zip(axes, KINDS, strict=True):
            for name in names:
                excess = np.sort(sizes[name, kind] - 1)
                if excess.size:
                    shown = np.unique(np.linspace(0, excess.size - 1, CURVE_POINTS).round().astype(int))
                    share = 100 * (excess.size - shown) / excess.size
                    line = "--" if name in ("E7", "E8") else "-"
                    panel.step(
                        excess[shown], share, where="post", color=color(name), ls=line, label=label(name)
                    )
            panel.set(xscale="log", xlabel="amax / estimate - 1")
            panel.xaxis.set_major_locator(LogLocator(base=10, numticks=5))
        axes[0].set_ylabel("saturated pairs beyond (%)")
        legend_below(figure, axes[0] if axes[0].lines else axes[1])
        figure.suptitle("How far a saturated tensor exceeds its estimate")
    return figure


def plot_scale_jitter(results: ProfileResults) -> Figure | None:
    """Movement of each tensor's estimate from step to step, by estimator."""
    names = quantized_experiments(results)
    tables = {(n, k): jitter_table(results, n, k)["jitter"].to_numpy() for n in names for k in KINDS}
    names = [n for n in names if all(tables[n, k].size for k in KINDS)]
    if not names:
        return None
    with style():
        figure, axes = _kind_panels(0.28 * len(names) + 1.5, sharey=True)
        for panel, kind in zip(axes, KINDS, strict=True):
            boxes = panel.boxplot(
                [tables[n, kind] for n in names],
                orientation="horizontal",
                widths=0.6,
                patch_artist=True,
                flierprops={"ms": 2.5},
                medianprops={"color": "black"},
            )
            for box, name in zip(boxes["boxes"], names, strict=True):
                box.set(facecolor=color(name), alpha=0.75)
            panel.set_yticks(range(1, len(names) + 1), [label(n) for n in names])
            panel.set(xlabel="std of log2 ratio (octaves)")
            panel.xaxis.set_major_locator(MaxNLocator(3))
            panel.xaxis.set_major_formatter("{x:g}")  # no common factor that would cover the label
        axes[0].invert_yaxis()
        figure.suptitle("Scale jitter from step to step, over tensors")
    return figure
