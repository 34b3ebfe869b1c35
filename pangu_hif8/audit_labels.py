"""A1: labels shifted twice, as the published data pipeline and its model do together."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pangu_hif8 import paper
from pangu_hif8.audit_parts import Pair, across, not_there, outcome_rows, rate_of, reasons, there, with_prefix
from pangu_hif8.comparisons import compare_accuracy, compare_heldout, mean_loss, taken_steps
from pangu_hif8.config import load_profile
from pangu_hif8.metrics import Interval
from pangu_hif8.page_facts import Facts
from pangu_hif8.page_plots import GREY, PALETTE, Dot, draw_dots
from pangu_hif8.plan_workload import shape_of
from pangu_hif8.plot_style import legend_below, new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.sections import Section

RUNS = ("E1", "A1-E1", "E6", "A1-E6")
LAST_PUBLISHED = 100  # steps whose mean is the end of the published curve
SAYS = "Next-token training; the lower accuracy at the higher learning rate is forgetting."


def build_labels(results: ProfileResults) -> Section:
    """Training loss on its own labels; next-token loss and accuracy, at both learning rates."""
    title = "Labels shifted twice: what was trained?"
    pairs = there(results, [(v.id, v.against) for v in with_prefix(results, "A1-")])
    if not pairs:
        return Section("A1", title, SAYS, _does(), missing=reasons(results, ["A1-E1", "A1-E6"]))
    facts, names = Facts(), [name for name in RUNS if results.of(name)]
    heldout = _heldout(results, facts, names)
    measured = f"{_training(results, facts, names)} {heldout}".strip()
    gaps = _gaps(results, facts)
    untrained = there(results, [(name, "E0") for name in names])
    return Section(
        id="A1",
        title=title,
        says=SAYS,
        does=_does(),
        measured=f"{measured} {gaps}{across(results, [*untrained, *pairs])}{not_there(results, RUNS)}",
        numbers=facts.numbers,
        table=pd.DataFrame(outcome_rows(results, [*untrained, *pairs])),
        figure=_figure(results, names),
        finding=f"{heldout} {gaps}".strip(),
    )


def _does() -> str:
    losses = paper.loss_table()["loss_bf16"]
    uniform = math.log(shape_of(load_profile("paper").model).vocab_size)
    return (
        "The data pipeline shifts the labels by one and the model shifts them again, so that it trains on "
        f"the token after next. Its loss starts at {losses.iloc[0]:.2f} nats (a uniform guess over the "
        f"vocabulary is {uniform:.2f}); the mean of its last {LAST_PUBLISHED} steps is "
        f"{losses.tail(LAST_PUBLISHED).mean():.2f}."
    )


def _training(results: ProfileResults, facts: Facts, names: list[str]) -> str:
    parts = []
    for name in names:
        first = float(pd.Series([_losses(run)["loss"].iloc[0] for run in results.of(name)]).mean())
        last = mean_loss(results, name)
        start, end = facts.value(f"{name}_first_loss", first), facts.value(f"{name}_late_loss", last)
        parts.append(f"{name} from {start} to {end}")
    text = "Training loss on each run's own labels, first step and mean of the last quarter, in nats: "
    return f"{text}{', '.join(parts)}."


def _losses(run: Any) -> pd.DataFrame:
    return taken_steps(run.steps)


def _heldout(results: ProfileResults, facts: Facts, names: list[str]) -> str:
    found = there(results, [(name, "E0") for name in names])
    parts = [
        f"{name} {facts.nats(f'{name}_heldout', compare_heldout(results, name, 'E0', 'same_domain'))}"
        for name, _ in found
    ]
    text = f"Next-token loss on held-out text, minus the untouched model's: {', '.join(parts)}."
    return text if parts else ""


def _gaps(results: ProfileResults, facts: Facts) -> str:
    """The learning rate's effect on accuracy, with correct labels and with shifted ones."""
    words = {("E1", "E6"): "with labels shifted once", ("A1-E1", "A1-E6"): "with labels shifted twice"}
    parts = [
        f"{facts.points('_minus_'.join(pair), compare_accuracy(results, *pair).difference)} {words[pair]}"
        for pair in there(results, words)
    ]
    published = facts.value("published_gap_points", -paper.forgetting_points(), "+.1f")
    rates = f"{rate_of(results, 'E1')} minus {rate_of(results, 'E6')}"
    text = (
        f"Accuracy at {rates}: {', '.join(parts)}; published: {published} points (mean of four benchmarks)."
    )
    return text if parts else ""


def _figure(results: ProfileResults, names: list[str]) -> Figure:
    with style():
        figure, axes = new_figure(2, 2, 5.4, height_ratios=[3, 2])
        for name in names:
            _curve(axes[0][0], results, name)
        axes[0][0].set(title="Training loss here", xlabel="optimizer step", ylabel="nats per token")
        _published(axes[0][1])
        pairs: list[Pair] = there(results, [(name, "E0") for name in names])
        heldout = [_dot(name, compare_heldout(results, name, "E0", "same_domain")) for name, _ in pairs]
        accuracy = [_dot(name, compare_accuracy(results, name, "E0").difference) for name, _ in pairs]
        draw_dots(axes[1][0], heldout)
        axes[1][0].set(title="Held-out next-token loss", xlabel="minus E0's (nats)")
        draw_dots(axes[1][1], accuracy)
        axes[1][1].set(title="Accuracy", xlabel="minus E0's (points)", yticklabels=[])
        legend_below(figure, [axes[0][0], axes[0][1]], columns=2)
        figure.suptitle("Labels shifted once (grey) and twice (orange)")
    return figure


def _look(name: str) -> tuple[Any, str, str]:
    """Colour by labels; line and marker by learning rate."""
    color = PALETTE[1] if name.startswith("A1") else GREY
    return (color, "-", "o") if name.endswith("E1") else (color, "--", "s")


def _dot(name: str, interval: Interval) -> Dot:
    color, _, marker = _look(name)
    return Dot(name, interval, color, marker)


def _curve(axes: Axes, results: ProfileResults, name: str) -> None:
    steps = pd.concat([_losses(run) for run in results.of(name)])
    by_step = steps.groupby("step")["loss"].mean()
    color, line, _ = _look(name)
    times = "twice" if name.startswith("A1") else "once"
    label = f"{name}: {times}, {rate_of(results, name[-2:])}"
    axes.plot(by_step.index, by_step, color=color, ls=line, label=label)


def _published(axes: Axes) -> None:
    table = paper.loss_table()
    vocabulary = math.log(shape_of(load_profile("paper").model).vocab_size)
    axes.axhline(vocabulary, color="black", ls=":", lw=1, label="uniform over its vocabulary")
    axes.plot(table["step"], table["loss_bf16"], color=PALETTE[0], lw=0.9, label="published, BF16, lr 1e-5")
    axes.set(xscale="log", title="Published training loss", xlabel="optimizer step", ylim=(0, None))
