"""From measured steps of a block to block_time.csv and block_time.md: ratios within rounds, memory, goals."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from step_table import Ratio, interval

PLAIN, EVAL_PLAIN, EVAL = "plain", "evaluation: plain", "evaluation: frozen weights"
CODES = "max_window, inputs kept as codes"
# Codes: max_window's goal, and the 3% of time up to which they could be a default.
GOALS = {"max_window": 1.10, "current": 1.15, EVAL: 1.05, CODES: 1.13}
CODES_SHARE = 0.30  # of float32's bytes, at most, for the quantized linears' inputs
COLUMNS = ["step", "than", "median_ms", "ratio", "low", "high", "goal", "reached"]
MEMORY = ["inputs_bytes", "kept_bytes", "peak_bytes"]


@dataclass(frozen=True)
class Kept:
    """Bytes kept for backward (of the quantized linears' inputs, of all), and the rise of the peak."""

    inputs_bytes: int
    kept_bytes: int
    peak_bytes: int


def ratio(times: Mapping[str, list[float]], name: str) -> Ratio:
    """A kind of step beside the plain one of the same purpose."""
    than = EVAL_PLAIN if name.startswith("evaluation") else PLAIN
    values = [a / b for a, b in zip(times[name], times[than], strict=True)]
    return Ratio(name, than, statistics.median(values), *interval(values), GOALS.get(name))


def as_csv(times: Mapping[str, list[float]], kept: Mapping[str, Kept]) -> str:
    """One line a kind of step."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([*COLUMNS, *MEMORY])
    for name in times:
        found = ratio(times, name)
        numbers = [f"{value:.4f}" for value in (found.median, found.low, found.high)]
        goal = "" if found.goal is None else f"{found.goal:g}"
        memory = list(asdict(kept[name]).values()) if name in kept else [""] * len(MEMORY)
        median = f"{1e3 * statistics.median(times[name]):.1f}"
        writer.writerow([name, found.than, median, *numbers, goal, found.reached, *memory])
    return sink.getvalue()


def as_markdown(table: str, head: Sequence[str]) -> str:
    """The text of the CSV as two tables: time, memory."""
    rows = list(csv.DictReader(io.StringIO(table)))
    lines = ["# One block of the paper's shape", "", *head, "", "## Time", ""]
    lines += ["Medians of ratios within a round; 95%: bootstrap over the rounds.", ""]
    lines += ["| step | beside | median, ms | ratio | 95% | at most | reached |", "|---" * 7 + "|"]
    for row in rows:
        ends = f"{float(row['low']):.3f} to {float(row['high']):.3f}"
        cells = [row["step"], row["than"], row["median_ms"], f"{float(row['ratio']):.3f}", ends]
        lines.append("| " + " | ".join([*cells, row["goal"], row["reached"]]) + " |")
    return "\n".join([*lines, *_memory([row for row in rows if row["kept_bytes"]])]) + "\n"


def _memory(rows: Sequence[Mapping[str, str]]) -> list[str]:
    plain = next(row for row in rows if row["step"] == PLAIN)
    lines = ["", "## Memory", ""]
    lines += [
        "Of 4 such blocks, in MiB, and as a share of the plain step's; block_memory.py says what counts.",
        "",
    ]
    lines += [
        "| step | inputs of gate, up, down | all that is kept | rise of the process's peak |",
        "|---" * 4 + "|",
    ]
    for row in rows:
        lines.append("| " + " | ".join([row["step"], *(_share(row, plain, name) for name in MEMORY)]) + " |")
    (codes,) = (row for row in rows if row["step"] == CODES)
    share = int(codes["inputs_bytes"]) / int(plain["inputs_bytes"])
    reached = "yes" if share <= CODES_SHARE else "no"
    return [*lines, "", f"Inputs as codes at most {CODES_SHARE:g} times float32's: {reached} ({share:.4f})."]


def _share(row: Mapping[str, str], plain: Mapping[str, str], name: str) -> str:
    mine, other = int(row[name]), int(plain[name])
    return f"{mine / 2**20:.1f} ({mine / other:.2f})"
