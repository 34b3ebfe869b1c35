"""Sentences over the points of a sweep: which lie below the paper's own setting, which above."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pangu_hif8.beyond_points import Point, others
from pangu_hif8.judgement import NOT_RESOLVABLE
from pangu_hif8.metrics import Interval
from pangu_hif8.page_facts import UNITS, Facts

Measure = Callable[[str], Interval]
BETTER, WORSE, SAME, OPEN = "lower", "higher", "the same", NOT_RESOLVABLE


def side(difference: Interval) -> str:
    """On which side of zero a difference lies with its whole interval."""
    if difference.low == difference.high == 0:
        return SAME
    if difference.high < 0:
        return BETTER
    return WORSE if difference.low > 0 else OPEN


def compared(
    facts: Facts, points: Sequence[Point], what: str, than: str, measure: Measure, unit: str = "nats"
) -> str:
    """One sentence on `what` of every point against `than`, by the side that each difference lies on.

    `measure` gives a point's difference; `unit` is nats or points.
    """
    found = {point: measure(point.name) for point in points}
    words = {point: _noted(facts, point, what, than, i, unit) for point, i in found.items()}
    parts = []
    for where in (BETTER, WORSE):
        listed = [f"{p.title} ({words[p]})" for p, i in found.items() if side(i) == where]
        parts += [f"is {where} than {than}'s with {', '.join(listed)}"] if listed else []
    same = [point.title for point, i in found.items() if side(i) == SAME]
    parts += [f"does not change with {', '.join(same)}"] if same else []
    open_ = {point: i for point, i in found.items() if side(i) == OPEN}
    parts += [_open(facts, open_, f"{what} against {than}", unit)] if open_ else []
    return f"{what[0].upper()}{what[1:]} {'; it '.join(parts)}."


def _noted(facts: Facts, point: Point, what: str, than: str, difference: Interval, unit: str) -> str:
    name = f"{point.name} {what} minus {than}".replace(" ", "_")
    return facts.points(name, difference) if unit == "points" else facts.nats(name, difference)


def _open(facts: Facts, found: dict[Point, Interval], what: str, unit: str) -> str:
    largest = max(interval.smallest_resolvable for interval in found.values())
    listed = ", ".join(point.title for point in found)
    if not math.isfinite(largest):
        return f"is {OPEN} with {listed}"
    size = UNITS[unit][1].format(facts_value(facts, f"{what} would show {unit}", largest))
    return f"is {OPEN} with {listed} (a difference of {size} would have shown in each)"


def facts_value(facts: Facts, name: str, value: float) -> float:
    """Note a plain value and give it back."""
    facts.value(name.replace(" ", "_"), value)
    return value


def counted(facts: Facts, points: Sequence[Point], what: str, than: str, measure: Measure) -> str:
    """The short form: how many settings lie on which side."""
    sides = [side(measure(point.name)) for point in others(points)]
    counts = {where: sides.count(where) for where in (BETTER, WORSE, SAME, OPEN)}
    for where, number in counts.items():
        facts.value(f"settings_{where}".replace(" ", "_"), number)
    facts.value("settings_tried", len(sides))
    return (
        f"Of {len(sides)} other settings, {counts[BETTER]} have a lower {what} than {than} and "
        f"{counts[WORSE]} a higher one; {f'{counts[SAME]} have the same; ' if counts[SAME] else ''}"
        f"{counts[OPEN]} are {OPEN}."
    )


def listed(points: Sequence[Point], text: Callable[[Point], str]) -> str:
    """Every point with a text of it."""
    return ", ".join(f"{text(point)} with {point.title}" for point in points)
