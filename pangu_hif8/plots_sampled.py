"""The figure of the quantization error: SQNR by block, from the steps on which runs sampled it."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pangu_hif8.plot_style import color, label, legend_below, new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import GRADIENT, KINDS, LAYERS
from pangu_hif8.sampled import sqnr_by_block

KIND_LABEL = {"input": "inputs", "weight": "weights", GRADIENT: "gradients"}


def plot_sampled_sqnr(results: ProfileResults) -> Figure | None:
    """Median SQNR by block: a row of panels for each kind of tensor, a column for each kind of layer."""
    medians = sqnr_by_block(results)
    kinds = [kind for kind in (*KINDS, GRADIENT) if kind in set(medians["kind"])]
    if not kinds:
        return None
    with style():
        figure, axes = new_figure(len(kinds), len(LAYERS), 1.45 * len(kinds) + 1.1, sharex=True, sharey="row")
        for row, kind in zip(axes, kinds, strict=True):
            for panel, layer in zip(row, LAYERS, strict=True):
                _lines(panel, medians[(medians["kind"] == kind) & (medians["layer"] == layer)])
            row[0].set_ylabel(f"{KIND_LABEL[kind]}\nSQNR (dB)")
        _name_columns(axes)
        legend_below(figure, axes.flat)
        figure.suptitle("Quantization SQNR by block, higher is better (dashed: low learning rate)")
    return figure


def _lines(panel: Axes, rows: pd.DataFrame) -> None:
    for name, found in rows.groupby("experiment", sort=False):
        by_block = found.sort_values("block")
        line = "--" if name in ("E7", "E8") else "-"
        panel.plot(
            by_block["block"], by_block["sqnr_db"], line, color=color(str(name)), label=label(str(name))
        )
    panel.set_visible(len(rows) > 0)


def _name_columns(axes: Any) -> None:
    for layer, panel in zip(LAYERS, axes[0], strict=True):
        panel.set_title(layer)
    for panel in axes[-1]:
        panel.set_xlabel("block")
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
