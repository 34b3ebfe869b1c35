"""From the rounds of profile_step.py to profile.csv, profile.md and the figure.

A part's time is the median over the rounds, with its interval (step_table.py); the difference between the two
kinds of step is formed within a round.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from step_table import interval

from pangu_hif8.page_plots import GREY, PALETTE
from pangu_hif8.plot_style import new_figure, style

PRODUCTS, FORWARD, BACKWARD = "forward: quantized linears' products", "forward: the rest", "backward"
OPTIMIZER, REST = "clipping and AdamW", "rest"
COMMON = (PRODUCTS, FORWARD, BACKWARD, OPTIMIZER, REST)
QDQ = {"input": "look-ups of inputs", "weight": "look-ups of weights"}
AMAX = {"input": "amax of inputs", "weight": "amax of weights"}
RECORD, LAYER = "recording, scale of a tensor", "layers' Python, freed copies"
STRAIGHT, STRAIGHT_BACK = "straight-through, forward", "straight-through, backward"
UPDATE = "mode, update of all scales"
ADDED = (*QDQ.values(), *AMAX.values(), RECORD, LAYER, STRAIGHT, STRAIGHT_BACK, UPDATE)
STEP, SUM, DIFFERENCE = "whole step", "added parts together", "step less the plain step"
ELSEWHERE = "parts that both have, less those of the plain step"
HOOKS, MARKS = "the timer's hooks, beside the step", "the timer's marks, within the parts (estimate)"
COLUMNS = "size part group ms low_ms high_ms share_percent plain_ms num_rounds num_threads".split()
TITLES = {
    "smoke": "smoke profile's model and batch",
    "laptop": "SmolLM2-135M's architecture, the laptop profile's batch",
    "block": "one block of the paper's shape",
}
STACKED = (*COMMON[:-1], SUM, REST)
COLORS = (*PALETTE[3:5], PALETTE[7], PALETTE[9], PALETTE[8], GREY)
SIZE_COLORS = {"smoke": PALETTE[2], "laptop": PALETTE[1], "block": PALETTE[0]}

Part = str | Mapping[str, str]  # a part's name, or one by what is quantized: "input" or "weight"
Mark = tuple[Part | None, float]  # what begins, or None where what began last ends; seconds
WEIGHT = "weight"  # the mark of `HiF8Linear._weight`
Round = Mapping[str, float]  # seconds by part, which together are the step


@dataclass(frozen=True)
class Profiled:
    """The rounds of a plain and a quantized step; `num_calls`: of parts, in a quantized one."""

    plain: Sequence[Round]
    quantized: Sequence[Round]
    num_threads: int
    num_calls: int


def exclusive(marks: Sequence[Mark]) -> dict[str, float]:
    """Seconds by part: what a part calls counts for the part called, not for its caller."""
    seconds: dict[str, float] = {}
    running: list[str] = []
    since = 0.0
    for part, now in marks:
        if running:
            seconds[running[-1]] = seconds.get(running[-1], 0.0) + now - since
        since = now
        if part is None:
            running.pop()
        else:
            running.append(part if isinstance(part, str) else part[WEIGHT if WEIGHT in running else "input"])
    own = seconds.pop(WEIGHT, 0.0)
    return seconds | {LAYER: seconds.get(LAYER, 0.0) + own}


def as_csv(found: Mapping[str, Profiled], seconds_of_a_call: float) -> str:
    """One line a size and part, then the sums. `seconds_of_a_call`: what the timer takes for one."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for size, one in found.items():
        head = {"size": size, "num_rounds": len(one.quantized), "num_threads": one.num_threads}
        writer.writerows(head | row for row in _rows(one, seconds_of_a_call))
    return sink.getvalue()


def _rows(one: Profiled, seconds_of_a_call: float) -> list[dict[str, str]]:
    whole = statistics.median(map(_sum_of(*COMMON, *ADDED), one.quantized))
    rows = [_row(part, "both", one, whole, _sum_of(part), plain=True) for part in COMMON]
    rows += [_row(part, "added", one, whole, _sum_of(part)) for part in ADDED]
    rows += [
        _row(STEP, "total", one, whole, _sum_of(*COMMON, *ADDED), plain=True),
        _row(SUM, "total", one, whole, _sum_of(*ADDED)),
        _difference_row(DIFFERENCE, one, whole, _sum_of(*COMMON, *ADDED)),
        _difference_row(ELSEWHERE, one, whole, _sum_of(*COMMON)),
    ]
    rows += [_row(HOOKS, "timer", one, whole, _sum_of(HOOKS))]
    marks = one.num_calls * seconds_of_a_call
    return [
        *rows,
        {"part": MARKS, "group": "timer", "ms": _ms(marks), "share_percent": _percent(marks, whole)},
    ]


def _sum_of(*parts: str) -> Callable[[Round], float]:
    """A round's seconds in those parts; one that did not run took none."""
    return lambda found: sum(found.get(part, 0.0) for part in parts)


def _row(
    part: str, group: str, one: Profiled, whole: float, seconds: Callable[[Round], float], plain: bool = False
) -> dict[str, str]:
    row = _cells(part, group, [seconds(found) for found in one.quantized], whole)
    beside = _ms(statistics.median(map(seconds, one.plain))) if plain else ""
    return row | {"plain_ms": beside}


def _difference_row(
    part: str, one: Profiled, whole: float, seconds: Callable[[Round], float]
) -> dict[str, str]:
    pairs = zip(one.quantized, one.plain, strict=True)
    return _cells(part, "total", [seconds(quantized) - seconds(plain) for quantized, plain in pairs], whole)


def _cells(part: str, group: str, values: Sequence[float], whole: float) -> dict[str, str]:
    low, high = interval(values)
    middle = statistics.median(values)
    times = {"ms": _ms(middle), "low_ms": _ms(low), "high_ms": _ms(high)}
    return {"part": part, "group": group} | times | {"share_percent": _percent(middle, whole)}


def _percent(seconds: float, whole: float) -> str:
    return f"{100 * seconds / whole:.2f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4f}"


# ---- the page --------------------------------------------------------------------------------------------


def as_markdown(table: str, head: Sequence[str]) -> str:
    """The text of the CSV as a table for each size, with what adds most."""
    lines = ["# Where a QAT step's time goes", "", *head, ""]
    lines += ["![Parts of a max-window step, and what quantization adds, by size](profile.png)"]
    for size, rows in by_size(table).items():
        lines += ["", f"## {size}: {TITLES[size]}", "", *_counts(rows), ""]
        lines += ["| part | ms | interval | % of the step | plain step, ms |", "|---" * 5 + "|"]
        lines += [_line(row) for row in rows]
        lines += ["", _verdict(rows)]
    return "\n".join(lines) + "\n"


def by_size(table: str) -> dict[str, list[dict[str, str]]]:
    """The CSV's rows under their size."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader(io.StringIO(table)):
        found.setdefault(row["size"], []).append(row)
    return found


def most_costly(rows: Sequence[Mapping[str, str]]) -> Mapping[str, str]:
    """The added part that takes most."""
    return max((row for row in rows if row["group"] == "added"), key=lambda row: float(row["ms"]))


def _counts(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [f"{rows[0]['num_rounds']} rounds, {rows[0]['num_threads']} thread(s)."]


def _line(row: Mapping[str, str]) -> str:
    name = {"added": "+ " + row["part"], "total": f"**{row['part']}**"}.get(row["group"], row["part"])
    between = f"{_short(row['low_ms'])} to {_short(row['high_ms'])}" if row["low_ms"] else ""
    cells = [name, _short(row["ms"]), between, row["share_percent"], _short(row["plain_ms"])]
    return "| " + " | ".join(cells) + " |"


def _short(text: str) -> str:
    """Milliseconds to four digits, as far as there are so many."""
    if not text:
        return ""
    value = float(text)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 0.1 else f"{value:.4f}"


def _verdict(rows: Sequence[Mapping[str, str]]) -> str:
    total, largest = {row["part"]: row for row in rows}, most_costly(rows)
    added, difference, elsewhere = (_short(total[name]["ms"]) for name in (SUM, DIFFERENCE, ELSEWHERE))
    share = 100 * float(largest["ms"]) / float(total[SUM]["ms"])
    return (
        f"What adds most: {largest['part']}, {_short(largest['ms'])} ms, {share:.0f}% of all added parts. "
        f"These are {added} ms together. The step less the plain one: {difference} ms "
        f"({_short(total[DIFFERENCE]['low_ms'])} to {_short(total[DIFFERENCE]['high_ms'])}); the parts that "
        f"both have, the same way: {elsewhere} ms."
    )


# ---- the figure ------------------------------------------------------------------------------------------


def draw(table: str) -> Figure:
    """The whole step by size, stacked; under it each added part by size. Both in percent of the step."""
    sizes = by_size(table)
    with style():
        rows = len(sizes) + 1
        figure, axes = new_figure(3, 1, 6.2, height_ratios=(rows, 1.6, 2.2 * rows))
        whole, between, added = axes[:, 0]
        _draw_stacked(whole, sizes)
        between.axis("off")
        between.legend(*whole.get_legend_handles_labels(), loc="center right", ncols=2, frameon=False)
        _draw_added(added, sizes)
    return figure


def _draw_stacked(panel: Axes, sizes: Mapping[str, list[dict[str, str]]]) -> None:
    start = dict.fromkeys(sizes, 0.0)
    for part, color in zip(STACKED, COLORS, strict=True):
        shares = {size: _shares(rows)[part] for size, rows in sizes.items()}
        look = {"color": color, "label": "added by quantization" if part == SUM else part, "lw": 0}
        panel.barh(list(sizes), list(shares.values()), 0.7, list(start.values()), **look)
        start = {size: start[size] + share for size, share in shares.items()}
    panel.invert_yaxis()
    panel.set(xlim=(0, 100), xlabel="share of the step (%)", title="Where the time of a max-window step goes")
    panel.grid(False, axis="y")


def _draw_added(panel: Axes, sizes: Mapping[str, list[dict[str, str]]]) -> None:
    height = 0.8 / len(sizes)
    for number, (size, rows) in enumerate(sizes.items()):
        places = [row + (number - (len(sizes) - 1) / 2) * height for row in range(len(ADDED))]
        values = [_shares(rows)[part] for part in ADDED]
        panel.barh(places, values, height, color=SIZE_COLORS[size], label=size, lw=0)
    panel.set_yticks(range(len(ADDED)), ADDED)
    panel.set_ylim(len(ADDED) - 0.4, -0.6)
    panel.set(xlabel="share of the step (%)", title="What quantization adds to a step")
    panel.grid(False, axis="y")
    panel.legend(loc="lower right", title="size", frameon=False)


def _shares(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    return {row["part"]: float(row["share_percent"]) for row in rows}
