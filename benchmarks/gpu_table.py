"""From what was measured on a GPU to gpu.csv and gpu.md: bandwidths, ratios within rounds, memory, goals.

Every row that is to be measured is there from the beginning, with a note that says why it has no number yet.
"""

from __future__ import annotations

import csv
import io
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import block_table
import step_table
import torch
from speed_table import machine
from step_table import INTERVAL, Ratio, interval

from pangu_hif8.files import write_text

COPY, FUSED, FUSED_AMAX = "copy", "HiF8, compiled", "HiF8, compiled, with amax"
FUSED_COUNT = "HiF8, compiled, with amax and count"
EAGER, EAGER_AMAX = "HiF8, eager", "HiF8, eager, with amax"
CALLS = (COPY, FUSED, FUSED_AMAX, FUSED_COUNT, EAGER, EAGER_AMAX)

PLAIN, WINDOW, CURRENT = block_table.PLAIN, "max_window", "current"
CODES, WRITTEN_OUT = step_table.CODES, "max_window, format written out in torch ops"
TORCHAO, ENGINE = "float8 QAT of torchao", "fp8 linears of transformer-engine"
EVAL_PLAIN, EVAL = block_table.EVAL_PLAIN, block_table.EVAL
PLAIN_COMPILED, WINDOW_COMPILED = "plain, torch.compile", "max_window, torch.compile"

GOALS = block_table.GOALS
# What stands beside what, and what the ratio of times is to be at most.
COMPARISONS: tuple[tuple[str, str, float | None], ...] = (
    (PLAIN, PLAIN, None),
    (WINDOW, PLAIN, GOALS[WINDOW]),
    (CURRENT, PLAIN, GOALS[CURRENT]),
    (CODES, WINDOW, GOALS[CODES]),
    (CODES, PLAIN, None),
    (PLAIN_COMPILED, PLAIN, None),
    (WINDOW_COMPILED, PLAIN_COMPILED, None),
    (WINDOW_COMPILED, PLAIN, None),
    (WRITTEN_OUT, PLAIN, None),
    (TORCHAO, PLAIN, None),
    (ENGINE, PLAIN, None),
    (EVAL_PLAIN, EVAL_PLAIN, None),
    (EVAL, EVAL_PLAIN, GOALS[EVAL]),
)
KINDS = tuple(dict.fromkeys(what for what, _, _ in COMPARISONS))
BYTES = {"float32": 4, "bfloat16": 2}
NUM_BLOCKS = block_table.NUM_BLOCKS
NOT_YET = "not run: the script ended before"
COLUMNS = (
    "part num_values dtype what than median_ms gb_per_s ratio low high goal reached num_rounds "
    "held_bytes peak_bytes note"
).split()
HOW_KERNEL = """\
Into memory that is there. GB/s: the bytes of the tensor and of its result, which have to move, over the
median time on the GPU alone (events; level-2 cache emptied, launches queued before). The share of the copy's
bandwidth is a median of ratios within rounds. Before it is timed, a result
has to equal the reference bit for bit. "With amax and count" is one pass of integer arithmetic for both
dtypes; the other compiled calls look bfloat16 values up in a table, and the amax is a second pass."""
HOW_BLOCK = """\
Wall time of a step (forward, backward, AdamW, scales), the device waited for before and after. Medians of
ratios within a round. A frozen evaluation has its weights quantized before
the clock starts. The peers scale by rules of their own; torchao's quantizes before autocast's cast."""
HOW_MEMORY = f"""\
Of {NUM_BLOCKS} such blocks, in MiB above what all kinds have (weights, AdamW's state, batch). Held: between
steps (quantized copies of weights, scales). Peak: the most allocated within a step, gradients included."""


@dataclass
class Timing:
    """Seconds of each round, and why there are no more of them (empty: there are)."""

    times_s: list[float] = field(default_factory=list)
    note: str = NOT_YET


@dataclass
class Memory:
    """Bytes held between steps and at a step's peak, above what all kinds have; or why they are not known."""

    held_bytes: int | None = None
    peak_bytes: int | None = None
    note: str = NOT_YET


Timings = dict[str, Timing]
KernelSetting = tuple[int, str]  # number of values, dtype


def timings(names: Sequence[str]) -> Timings:
    """Nothing measured yet."""
    return {name: Timing() for name in names}


@dataclass
class Report:
    """All that was measured so far. `head`: lines that say where and how."""

    head: list[str]
    kernel: dict[KernelSetting, Timings]
    block: Timings = field(default_factory=lambda: timings(KINDS))
    memory: dict[str, Memory] = field(default_factory=lambda: {name: Memory() for name in KINDS})

    def write(self, out: Path) -> None:
        """Both files, each of them whole at any moment. Raises UserError where they can't be written."""
        table = as_csv(self)
        write_text(out / "gpu.csv", table)
        write_text(out / "gpu.md", as_markdown(table, self.head))


# ---- the CSV ---------------------------------------------------------------------------------------------


def as_csv(report: Report) -> str:
    """One line a call of the kernel, a comparison of steps, a kind of step's memory."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for setting, found in report.kernel.items():
        writer.writerows(_kernel_row(setting, found, name) for name in CALLS)
    writer.writerows(_block_row(report.block, *comparison) for comparison in COMPARISONS)
    writer.writerows(_memory_row(name, report.memory[name]) for name in KINDS)
    return sink.getvalue()


def _kernel_row(setting: KernelSetting, found: Timings, name: str) -> dict[str, str]:
    num_values, dtype = setting
    row = {"part": "kernel", "num_values": str(num_values), "dtype": dtype, "what": name, "than": COPY}
    times = found[name].times_s
    if times:
        moved = 2 * num_values * BYTES[dtype]
        row["gb_per_s"] = f"{moved / statistics.median(times) / 1e9:.1f}"
    return row | _times(found[name]) | _ratio(found[COPY], found[name], COPY, name, None)


def _block_row(found: Timings, what: str, than: str, goal: float | None) -> dict[str, str]:
    row = {"part": "block", "what": what, "than": than, "goal": "" if goal is None else f"{goal:g}"}
    return row | _times(found[what]) | _ratio(found[what], found[than], what, than, goal)


def _times(timing: Timing) -> dict[str, str]:
    if not timing.times_s:
        return {"num_rounds": "0", "note": timing.note or NOT_YET}
    median = f"{1e3 * statistics.median(timing.times_s):.4f}"
    return {"median_ms": median, "num_rounds": str(len(timing.times_s)), "note": timing.note}


def _ratio(above: Timing, below: Timing, what: str, than: str, goal: float | None) -> dict[str, str]:
    """A kind that fails takes part in no later round, so that equal places in both lists are one round."""
    values = [a / b for a, b in zip(above.times_s, below.times_s, strict=False)]
    if not values:
        return {}
    found = Ratio(what, than, statistics.median(values), *interval(values), goal)
    numbers = {"ratio": found.median, "low": found.low, "high": found.high}
    return {name: f"{value:.4f}" for name, value in numbers.items()} | {"reached": found.reached}


def _memory_row(name: str, memory: Memory) -> dict[str, str]:
    row = {"part": "memory", "what": name, "note": memory.note}
    if memory.peak_bytes is None or memory.held_bytes is None:
        return row
    return row | {"held_bytes": str(memory.held_bytes), "peak_bytes": str(memory.peak_bytes)}


# ---- the Markdown ----------------------------------------------------------------------------------------


def as_markdown(table: str, head: Sequence[str]) -> str:
    """The text of the CSV as three tables."""
    rows = list(csv.DictReader(io.StringIO(table)))
    parts = {part: [row for row in rows if row["part"] == part] for part in ("kernel", "block", "memory")}
    plain = {row["what"]: row["peak_bytes"] for row in parts["memory"]}
    lines = ["# HiF8 on a GPU", "", *head, INTERVAL, ""]
    lines += ["## The format's kernel beside a copy", "", HOW_KERNEL, ""]
    lines += _table("values|dtype|call|median, ms|GB/s|share of the copy's bandwidth|interval|note")
    lines += [_line(_kernel_cells(row)) for row in parts["kernel"]]
    lines += ["", "## One block of openPangu's shape", "", HOW_BLOCK, ""]
    lines += _table("step|beside|median, ms|ratio|interval|at most|reached|note")
    lines += [_line(_block_cells(row)) for row in parts["block"]]
    lines += ["", "## Memory", "", HOW_MEMORY, "", *_table("step|held|peak|peak, of the plain one's|note")]
    lines += [_line(_memory_cells(row, plain)) for row in parts["memory"]]
    return "\n".join(lines) + "\n"


def _kernel_cells(row: Mapping[str, str]) -> list[str]:
    values = f"{int(row['num_values']):,}"
    cells = [values, row["dtype"], row["what"], row["median_ms"], row["gb_per_s"], _number(row["ratio"])]
    return [*cells, _ends(row), row["note"]]


def _block_cells(row: Mapping[str, str]) -> list[str]:
    cells = [row["what"], row["than"], row["median_ms"], _number(row["ratio"]), _ends(row)]
    reached = row["reached"] if row["ratio"] or not row["goal"] else "not measured"
    return [*cells, row["goal"], reached, row["note"]]


def _memory_cells(row: Mapping[str, str], peaks: Mapping[str, str]) -> list[str]:
    if not row["peak_bytes"]:
        return [row["what"], "", "", "", row["note"]]
    than = peaks[EVAL_PLAIN if row["what"] in (EVAL_PLAIN, EVAL) else PLAIN]
    share = f"{int(row['peak_bytes']) / int(than):.3f}" if than else ""
    sizes = [f"{int(row[name]) / 2**20:.1f}" for name in ("held_bytes", "peak_bytes")]
    return [row["what"], *sizes, share, row["note"]]


def _table(titles: str) -> list[str]:
    names = titles.split("|")
    return [_line(names), "|---" * len(names) + "|"]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def _number(text: str) -> str:
    return f"{float(text):.3f}" if text else ""


def _ends(row: Mapping[str, str]) -> str:
    return f"{_number(row['low'])} to {_number(row['high'])}" if row["ratio"] else ""


# ---- where it was measured -------------------------------------------------------------------------------


def places(device: torch.device) -> list[str]:
    """Lines that say which GPU and libraries the numbers are of."""
    return [*([_gpu(device)] if device.type == "cuda" else []), *machine()]


def _gpu(device: torch.device) -> str:
    about, (free, total) = torch.cuda.get_device_properties(device), torch.cuda.mem_get_info(device)
    tf32 = "on" if torch.backends.cuda.matmul.allow_tf32 else "off"
    return (
        f"{about.name}, compute capability {about.major}.{about.minor}, {total / 2**30:.1f} GiB of memory "
        f"({(total - free) / 2**30:.1f} in use at the start); driver {_driver()}, CUDA {torch.version.cuda} "
        f"in torch {torch.__version__}; TF32 for float32 matmuls {tf32}."
    )


def _driver() -> str:
    """The driver's version as nvidia-smi says it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (said.split() or ["unknown"])[0]
