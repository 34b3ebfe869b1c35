"""Figures of one run, for its own notebook. Each takes the run's directory and returns a Figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pangu_hif8.errors import UserError
from pangu_hif8.plot_style import COLOR_OF, GRADIENT_COLOR, color, label, legend_below, new_figure, style
from pangu_hif8.results import quantized_rows
from pangu_hif8.run_checks import LAYERS
from pangu_hif8.run_files import RunResult, open_run
from pangu_hif8.training_files import quantized_kinds


def _name(run: RunResult) -> str:
    return f"{label(run.experiment)}, seed {run.seed}" + (
        " (changed parameters)" if run.config.custom else ""
    )


def _mark_switch(axes: Axes, run: RunResult) -> None:
    start = run.info["quantized_from_step"]
    if start and start > 1:
        axes.axvspan(0.5, start - 0.5, color="0.88", zorder=0, lw=0, label="warm-up (not quantized)")


def _mark_skipped(axes: Axes, run: RunResult) -> None:
    """A cross on the upper edge for each step that updated nothing."""
    assert run.steps is not None
    skipped = run.steps.loc[run.steps["skipped"] == 1, "step"]
    if len(skipped):
        place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 3}
        text = "skipped (loss or gradient not finite)"
        axes.plot(skipped, [1.0] * len(skipped), "x", color="0.2", ms=5, label=text, **place)


def plot_run_loss(run_dir: Path | str) -> Figure:
    """Training loss and gradient norm by step. Raises UserError for a run without training."""
    run = open_run(run_dir)
    if run.steps is None:
        raise UserError(f"{run.experiment} was not trained, so there is no loss to draw")
    with style():
        figure, axes = new_figure(2, 1, 3.8, sharex=True, height_ratios=[2, 1])
        loss, norm = axes[:, 0]
        loss.plot(run.steps["step"], run.steps["loss"], color=color(run.experiment))
        norm.plot(run.steps["step"], run.steps["grad_norm"], color="0.4", lw=0.9)
        _mark_switch(loss, run)
        _mark_skipped(loss, run)
        loss.set(ylabel="training loss\n(nats per token)")
        if loss.get_legend_handles_labels()[1]:
            legend_below(figure, loss)
        norm.set(ylabel="gradient norm", xlabel="optimizer step")
        figure.suptitle(f"Training loss of {_name(run)}")
        figure.align_ylabels()
    return figure


def plot_run_saturation(run_dir: Path | str) -> Figure:
    """Saturated share of each kind of tensor by step, and by layer. Raises UserError for a BF16 run."""
    run = open_run(run_dir)
    rows = quantized_rows(run)
    if rows is None:
        raise UserError(f"{run.experiment} does not quantize, so there is no saturation to draw")
    kinds, tints = quantized_kinds(run.info), (color(run.experiment), COLOR_OF[None], GRADIENT_COLOR)
    shares = rows.groupby(["kind", "step"])["saturated"].mean() * 100
    by_layer = rows.groupby(["kind", "layer"])["saturated"].mean() * 100
    with style():
        figure, axes = new_figure(1, 2, 3.1, sharey=True, width_ratios=[3, 2])
        for index, (kind, tint) in enumerate(zip(kinds, tints, strict=False)):
            axes[0][0].plot(shares[kind].index, shares[kind], color=tint, label=f"{kind}s")
            shift = (index - (len(kinds) - 1) / 2) * 0.8 / len(kinds)
            heights = by_layer[kind].reindex(LAYERS)
            axes[0][1].bar(np.arange(len(LAYERS)) + shift, heights, 0.76 / len(kinds), color=tint)
        _mark_switch(axes[0][0], run)
        axes[0][0].set(xlabel="optimizer step", ylabel="saturated tensors (%)", ylim=(-2, 102))
        axes[0][1].set_xticks(range(3), [layer.removesuffix("_proj") for layer in LAYERS])
        axes[0][1].set(xlabel="layer, all steps")
        axes[0][1].grid(axis="x", visible=False)
        legend_below(figure, axes[0][0])
        figure.suptitle(f"Saturation of {_name(run)}")
    return figure
