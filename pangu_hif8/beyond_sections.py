"""The sections of the page: each sweep from its runs, and one table over all.

A section without the runs of the paper's own setting, or without any other, says so; a setting without a run
is named and the others are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pangu_hif8.beyond_points import NO_SPREAD, SECOND, TRAINING_TEXT, Point, Sweep, ends, others, points_of
from pangu_hif8.beyond_words import Measure, compared, counted, counts_of, listed, side
from pangu_hif8.comparisons import compare_accuracy, compare_answer_nll, compare_heldout
from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.metrics import Interval
from pangu_hif8.page_facts import Facts
from pangu_hif8.results import ProfileResults
from pangu_hif8.sections import Section
from pangu_hif8.sensitivity import Sensitivity
from pangu_hif8.variants import Variant

QUALITY = "held-out loss\nminus E6's (nats)"
DOMAIN_NAME = {TRAINING_TEXT: "held-out loss on the training text", SECOND: "loss on the second domain"}


@dataclass(frozen=True)
class BeyondResults(ProfileResults):
    """A profile's runs with those of the sweeps, the list of these, and the blocks' sensitivity."""

    variants: tuple[Variant, ...] = ()
    sensitivity: Sensitivity | None = None

    def input_hashes(self) -> dict[str, str]:
        """The runs' files, and what the sensitivity comes from."""
        own = {"beyond/sensitivity.csv": self.sensitivity.file_hash} if self.sensitivity else {}
        return super().input_hashes() | own


@dataclass(frozen=True)
class Part:
    """What a section is made of: the sweep and its points, and the facts noted so far."""

    results: BeyondResults
    sweep: Sweep
    points: list[Point]
    facts: Facts

    def of(self, measure: Callable[[ProfileResults, str], Any]) -> list[Any]:
        """A measure of every point."""
        return [measure(self.results, point.name) for point in self.points]

    def heldout(self, name: str, domain: str, than: str) -> Interval:
        """Held-out loss minus another run's, nats; of a run minus itself no difference."""
        return _ZERO if name == than else compare_heldout(self.results, name, than, domain)

    def nll(self, name: str, than: str) -> Interval:
        """The true answers' negative log-likelihood minus another run's, nats an item."""
        return _ZERO if name == than else compare_answer_nll(self.results, name, than)

    def accuracy(self, name: str, than: str) -> Interval:
        """Accuracy minus another run's, points."""
        return _ZERO if name == than else compare_accuracy(self.results, name, than).difference

    def quality(self, domain: str = TRAINING_TEXT) -> list[Interval]:
        """Every point's held-out loss minus the unquantized run's."""
        return [self.heldout(point.name, domain, self.sweep.baseline) for point in self.points]

    def against_own(self, domain: str) -> str:
        """A sentence on the held-out loss of every other setting against the paper's own."""
        return self.sentence(DOMAIN_NAME[domain], lambda n, than: self.heldout(n, domain, than))

    def sentence(self, what: str, measure: Callable[[str, str], Interval], unit: str = "nats") -> str:
        """A sentence on any measure of every other setting against the paper's own."""
        own = self.sweep.reference
        return compared(self.facts, others(self.points), what, own, lambda name: measure(name, own), unit)


_ZERO = Interval(0.0, 0.0, 0.0, 0.0)
Told = tuple[str, str, pd.DataFrame, Figure]
Tell = Callable[[Part], Told]


def build(sweep: Sweep, tell: Tell, results: ProfileResults) -> Section:
    """One sweep's section: `tell` gives what the text says, what was measured, columns, and the figure."""
    assert isinstance(results, BeyondResults)
    empty = Section(sweep.id, sweep.title)
    if lacking := results.lacks(sweep.reference, sweep.baseline):
        return replace(empty, missing="; ".join(lacking))
    try:
        part = part_of(results, sweep)
        if len(part.points) < 2:
            return replace(empty, missing="none of its settings has a usable run")
        says, measured, columns, figure = tell(part)
    except UserError as error:
        return replace(empty, missing=str(error))
    short = counted(part.facts, part.points, sweep.reference, _judged(part))
    table = pd.concat([rows_of(part), columns], axis=1)
    return replace(
        empty,
        says=says,
        measured=measured + _not_run(results, sweep),
        numbers=part.facts.numbers,
        table=table,
        figure=figure,
        finding=short,
    )


def part_of(results: BeyondResults, sweep: Sweep) -> Part:
    """A sweep's points, their settings among the facts."""
    points, facts = points_of(results, sweep, results.variants), Facts()
    facts.numbers["settings"] = {p.name: abs(p.setting) for p in points if abs(p.setting) < NO_SPREAD}
    model, train = results.settings.model, results.settings.train
    facts.numbers["own"] = [model.num_first_hp_blocks, model.num_last_hp_blocks, train.bf16_warmup_steps]
    return Part(results, sweep, points, facts)


def _judged(part: Part) -> dict[str, Measure]:
    """What settings are counted by, by its words: the main domain first; F1 is about forgetting answers."""
    own, first = part.sweep.reference, main_domain(part.sweep)
    found: dict[str, Measure] = {DOMAIN_NAME[first]: lambda name: part.heldout(name, first, own)}
    if first == SECOND:
        return found | {"the true answers' negative log-likelihood": lambda name: part.nll(name, own)}
    return found | {DOMAIN_NAME[SECOND]: lambda name: part.heldout(name, SECOND, own)}


def main_domain(sweep: Sweep) -> str:
    """Where a sweep's gain is looked for: forgetting shows in the second domain."""
    return SECOND if sweep.id == "F1" else TRAINING_TEXT


def _not_run(results: BeyondResults, sweep: Sweep) -> str:
    lost = [v.id for v in results.variants if v.id.startswith(f"{sweep.id}-") and not results.of(v.id)]
    return f" Without a usable run: {', '.join(lost)}." if lost else ""


def rows_of(part: Part) -> pd.DataFrame:
    """What every sweep's table begins with: one row a setting."""
    return pd.DataFrame([_row(part, point) for point in part.points])


def _row(part: Part, point: Point) -> dict[str, Any]:
    sweep, name = part.sweep, point.name
    own = None if point.is_own else part.heldout(name, main_domain(sweep), sweep.reference)
    return {
        "setting": f"{point.title} ({point.name} itself)" if point.is_own else point.title,
        "run": name,
        "seeds": len(part.results.of(name)),
        **_ends_nats(
            f"training_text_minus_{sweep.baseline}", part.heldout(name, TRAINING_TEXT, sweep.baseline)
        ),
        **_ends_nats(f"second_domain_minus_{sweep.baseline}", part.heldout(name, SECOND, sweep.baseline)),
        **ends(f"accuracy_points_minus_{sweep.baseline}", part.accuracy(name, sweep.baseline)),
        **_ends_nats(f"answer_nll_minus_{sweep.baseline}", part.nll(name, sweep.baseline)),
        **_ends_nats(f"{main_domain(sweep)}_minus_{sweep.reference}", own),
        f"against {sweep.reference}": "" if own is None else side(own),
    }


def _ends_nats(name: str, interval: Interval | None) -> dict[str, Any]:
    return ends(f"{name}_nats", interval)


def paper() -> Any:
    """The paper's own settings, as its profile has them."""
    return load_profile("paper")


def costs_table(name: str, costs: list[float], **more: list[Any]) -> pd.DataFrame:
    """Columns of plain values, one row a setting."""
    return pd.DataFrame({name: costs} | more)


def intervals_table(name: str, intervals: list[Interval | None]) -> pd.DataFrame:
    """Columns name, name_low, name_high, one row a setting."""
    return pd.DataFrame([ends(name, interval) for interval in intervals])


# ---- the table over all ----------------------------------------------------------------------------------


def all_sweeps(sweeps: Sequence[Sweep], results: ProfileResults) -> Section:
    """One row a setting of every sweep: what is changed, quality with its interval, cost."""
    from pangu_hif8.beyond_plots import forest

    assert isinstance(results, BeyondResults)
    empty = Section("all", "Every setting of every sweep: quality against cost")
    usable = [s for s in sweeps if not results.lacks(s.reference, s.baseline)]
    try:
        parts = [part for sweep in usable if len((part := part_of(results, sweep)).points) > 1]
        if not parts:
            return replace(empty, missing="no sweep has usable runs")
        table = pd.concat([_overview(part) for part in parts], ignore_index=True)
    except UserError as error:
        return replace(empty, missing=str(error))
    rows = [
        (
            p.sweep.id,
            point.title,
            [p.heldout(point.name, d, p.sweep.reference) for d in (TRAINING_TEXT, SECOND)],
        )
        for p in parts
        for point in others(p.points)
    ]
    names = [DOMAIN_NAME[TRAINING_TEXT], DOMAIN_NAME[SECOND]]
    measured, numbers = counts_of({n: [row[2][i] for row in rows] for i, n in enumerate(names)})
    figure = forest(rows, ["training text", "second domain"])
    return replace(empty, measured=measured, numbers=numbers, table=table, figure=figure)


def _overview(part: Part) -> pd.DataFrame:
    costs = part.of(part.sweep.cost)
    rows = []
    for point, cost in zip(part.points, costs, strict=True):
        own = None if point.is_own else part.heldout(point.name, TRAINING_TEXT, part.sweep.reference)
        row = {"sweep": part.sweep.id, "setting": point.title, "run": point.name}
        quality = part.heldout(point.name, TRAINING_TEXT, part.sweep.baseline)
        row |= _ends_nats("training_text_minus_unquantized", quality)
        quality = part.heldout(point.name, SECOND, part.sweep.baseline)
        row |= _ends_nats("second_domain_minus_unquantized", quality)
        row |= ends("accuracy_points_minus_unquantized", part.accuracy(point.name, part.sweep.baseline))
        row |= {"training text against E5, E8": "(itself)" if own is None else side(own)}
        rows.append(row | {"cost": cost, "cost is": part.sweep.cost_name})
    return pd.DataFrame(rows)


def told(part: Part, what: str, values: Sequence[Interval], form: str) -> str:
    """A percentage of every point, noted: "saturation is 3.1% [..] with ..."."""
    words = {
        point: part.facts.percent(f"{point.name} {what}".replace(" ", "_"), value, int(form))
        for point, value in zip(part.points, values, strict=True)
    }
    return f"{what[0].upper()}{what[1:]}: {listed(part.points, lambda point: words[point])}."
