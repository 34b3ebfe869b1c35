"""A4 and A5: what the window counts, what happens to it at the switch, and the warm-up by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure

from pangu_hif8.audit_parts import Pair, across, cells, not_there, outcome_row, reasons, there
from pangu_hif8.comparisons import (
    ape_interval,
    compare_accuracy,
    compare_heldout,
    saturation_rows,
    share_interval,
)
from pangu_hif8.metrics import Interval
from pangu_hif8.page_facts import Facts
from pangu_hif8.page_plots import GREY, PALETTE, Dot, draw_dots
from pangu_hif8.plot_style import new_figure, style
from pangu_hif8.results import ProfileResults
from pangu_hif8.sections import Section


@dataclass(frozen=True)
class Question:
    """Runs that differ in how they scale, each with its baseline; the first is the one of our own reading."""

    id: str
    title: str
    says: str
    does: str
    runs: tuple[Pair, ...]
    beside: tuple[Pair, ...]  # whose outcomes are compared directly
    figure_title: str
    note: str = ""  # how to read its numbers


WINDOW = Question(
    "A4",
    "What does the window count?",
    "A maximum over the last steps, which the warm-up has filled.",
    "The window counts forward passes, and so micro-batches; it is emptied when the warm-up ends; each rank "
    "keeps an amax of its own.",
    (
        ("A4-E8-steps", "A4-E6"),
        ("A4-E8-micro", "A4-E6"),
        ("A4-E8-emptied", "A4-E6"),
        ("A4-E8-published", "A4-E6"),
    ),
    (
        ("A4-E8-micro", "A4-E8-steps"),
        ("A4-E8-emptied", "A4-E8-steps"),
        ("A4-E8-published", "A4-E8-steps"),
    ),
    "Max-window by what its window counts",
    " A pair counts as saturated if any micro-batch of the step exceeds the estimate that it was scaled by.",
)
WARMUP = Question(
    "A5",
    "The warm-up by itself",
    "The warm-up fills the history and steadies the weights; max-window needs it.",
    "It was never run alone: the only published run with a warm-up has max-window and the low rate too.",
    (("E8", "E6"), ("A5-E8-no-warmup", "E6"), ("E7", "E6"), ("A5-E7-warmup", "E6")),
    (("A5-E8-no-warmup", "E8"), ("A5-E7-warmup", "E7")),
    "With the warm-up and without it, over the steps that all quantize",
)


def build_window(results: ProfileResults) -> Section:
    """The window in steps and kept, in micro-batches, emptied, and as published."""
    return _build(results, WINDOW)


def build_warmup(results: ProfileResults) -> Section:
    """Max-window without the warm-up, most-recent with it."""
    return _build(results, WARMUP)


def _build(results: ProfileResults, asked: Question) -> Section:
    own = [name for name, _ in asked.runs if name.startswith(asked.id)]
    needed = list(dict.fromkeys(name for pair in (*asked.runs, *asked.beside) for name in pair))
    found = there(results, asked.runs)
    if not any(name in own for name, _ in found):
        return Section(asked.id, asked.title, asked.says, asked.does, missing=reasons(results, own))
    facts, first = Facts(), first_common_step(results, [name for name, _ in found])
    start = facts.value("from_step", first, "d")
    scales = [_scale_text(results, facts, pair, first) for pair in found]
    finding = f"Saturated input (tensor, step) pairs from step {start} on: {'; '.join(scales)}"
    outcomes = [_outcome(results, facts, pair) for pair in there(results, asked.beside)]
    pairs = [*found, *there(results, asked.beside)]
    return Section(
        id=asked.id,
        title=asked.title,
        says=asked.says,
        does=asked.does,
        measured=f"{finding}.{asked.note}{_ranks(results, asked, found)}{_joined(outcomes)}"
        f"{across(results, pairs)}{not_there(results, needed)}",
        numbers=facts.numbers,
        table=pd.DataFrame([_row(results, pair, first) for pair in pairs]),
        figure=_figure(results, asked, found, first),
        finding=f"{finding}.",
    )


def _ranks(results: ProfileResults, asked: Question, found: Sequence[Pair]) -> str:
    """That an amax per rank can't show with one rank."""
    sizes = {run.info.get("world_size") for name, _ in found for run in results.of(name)}
    text = " All runs had one rank, so that an amax of each rank's own makes no difference here."
    return text if asked is WINDOW and sizes == {1} else ""


def _joined(outcomes: Sequence[str]) -> str:
    return f" Held-out loss and accuracy, {'; '.join(outcomes)}." if outcomes else ""


def first_common_step(results: ProfileResults, names: Sequence[str]) -> int:
    """The first step that all of the runs quantize."""
    return max(int(run.info["quantized_from_step"]) for name in names for run in results.of(name))


def saturation_from(results: ProfileResults, name: str, first: int, kind: str = "input") -> Interval:
    """Saturated share of a run's tensors from a step on; over steps and seeds."""
    rows = saturation_rows(results, name, kind)
    return share_interval(rows[rows["step"] >= first])


def ape_from(results: ProfileResults, pair: Pair, first: int) -> Interval:
    """APE in percent over the quantized steps from a step on; over steps and seeds."""
    return ape_interval(results, *pair, quantized=True, from_step=first)


def _scale_text(results: ProfileResults, facts: Facts, pair: Pair, first: int) -> str:
    share = facts.share(f"{pair[0]}_saturated", saturation_from(results, pair[0], first))
    ape = facts.percent(f"{pair[0]}_ape", ape_from(results, pair, first), 3)
    return f"{pair[0]} {share}, APE {ape}"


def _outcome(results: ProfileResults, facts: Facts, pair: Pair) -> str:
    loss = facts.nats(f"{pair[0]}_heldout", compare_heldout(results, *pair, "same_domain"))
    score = facts.points(f"{pair[0]}_accuracy", compare_accuracy(results, *pair).difference)
    return f"{pair[0]} minus {pair[1]}: {loss}, {score}"


def _row(results: ProfileResults, pair: Pair, first: int) -> dict[str, object]:
    row = outcome_row(results, *pair)
    is_baseline = results.of(pair[1])[0].saturation is None
    row |= cells("saturated_pct", saturation_from(results, pair[0], first).scaled(100))
    return row | cells("ape_pct", ape_from(results, pair, first) if is_baseline else None)


def _figure(results: ProfileResults, asked: Question, found: list[Pair], first: int) -> Figure:
    with style():
        figure, axes = new_figure(1, 3, 0.28 * len(found) + 1.6)
        tints = [GREY if not name.startswith(asked.id) else PALETTE[0] for name, _ in found]
        if asked is WINDOW:
            tints = [GREY if name == found[0][0] else PALETTE[0] for name, _ in found]
        shares = [saturation_from(results, name, first).scaled(100) for name, _ in found]
        apes = [ape_from(results, pair, first) for pair in found]
        losses = [compare_heldout(results, *pair, "same_domain") for pair in found]
        words = ("Saturated inputs", "APE", "Held-out loss"), ("pairs (%)", "%", "minus baseline's (nats)")
        for panel, intervals, title, unit in zip(axes[0], (shares, apes, losses), *words, strict=True):
            rows = zip(found, intervals, tints, strict=True)
            draw_dots(panel, [Dot(name.split("-", 1)[-1], i, tint) for (name, _), i, tint in rows])
            panel.set(title=title, xlabel=unit)
        for panel in axes[0][1:]:
            panel.set_yticklabels([])
        figure.suptitle(asked.figure_title)
    return figure
