"""The goals for the number format's speed beside what was measured: from format_speed.csv to a table.

Each goal is judged like for like: both into memory that is there, or both into a new tensor. A goal is a
ratio of two medians of one run, in each of its settings (dtype and number of threads).
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

INTO = ", into a tensor that is there"
COPY, CLONE = "copy" + INTO.removeprefix(","), "clone"
MEMORY = ("there", "new")


@dataclass(frozen=True)
class Goal:
    """The median of `what` is at most `limit` times that of `than`, or (`faster`) that over `limit`.

    `what` and `than` name a row of the CSV for memory that is there and one for a new tensor.
    """

    text: str
    what: tuple[str, str]
    than: tuple[str, str]
    limit: float
    faster: bool = False

    def ratio(self, memory: int, medians: dict[str, float]) -> float | None:
        """What the limit is for, in one setting; None where something did not run."""
        what, than = medians.get(self.what[memory]), medians.get(self.than[memory])
        if what is None or than is None:
            return None
        return than / what if self.faster else what / than

    def is_reached(self, ratio: float) -> bool:
        """Whether a ratio is on the right side of the limit."""
        return ratio >= self.limit if self.faster else ratio <= self.limit


def _at_most(limit: float, name: str, text: str) -> Goal:
    return Goal(f"{text}: at most {limit:g} copies", (name + INTO, name), (COPY, CLONE), limit)


def _faster_than(peer: str) -> Goal:
    ours = ("HiF8, compiled" + INTO, "HiF8, compiled")
    return Goal(f"compiled: 20 times faster than {peer}", ours, (f"other HiF8: {peer}",) * 2, 20, faster=True)


GOALS = (
    _at_most(2, "HiF8, compiled", "compiled"),
    _at_most(2.5, "HiF8, compiled, with amax", "compiled, with amax"),
    _at_most(8, "HiF8, eager", "eager"),
    _faster_than("written out in torch ops"),
    _faster_than("en_dtypes in NumPy"),
)

Medians = dict[str, dict[str, float]]  # by setting and name


def goals_table(table: str) -> list[str]:
    """Markdown lines for the text of format_speed.csv; a dash where something did not run."""
    medians = read_medians(table)
    lines = ["## Goals", "", "Ratios of medians, result into memory that is there or into a new tensor.", ""]
    lines += ["| goal | memory | " + " | ".join(medians) + " | reached |", "|---" * (len(medians) + 3) + "|"]
    return lines + [_row(goal, index, medians) for goal in GOALS for index in range(len(MEMORY))]


def read_medians(table: str) -> Medians:
    """Milliseconds by setting and name, in the order of the table."""
    medians: Medians = {}
    for row in csv.DictReader(io.StringIO(table)):
        plural = "" if row["num_threads"] == "1" else "s"
        setting = f"{row['dtype']}, {row['num_threads']} thread{plural}"
        if row["median_ms"]:
            medians.setdefault(setting, {})[row["what"]] = float(row["median_ms"])
    return medians


def _row(goal: Goal, memory: int, medians: Medians) -> str:
    ratios = [goal.ratio(memory, by_name) for by_name in medians.values()]
    reached = [goal.is_reached(r) for r in ratios if r is not None]
    cells = ["-" if r is None else f"{r:.1f}" if r >= 10 else f"{r:.2f}" for r in ratios]
    count = f"{sum(reached)} of {len(reached)}" if reached else "-"
    return f"| {goal.text} | {MEMORY[memory]} | " + " | ".join(cells) + f" | {count} |"
