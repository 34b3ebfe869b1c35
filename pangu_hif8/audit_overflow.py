"""A3: what saturation costs. A dose response on the untouched model, and training without clipping."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pangu_hif8.audit_parts import Pair, across, cells, not_there, outcome_rows, reasons, there, with_prefix
from pangu_hif8.comparisons import ape_interval, compare_accuracy, compare_heldout
from pangu_hif8.dose_files import (
    EXACT,
    FACTORS,
    LAYER_GROUPS,
    OVERFLOWS,
    Dose,
    Point,
    dose_task,
    points,
    read_dose,
)
from pangu_hif8.errors import UserError
from pangu_hif8.hif8_codes import MAX
from pangu_hif8.metrics import Interval, paired_loss_difference
from pangu_hif8.page_facts import Facts
from pangu_hif8.page_plots import PALETTE, Dot, draw_dots, draw_series
from pangu_hif8.plot_style import legend_below, new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import DOMAINS, Unusable
from pangu_hif8.sections import Section

TITLE = "Saturation: what does it cost, clipped and not?"
SAYS = "An estimate that is too small saturates: values beyond it are clipped, and the model suffers."
DOES = (
    "It does not clip: amax is mapped to a target far below the format's largest value "
    f"({MAX:g}), so that a tensor beyond its estimate keeps its large values at fewer mantissa bits."
)
LAYER_TEXT = {"all": "all inputs", "gate_up": "gate and up", "down": "down"}
WORD = {"saturate": "clipped", "taper": "tapered"}


def build_overflow(results: ProfileResults) -> Section:
    """Held-out loss and accuracy by how far amax is underestimated; most-recent without clipping."""
    dose, why = _dose(results)
    variants = with_prefix(results, "A3-")
    pairs = there(results, [(v.id, other) for v in variants for other in (v.base, v.against)])
    if dose is None and not pairs:
        missing = f"dose response: {why}; {reasons(results, [v.id for v in variants])}"
        return Section("A3", TITLE, SAYS, DOES, missing=missing)
    facts = Facts()
    if dose:
        facts.numbers |= {"dose_csv_sha256": dose.sha256, "dose_seconds": dose.seconds}
    measured = _dose_text(results, dose, facts) if dose else f"No dose response: {why}."
    table = [_dose_row(dose, point) for point in points()] if dose else []
    return Section(
        id="A3",
        title=TITLE,
        says=SAYS,
        does=DOES,
        measured=" ".join([measured, *(_trained(results, facts, v.id, v.base) for v in variants)]).strip()
        + across(results, pairs)
        + not_there(results, [v.id for v in variants]),
        numbers=facts.numbers,
        table=pd.DataFrame([*table, *outcome_rows(results, pairs)]),
        figure=_figure(results, dose, pairs),
        finding=_finding(dose, facts) if dose else measured,
    )


def _dose(results: ProfileResults) -> tuple[Dose | None, str]:
    try:
        return read_dose(results), ""
    except (Unusable, UserError, OSError, ValueError, KeyError) as reason:
        return None, str(reason)


def _dose_row(dose: Dose, point: Point) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": f"untouched, amax x {point.factor:g}",
        "what": f"{LAYER_TEXT[point.layers]}, {WORD[point.overflow]}",
        "minus": f"amax x {EXACT.factor:g}",
    }
    if point == EXACT:
        return row | {"what": "amax as it is", "minus": ""}
    for name, domain in zip(("heldout_nats", "second_domain_nats"), DOMAINS, strict=True):
        row |= cells(name, dose.loss(point, domain))
    row |= cells("accuracy_points", dose.accuracy(point))
    return row | cells("answer_nll_nats", dose.answer_nll(point))


def _dose_text(results: ProfileResults, dose: Dose, facts: Facts) -> str:
    parts = [_exact(results, dose, facts), _threshold(dose, facts)]
    parts += [_layers(dose, facts), _accuracy(results, dose, facts)]
    return " ".join(part for part in parts if part)


def _exact(results: ProfileResults, dose: Dose, facts: Facts) -> str:
    """What quantization alone costs, with nothing beyond its estimate."""
    if not results.of("E0"):
        return ""
    heldout = results.of("E0")[0].heldout.astype({"sequence": str})
    untouched = heldout[heldout["domain"] == "same_domain"].sort_values("sequence")["loss"]
    found = paired_loss_difference(dose.values(EXACT, "same_domain"), untouched)
    text = facts.nats("dose_exact_heldout", found)
    return f"On the untouched model, quantization with the exact amax changes the held-out loss by {text}."


def _threshold(dose: Dose, facts: Facts) -> str:
    """The mildest underestimate from which on the cost can be told from zero, clipped and tapered."""
    parts = []
    for overflow in OVERFLOWS:
        hurting = _hurting(dose, overflow)
        if hurting:
            factor = facts.value(f"dose_{overflow}_from_factor", hurting[-1], "g")
            loss = facts.nats(f"dose_{overflow}_at_{hurting[-1]}", _all(dose, hurting[-1], overflow))
            parts.append(f"{WORD[overflow]} from a factor of {factor} on ({loss})")
        else:
            parts.append(f"{WORD[overflow]} not even at the smallest factor")
    return f"With the inputs' amax underestimated, the loss rises: {', '.join(parts)}."


def _hurting(dose: Dose, overflow: str) -> list[float]:
    """The factors whose cost can be told from zero, the smallest first, up to one whose can't."""
    return list(takewhile(lambda factor: _all(dose, factor, overflow).low > 0, reversed(FACTORS[1:])))


def _all(dose: Dose, factor: float, overflow: str, layers: str = "all") -> Interval:
    return dose.loss(Point(factor, overflow, layers), "same_domain")


def _layers(dose: Dose, facts: Facts) -> str:
    least = FACTORS[-1]
    factor, parts = facts.value("dose_least_factor", least, "g"), []
    for layers in LAYER_GROUPS:
        for overflow in OVERFLOWS:
            text = facts.nats(f"dose_{layers}_{overflow}_least", _all(dose, least, overflow, layers))
            parts.append(f"{LAYER_TEXT[layers]} {WORD[overflow]} {text}")
    return f"At a factor of {factor}: {', '.join(parts)}."


def _accuracy(results: ProfileResults, dose: Dose, facts: Facts) -> str:
    parts = [
        f"{WORD[o]} {facts.points(f'dose_{o}_least', dose.accuracy(Point(FACTORS[-1], o, 'all')))}"
        for o in OVERFLOWS
    ]
    num = facts.value("dose_num_items", len(dose.values(EXACT)), "d")
    task = dose_task(results.settings).name
    return f"Accuracy there ({num} items of {task}, the benchmark with the most): {', '.join(parts)}."


def _finding(dose: Dose, facts: Facts) -> str:
    parts = [f"{WORD[o]} {facts.nats(f'dose_all_{o}_least', _all(dose, FACTORS[-1], o))}" for o in OVERFLOWS]
    return f"Held-out loss with all inputs' amax taken as {FACTORS[-1]:g} of itself: {', '.join(parts)}."


def _trained(results: ProfileResults, facts: Facts, name: str, base: str) -> str:
    if not results.pairs(name, base):
        return ""
    loss = facts.nats(f"{name}_heldout", compare_heldout(results, name, base, "same_domain"))
    score = facts.points(f"{name}_accuracy", compare_accuracy(results, name, base).difference)
    apes = [
        f"{run} {facts.percent(f'{run}_ape', ape_interval(results, run, baseline, quantized=True), 3)}"
        for run, baseline in there(results, _with_baseline(results, name, base))
    ]
    words = f" (APE: {', '.join(apes)})" if apes else ""
    return f"Trained without clipping, {name} minus {base}: {loss}, {score}{words}."


def _with_baseline(results: ProfileResults, name: str, base: str) -> list[Pair]:
    against = {v.id: v.against for v in with_prefix(results, "A3-")}[name]
    return [(name, against), (base, against)]


def _figure(results: ProfileResults, dose: Dose | None, pairs: list[Pair]) -> Figure | None:
    with style():
        if dose is None:
            figure, axes = new_figure(1, 2, 2.6)
            _trained_panels(axes[0], results, pairs)
            figure.suptitle("Most-recent without clipping")
            return figure
        figure, axes = new_figure(2 if pairs else 1, 2, 6.0 if pairs else 3.6)
        _dose_panels(axes[0], dose)
        legend_below(figure, axes[0][0], columns=3)
        if pairs:
            _trained_panels(axes[1], results, pairs)
        figure.suptitle("Underestimated amaxes on the untouched model; training without clipping")
    return figure


def _dose_panels(axes: Any, dose: Dose) -> None:
    for color, layers in zip((PALETTE[0], PALETTE[1], PALETTE[2]), LAYER_GROUPS, strict=True):
        for overflow, line, marker in (("saturate", "-", "o"), ("taper", "--", "s")):
            shown = [Point(factor, overflow, layers) for factor in FACTORS[1:]]
            look = {"color": color, "ls": line, "marker": marker}
            look["label"] = f"{LAYER_TEXT[layers]}, {WORD[overflow]}"
            draw_series(axes[0], FACTORS[1:], [dose.loss(p, "same_domain") for p in shown], **look)
            draw_series(axes[1], FACTORS[1:], [dose.accuracy(p) for p in shown], **look)
    axes[0].set(title="Held-out loss", ylabel="minus exact amax's (nats)")
    axes[1].set(title="Accuracy", ylabel="minus exact amax's (points)")
    for panel in axes:
        _factor_axis(panel)


def _factor_axis(axes: Axes) -> None:
    axes.axhline(0, color="0.3", lw=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_xticks(FACTORS[1:], [f"{factor:g}" for factor in FACTORS[1:]])
    axes.minorticks_off()
    axes.invert_xaxis()
    axes.set_xlabel("amax taken times")


def _trained_panels(axes: Any, results: ProfileResults, pairs: list[Pair]) -> None:
    labels = [f"{name} minus {other}" for name, other in pairs]
    losses = [compare_heldout(results, *pair, "same_domain") for pair in pairs]
    scores = [compare_accuracy(results, *pair).difference for pair in pairs]
    draw_dots(axes[0], [Dot(label, i) for label, i in zip(labels, losses, strict=True)])
    draw_dots(axes[1], [Dot(label, i) for label, i in zip(labels, scores, strict=True)])
    axes[0].set(title="Held-out loss, trained", xlabel="difference (nats)")
    axes[1].set(title="Accuracy, trained", xlabel="difference (points)", yticklabels=[])
