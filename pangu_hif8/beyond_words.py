"""Sentences over the points of a sweep: which lie below the paper's own setting, which above."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pangu_hif8.beyond_points import Point, others
from pangu_hif8.judgement import NOT_RESOLVABLE
from pangu_hif8.metrics import LEVEL, Interval
from pangu_hif8.page_facts import UNITS, Facts

Measure = Callable[[str], Interval]
BETTER, WORSE, SAME, OPEN = "lower", "higher", "the same", NOT_RESOLVABLE
SIDES = (BETTER, WORSE, SAME, OPEN)


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


def counted(facts: Facts, points: Sequence[Point], than: str, measures: Mapping[str, Measure]) -> str:
    """The short form: how many settings lie on which side of `than`, by each of some measures."""
    parts = []
    for number, (what, measure) in enumerate(measures.items()):
        sides = [side(measure(point.name)) for point in others(points)]
        for where in SIDES:
            facts.value(f"settings_{where}_{number}".replace(" ", "_"), sides.count(where))
        parts.append(f"{what}: {_tally(sides)}")
    num = facts.value("settings_tried", len(others(points)), "d")
    return f"{num} other settings against {than}, by {'; by '.join(parts)}."


def _tally(sides: Sequence[str]) -> str:
    """How many lie where, in words."""
    return ", ".join(f"{sides.count(where)} {where}" for where in SIDES if where in sides)


def counts_of(found: Mapping[str, Sequence[Interval]]) -> tuple[str, dict[str, Any]]:
    """All sweeps' settings by side, for each measure, and what chance alone would give; words and numbers."""
    numbers: dict[str, Any] = {"level_pct": 100 * LEVEL}
    parts, num = [], 0
    for what, intervals in found.items():
        sides = [side(interval) for interval in intervals]
        num += len(sides) - sides.count(SAME)
        numbers |= {what: {where: sides.count(where) for where in SIDES}, "settings": len(sides)}
        parts.append(f"{what}: {_tally(sides)}")
    numbers |= {"intervals": num, "by_chance": (1 - LEVEL) * num}
    text = (
        f"{numbers['settings']} settings against E5 or E8, from which each differs in one thing, by "
        f"{'; by '.join(parts)}. If nothing differed, of these {num} intervals of {100 * LEVEL:g}% "
        f"{numbers['by_chance']:.1f} would be expected to lie on one side of zero all the same."
    )
    return text, numbers


def listed(points: Sequence[Point], text: Callable[[Point], str]) -> str:
    """Every point with a text of it."""
    return ", ".join(f"{text(point)} with {point.title}" for point in points)
