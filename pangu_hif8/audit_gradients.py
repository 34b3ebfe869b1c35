"""A6: the incoming gradient quantized too, as in the published code."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pangu_hif8.audit_parts import Pair, across, cells, not_there, outcome_row, reasons, there, with_prefix
from pangu_hif8.comparisons import (
    ape_interval,
    compare_accuracy,
    compare_heldout,
    late_loss_difference,
    saturation_interval,
)
from pangu_hif8.metrics import Interval
from pangu_hif8.page_facts import Facts
from pangu_hif8.page_plots import GREY, PALETTE, Dot, draw_dots
from pangu_hif8.plot_style import new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import GRADIENT, each_once
from pangu_hif8.sampled import sampled_rows
from pangu_hif8.sections import Section

TITLE = "Gradients quantized too: at what cost?"
SAYS = "Weights and activations are quantized (W8A8); the gradient passes straight through."
DOES = "The gradient that comes into a layer is quantized as well, with the same target."


def build_gradients(results: ProfileResults) -> Section:
    """Runs with quantized gradients against those without."""
    variants = with_prefix(results, "A6-")
    names = [v.id for v in variants]
    pairs = there(results, [(v.id, v.base) for v in variants])
    if not pairs:
        return Section("A6", TITLE, SAYS, DOES, missing=reasons(results, names))
    facts = Facts()
    costs = [_cost(results, facts, pair) for pair in pairs]
    measured = f"{' '.join(costs)} {' '.join(_gradients(results, facts, name) for name, _ in pairs)}"
    return Section(
        id="A6",
        title=TITLE,
        says=SAYS,
        does=DOES,
        measured=measured + across(results, pairs) + not_there(results, names),
        numbers=facts.numbers,
        table=pd.DataFrame([_row(results, pair) for pair in pairs]),
        figure=_figure(results, pairs),
        finding=costs[-1],
    )


def _cost(results: ProfileResults, facts: Facts, pair: Pair) -> str:
    late = facts.nats(f"{pair[0]}_late_loss", late_loss_difference(results, *pair))
    loss = facts.nats(f"{pair[0]}_heldout", compare_heldout(results, *pair, "same_domain"))
    score = facts.points(f"{pair[0]}_accuracy", compare_accuracy(results, *pair).difference)
    return (
        f"{pair[0]} minus {pair[1]}: training loss over the last quarter {late}, held-out loss {loss}, "
        f"accuracy {score}."
    )


def _gradients(results: ProfileResults, facts: Facts, name: str) -> str:
    share = facts.share(f"{name}_gradient_saturated", saturation_interval(results, name, GRADIENT))
    inputs = facts.share(f"{name}_input_saturated", saturation_interval(results, name, "input"))
    sqnr = facts.value(f"{name}_gradient_sqnr_db", _sqnr(results, name, GRADIENT), ".1f", " dB")
    own = facts.value(f"{name}_input_sqnr_db", _sqnr(results, name, "input"), ".1f", " dB")
    return (
        f"{name}: {share} of gradient (tensor, step) pairs saturate, {inputs} of the inputs'; the median "
        f"SQNR is {sqnr} for gradients, {own} for inputs."
    )


def _sqnr(results: ProfileResults, name: str, kind: str) -> float:
    rows = sampled_rows(results, name)
    rows = each_once(rows) if len(rows) else rows
    values = rows.loc[rows["kind"] == kind, "sqnr_db"] if len(rows) else pd.Series(dtype=float)
    finite = values[np.isfinite(values)]
    return float(finite.median()) if len(finite) else float("nan")


def _row(results: ProfileResults, pair: Pair) -> dict[str, object]:
    row = outcome_row(results, *pair) | cells("late_loss_nats", late_loss_difference(results, *pair))
    share = saturation_interval(results, pair[0], GRADIENT).scaled(100)
    return row | cells("gradients_saturated_pct", share) | {"sqnr_db": _sqnr(results, pair[0], GRADIENT)}


def _figure(results: ProfileResults, pairs: list[Pair]) -> Figure:
    with style():
        figure, axes = new_figure(1, 3, 0.3 * 3 * len(pairs) + 1.3)
        shares = [
            Dot(f"{name.split('-')[1]}: {kind}s", saturation_interval(results, name, kind).scaled(100), color)
            for name, _ in pairs
            for kind, color in (("input", GREY), ("weight", GREY), (GRADIENT, PALETTE[3]))
        ]
        draw_dots(axes[0][0], shares)
        axes[0][0].set(title="Saturated", xlabel="pairs (%)")
        losses = [_losses(results, pair) for pair in pairs]
        draw_dots(axes[0][1], [dot for found in losses for dot in found])
        axes[0][1].set(title="Cost in loss", xlabel="difference (nats)")
        apes = [_apes(results, pair) for pair in pairs]
        draw_dots(axes[0][2], [dot for found in apes for dot in found])
        axes[0][2].set(title="APE", xlabel="%")
        figure.suptitle("Gradients quantized (red) and not (grey)")
    return figure


def _losses(results: ProfileResults, pair: Pair) -> list[Dot]:
    name, found = pair[1], {"train": late_loss_difference(results, *pair)}
    domains = {"held-out": "same_domain", "second": "second_domain"}
    found |= {word: compare_heldout(results, *pair, domain) for word, domain in domains.items()}
    return [Dot(f"{name}: {word}", interval, PALETTE[3]) for word, interval in found.items()]


def _apes(results: ProfileResults, pair: Pair) -> list[Dot]:
    baseline = {v.id: v.against for v in with_prefix(results, "A6-")}[pair[0]]
    found: list[tuple[str, Interval]] = [
        (name, ape_interval(results, name, baseline, quantized=True))
        for name, _ in there(results, [(pair[1], baseline), (pair[0], baseline)])
    ]
    return [
        Dot(f"{pair[1]}: {'yes' if name == pair[0] else 'no'}", i, PALETTE[3] if name == pair[0] else GREY)
        for name, i in found
    ]
