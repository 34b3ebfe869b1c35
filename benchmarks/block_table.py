"""From measured steps of a block to block_time.csv and block_time.md: ratios within rounds, memory, goals."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import step_table
from step_table import CODES, INTERVAL, Ratio, interval

PLAIN, EVAL_PLAIN, EVAL = "plain", "evaluation: plain", "evaluation: frozen weights"
THAN = {CODES: "max_window", EVAL: EVAL_PLAIN, EVAL_PLAIN: EVAL_PLAIN}  # any other: the plain step
GOALS = step_table.GOALS | {EVAL: 1.05}
CODES_SHARE = 0.30  # of float32's bytes, at most, for the quantized linears' inputs
NUM_BLOCKS = 3  # of which memory is counted: one alone has its peak in what passes by
COLUMNS = ["step", "than", "median_ms", "ratio", "low", "high", "goal", "reached", "num_rounds"]
MEMORY = ["inputs_bytes", "kept_bytes", "copies_bytes", "peak_bytes"]
TITLES = ["inputs of gate, up, down", "all that is kept", "quantized copies of weights", "peak"]
MEANING = (
    f"Of {NUM_BLOCKS} such blocks, in MiB, and as a share of the plain step's. "
    "Kept: for backward, without the quantized copies. Copies: held from step to step. Peak: the process's "
    "largest resident size above that with the parameters and AdamW's state alone, which is taken before "
    "anything is quantized, so that gradients and quantized copies are in it for every kind of step."
)

Rounds = Mapping[str, Sequence[float | None]]  # seconds by kind of step; None: no turn in that round


@dataclass(frozen=True)
class Kept:
    """Bytes kept for backward (of the quantized linears' inputs, of all), of the weights' quantized copies,
    and of the process's peak above parameters and optimizer state."""

    inputs_bytes: int
    kept_bytes: int
    copies_bytes: int
    peak_bytes: int


def ratio(times: Rounds, name: str) -> Ratio:
    """A kind of step beside its baseline, in the rounds in which both had a turn."""
    than = THAN.get(name, PLAIN)
    turns = zip(times[name], times[than], strict=True)
    values = [a / b for a, b in turns if a is not None and b is not None]
    return Ratio(name, than, statistics.median(values), *interval(values), GOALS.get(name))


def as_csv(times: Rounds, kept: Mapping[str, Kept]) -> str:
    """One line a kind of step."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow([*COLUMNS, *MEMORY])
    for name in times:
        memory = list(asdict(kept[name]).values()) if name in kept else [""] * len(MEMORY)
        writer.writerow([*_time_cells(times, name), *memory])
    return sink.getvalue()


def _time_cells(times: Rounds, name: str) -> list[str]:
    found, turns = ratio(times, name), [t for t in times[name] if t is not None]
    numbers = [f"{value:.4f}" for value in (found.median, found.low, found.high)]
    goal = "" if found.goal is None else f"{found.goal:g}"
    median = f"{1e3 * statistics.median(turns):.1f}"
    return [name, found.than, median, *numbers, goal, found.reached, str(len(turns))]


def as_markdown(table: str, head: Sequence[str]) -> str:
    """The text of the CSV as two tables: time, memory."""
    rows = list(csv.DictReader(io.StringIO(table)))
    lines = ["# One block of the paper's shape", "", *head, "", "## Time", ""]
    lines += [f"Medians of ratios within a round. {INTERVAL}", ""]
    lines += ["| step | beside | median, ms | ratio | interval | rounds | at most | reached |"]
    lines += ["|---" * 8 + "|"]
    for row in rows:
        ends = f"{float(row['low']):.3f} to {float(row['high']):.3f}"
        cells = [row["step"], row["than"], row["median_ms"], f"{float(row['ratio']):.3f}", ends]
        lines.append("| " + " | ".join([*cells, row["num_rounds"], row["goal"], row["reached"]]) + " |")
    return "\n".join([*lines, *_memory([row for row in rows if row["kept_bytes"]])]) + "\n"


def _memory(rows: Sequence[Mapping[str, str]]) -> list[str]:
    plain = next(row for row in rows if row["step"] == PLAIN)
    lines = ["", "## Memory", "", MEANING, ""]
    lines += ["| step | " + " | ".join(TITLES) + " |", "|---" * (len(TITLES) + 1) + "|"]
    for row in rows:
        lines.append("| " + " | ".join([row["step"], *(_share(row, plain, name) for name in MEMORY)]) + " |")
    (codes,) = (row for row in rows if row["step"] == CODES)
    share = int(codes["inputs_bytes"]) / int(plain["inputs_bytes"])
    reached = "yes" if share <= CODES_SHARE else "no"
    return [*lines, "", f"Inputs as codes at most {CODES_SHARE:g} times float32's: {reached} ({share:.4f})."]


def _share(row: Mapping[str, str], plain: Mapping[str, str], name: str) -> str:
    mine, other = int(row[name]), int(plain[name])
    return f"{mine / 2**20:.1f}" + (f" ({mine / other:.2f})" if other else "")
