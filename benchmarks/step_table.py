"""From measured steps to step_time.csv and step_time.md: ratios within rounds, intervals, goals.

A round times each kind of step. A ratio is formed within each round, so that a slow minute of the machine
meets both of its sides; the median over the rounds is kept, and an interval of it.
"""

from __future__ import annotations

import csv
import io
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OFF, CYCLE = "off", 20  # a run samples every 20th step (TrainConfig.telemetry_every)
DELAYED = ("most_recent", "exponential_smoothing", "max_window")
SAMPLED, JOURNAL = "max_window, a sampled step", "journal of a step"
CODES = "max_window, inputs kept as codes"
# A step without telemetry, at most; codes: beside max_window, the cost up to which they could be a default.
GOALS = {"max_window": 1.10, "current": 1.15, CODES: 1.03}
COLUMNS = "size what than num_threads median_ms min_ms num_rounds ratio low high goal reached".split()
NUM_DRAWS, NUM_FEW = 2000, 8
BOTH = " of two steps, the second ones in reversed order"
INTERVAL = f"Interval: a bootstrap's 95% of {NUM_FEW} rounds or more; of fewer the least and the greatest."
DISTURBED = 1.25  # times the fastest plain steps: slower ones did not have the machine to themselves

Rounds = dict[str, list[float]]  # seconds by kind of step, one a round


@dataclass(frozen=True)
class Ratio:
    """The median of `what` over `than` and its interval; `goal`: what it is to be at most."""

    what: str
    than: str
    median: float
    low: float
    high: float
    goal: float | None = None

    @property
    def reached(self) -> str:
        """ "yes" or "no"; with a mark where the interval lies on both sides of the goal."""
        if self.goal is None:
            return ""
        answer = "yes" if self.median <= self.goal else "no"
        return answer if (self.low <= self.goal) == (self.high <= self.goal) else f"{answer}, within noise"


def with_telemetry(name: str) -> str:
    """The kind of step that `name` is on average in a run that keeps its telemetry."""
    return f"{name}, telemetry on"


def derived(rounds: Rounds) -> Rounds:
    """Mean steps of a cycle: the journal's cost always, that of a sampled step once in a cycle."""
    extra = [
        (sampled - plain) / CYCLE + journal
        for sampled, plain, journal in zip(
            rounds[SAMPLED], rounds["max_window"], rounds[JOURNAL], strict=True
        )
    ]
    return {
        with_telemetry(name): [step + more for step, more in zip(rounds[name], extra, strict=True)]
        for name in (*DELAYED, "current")
    }


def ratios(rounds: Rounds) -> list[Ratio]:
    """Every kind of step beside its baseline, then the goals."""
    every = rounds | derived(rounds)
    found = [_ratio(every, name, baseline(name), GOALS.get(name)) for name in rounds if name != OFF]
    found += [_ratio(every, with_telemetry(name), OFF, 1.15) for name in DELAYED]
    found += [_ratio(every, with_telemetry("current"), OFF, 1.20)]
    return [*found, _ratio(every, with_telemetry("max_window"), "max_window", 1.01)]


def baseline(name: str) -> str:
    """The unquantized step under the same conditions, which a name's last part says; of codes, max_window."""
    if name == CODES:
        return "max_window"
    kind, _, condition = name.partition(" + ")
    return f"{OFF} + {condition}" if condition and kind != OFF else OFF


def _ratio(rounds: Mapping[str, list[float]], what: str, than: str, goal: float | None = None) -> Ratio:
    values = [a / b for a, b in zip(rounds[what], rounds[than], strict=True)]
    return Ratio(what, than, statistics.median(values), *interval(values), goal)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The median's 95% bootstrap interval; of few values, where that would say too much, least and greatest.

    The same values give the same ends.
    """
    if len(values) < NUM_FEW:
        return min(values), max(values)
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(NUM_DRAWS))
    return medians[int(0.025 * NUM_DRAWS)], medians[int(0.975 * NUM_DRAWS) - 1]


def steadiness(plain: Sequence[float]) -> str:
    """How far the plain steps of all rounds lie apart (of many the middle eight tenths), and what follows.

    Neighbours on the same processor slow a virtual machine down that sees nobody's work but its own.
    """
    tenths = statistics.quantiles(plain, n=10) if len(plain) >= NUM_FEW else sorted(plain)
    found = f"Plain steps took {tenths[0]:.3g} to {tenths[-1]:.3g} s."
    if tenths[-1] <= DISTURBED * tenths[0]:
        return found
    return f"{found} So far apart, something disturbed this machine: better measure again."


def as_csv(measured: Mapping[str, tuple[int, Rounds]]) -> str:
    """One line a ratio. `measured`: by size, the number of threads and the rounds."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    for size, (num_threads, rounds) in measured.items():
        every = rounds | derived(rounds)
        for r in [Ratio(OFF, OFF, 1.0, 1.0, 1.0), *ratios(rounds)]:
            times = [f"{f(every[r.what]) * 1e3:.3f}" for f in (statistics.median, min)]
            numbers = [f"{value:.4f}" for value in (r.median, r.low, r.high)]
            goal = "" if r.goal is None else f"{r.goal:g}"
            writer.writerow(
                [size, r.what, r.than, num_threads, *times, len(rounds[OFF]), *numbers, goal, r.reached]
            )
    return sink.getvalue()


def as_markdown(table: str, head: Sequence[str]) -> str:
    """The text of the CSV as two tables, goals first."""
    rows = list(csv.DictReader(io.StringIO(table)))
    lines = ["# Cost of a training step", "", *head, "", "## Goals", ""]
    lines += ["| size | step | beside | ratio | interval | at most | reached |", "|---" * 7 + "|"]
    for row in (row for row in rows if row["goal"]):
        cells = [row["size"], row["what"], row["than"], _number(row["ratio"]), _interval(row)]
        lines.append("| " + " | ".join([*cells, row["goal"], row["reached"]]) + " |")
    lines += ["", "## Every kind of step", ""]
    lines += ["| size | step | beside | median, ms | ratio | interval |", "|---" * 6 + "|"]
    for row in (row for row in rows if not row["goal"]):
        cells = [row["size"], row["what"], row["than"], row["median_ms"], _number(row["ratio"])]
        lines.append("| " + " | ".join([*cells, _interval(row)]) + " |")
    return "\n".join(lines) + "\n"


def _number(text: str) -> str:
    return f"{float(text):.3f}"


def _interval(row: Mapping[str, str]) -> str:
    return f"{_number(row['low'])} to {_number(row['high'])}"
