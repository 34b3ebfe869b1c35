"""The report's figures: curves here, dot plots in plots_outcome.py, scales in plots_scaling.py.

Each function takes the usable results and returns a Figure, or None when its runs are not there: an empty
panel is never drawn. `FIGURES` names them all, in the report's order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pangu_hif8 import captions, paper
from pangu_hif8.comparisons import (
    ape_table,
    loss_pairs,
    taken_steps,
)
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.plot_style import (
    color,
    label,
    legend_below,
    new_figure,
    rate_text,
    save_figure,
    save_png,
    style,
)
from pangu_hif8.plots_outcome import (
    plot_answer_nll,
    plot_benchmarks,
    plot_drops,
    plot_heldout,
    plot_late_ape,
)
from pangu_hif8.plots_run import plot_run_loss, plot_run_saturation
from pangu_hif8.plots_sampled import plot_sampled_sqnr
from pangu_hif8.plots_scaling import (
    plot_overshoot,
    plot_saturation_by_block,
    plot_saturation_by_layer,
    plot_saturation_over_steps,
    plot_scale_jitter,
)
from pangu_hif8.results import ProfileResults

__all__ = ["FIGURES", "FigureSpec", "plot_run_loss", "plot_run_saturation", "save_figure", "save_png"]


def rate_groups(results: ProfileResults) -> list[tuple[float, list[str]]]:
    """Trained experiments by learning rate, high rate first."""
    rates: dict[float, list[str]] = {}
    for name in results.experiments():
        lr = results.of(name)[0].config.lr
        if lr is not None:
            rates.setdefault(lr, []).append(name)
    return sorted(rates.items(), reverse=True)


def mark_warmup(axes: Axes, results: ProfileResults, names: list[str]) -> None:
    """Shade the steps before a run with warm-up quantizes."""
    for name in names:
        start = results.of(name)[0].info["quantized_from_step"]
        if start and start > 1:
            axes.axvspan(0.5, start - 0.5, color="0.88", zorder=0, lw=0, label=f"warm-up of {name}")


def plot_training_loss(results: ProfileResults) -> Figure | None:
    """Training loss by step, one panel a learning rate; a band spans the seeds."""
    groups = rate_groups(results)
    if not groups:
        return None
    with style():
        figure, axes = new_figure(1, len(groups), 3.6, sharey=True)
        steps = results.steps
        for panel, (lr, names) in zip(axes[0], groups, strict=True):
            for name in names:
                _loss_line(panel, name, steps[steps["experiment"] == name])
            panel.set(title=rate_text(lr), xlabel="optimizer step")
        axes[0][0].set_ylabel("training loss (nats per token)")
        legend_below(figure, axes[0])
        figure.suptitle("Training loss by learning rate")
    return figure


def _loss_line(axes: Axes, name: str, rows: pd.DataFrame) -> None:
    by_step = taken_steps(rows).groupby("step")["loss"].agg(["mean", "min", "max"])
    baseline = EXPERIMENTS[name].amax_compute_algo is None
    width, alpha = (3.5, 0.45) if baseline else (0.9, 1.0)
    axes.plot(by_step.index, by_step["mean"], color=color(name), lw=width, alpha=alpha, label=label(name))
    if rows["seed"].nunique() > 1:
        axes.fill_between(by_step.index, by_step["min"], by_step["max"], color=color(name), alpha=0.15, lw=0)


def plot_ape(results: ProfileResults) -> Figure | None:
    """APE against the matched baseline by step on a log axis, and its mean; one panel a learning rate."""
    pairs = loss_pairs(results)
    groups = [(lr, [p for p in pairs if p[0] in names]) for lr, names in rate_groups(results)]
    groups = [(lr, found) for lr, found in groups if found]
    if not groups:
        return None
    with style():
        figure, axes = new_figure(len(groups), 1, 2.5 * len(groups) + 0.5, sharex=True)
        for panel, (lr, found) in zip(axes[:, 0], groups, strict=True):
            for name, baseline in found:
                _ape_line(panel, name, ape_table(results, name, baseline))
            panel.axhline(paper.ape_pct(True), color="black", ls=":", lw=1.2, label="the paper's mean (E8)")
            mark_warmup(panel, results, [name for name, _ in found])
            panel.set(yscale="log", ylabel="APE (%)", title=f"{rate_text(lr)}, against {found[0][1]}")
            panel.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.2)
        axes[-1, 0].set_xlabel("optimizer step")
        figure.suptitle("Training loss error against the matched baseline")
    return figure


def _ape_line(axes: Axes, name: str, table: pd.DataFrame) -> None:
    quantized = table[table["quantized"] & (table["ape_pct"] > 0)]
    mean = table.loc[table["quantized"], "ape_pct"].mean()
    axes.plot(quantized["step"], quantized["ape_pct"], color=color(name), lw=0.7, alpha=0.55)
    if mean > 0:
        axes.axhline(mean, color=color(name), lw=1.6, label=f"{label(name)}\nmean {mean:.3f}%")


@dataclass(frozen=True)
class FigureSpec:
    """A figure of the report: its file name, what it shows, and the sentence computed for it."""

    name: str
    draw: Callable[[ProfileResults], Figure | None]
    caption: Callable[[ProfileResults], str]


FIGURES = [
    FigureSpec("training_loss", plot_training_loss, captions.training_loss),
    FigureSpec("ape", plot_ape, captions.ape),
    FigureSpec("late_ape", plot_late_ape, captions.late_ape),
    FigureSpec("saturation_over_steps", plot_saturation_over_steps, captions.saturation_over_steps),
    FigureSpec("saturation_by_layer", plot_saturation_by_layer, captions.saturation_by_layer),
    FigureSpec("saturation_by_block", plot_saturation_by_block, captions.saturation_by_block),
    FigureSpec("overshoot", plot_overshoot, captions.overshoot_sizes),
    FigureSpec("scale_jitter", plot_scale_jitter, captions.scale_jitter),
    FigureSpec("sampled_sqnr", plot_sampled_sqnr, captions.sampled_sqnr),
    FigureSpec("benchmarks", plot_benchmarks, captions.benchmarks),
    FigureSpec("drops", plot_drops, captions.drops),
    FigureSpec("answer_nll", plot_answer_nll, captions.answer_nll),
    FigureSpec("heldout", plot_heldout, captions.heldout),
]
