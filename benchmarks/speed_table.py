"""From measured times to format_speed.csv and format_speed.md: goals, medians, ratios to a copy, machine."""

from __future__ import annotations

import csv
import io
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from speed_goals import goals_table

from pangu_hif8.files import write_text

COPIES = {
    "copy into memory that is there": "copy into a tensor that is there",
    "copy into a new tensor": "clone",
}
PEERS = "other HiF8"
OURS = "HiF8, compiled"


@dataclass(frozen=True)
class Measurement:
    """One candidate in one setting: seconds of each call, or why there is none."""

    name: str
    dtype: str
    num_threads: int
    times_s: list[float]
    skipped: str | None = None

    @property
    def setting(self) -> str:
        """The table's column."""
        return f"{self.dtype}, {self.num_threads} thread{'s' if self.num_threads > 1 else ''}"

    @property
    def median_ms(self) -> float:
        """NaN when it did not run."""
        return statistics.median(self.times_s) * 1e3 if self.times_s else float("nan")


Medians = dict[tuple[str, str], float]


def write_tables(
    found: Sequence[Measurement], num_values: int, num_rounds: int, out: Path, busy: Sequence[float]
) -> str:
    """Write both files; returns the Markdown. `busy`: cores busy with other work before and after."""
    medians = {(m.name, m.setting): m.median_ms for m in found}
    table = as_csv(found, medians)
    write_text(out / "format_speed.csv", table)
    others = " and ".join(f"{cores:.1f}" for cores in busy)
    head = [*machine(), f"Cores busy with other work before and after: {others}.", ""]
    head += [f"{num_values:,} values; medians of {num_rounds} interleaved rounds (3 for a call over 1 s)."]
    text = as_markdown(found, medians, [*head, "", *goals_table(table)])
    write_text(out / "format_speed.md", text)
    return text


def as_csv(found: Sequence[Measurement], medians: Medians) -> str:
    """One line a candidate and setting."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(
        "what dtype num_threads median_ms min_ms num_calls ratio_to_copy ratio_to_clone note".split()
    )
    for m in found:
        ratios = [f"{m.median_ms / medians[copy, m.setting]:.3f}" for copy in COPIES.values()]
        times = [f"{m.median_ms:.3f}", f"{min(m.times_s) * 1e3:.3f}"] if m.times_s else ["", ""]
        row = [m.name, m.dtype, m.num_threads, *times, len(m.times_s)]
        writer.writerow(
            [*row, *(ratios if m.times_s else ["", ""]), f"skipped: {m.skipped}" if m.skipped else ""]
        )
    return sink.getvalue()


def as_markdown(found: Sequence[Measurement], medians: Medians, head: Sequence[str]) -> str:
    """`head`, a table of ratios for each of the two copies, and how much slower the peers are."""
    settings = list(dict.fromkeys(m.setting for m in found))
    names = list(dict.fromkeys(m.name for m in found))
    skipped = {m.name: m.skipped for m in found if m.skipped}
    lines = ["# Speed of the number format", "", *head]
    for title, copy in COPIES.items():
        lines += ["", f"## In units of a {title}", "", *header(settings)]
        lines += [row(name, [medians[name, s] / medians[copy, s] for s in settings]) for name in names]
        lines += [row(f"that {title}, ms", [medians[copy, s] for s in settings])]
    lines += ["", "## How many times slower than ours, compiled, every other HiF8 is", "", *header(settings)]
    others = [name for name in names if name.startswith(PEERS)]
    lines += [row(name, [medians[name, s] / medians[OURS, s] for s in settings]) for name in others]
    lines += [f"\nNot run: {name} ({reason})." for name, reason in skipped.items()]
    return "\n".join(lines) + "\n"


def busy_cores(seconds: float = 1.0) -> float:
    """How many cores do something while this process sleeps; NaN where /proc/stat is missing."""
    try:
        before = _ticks()
        time.sleep(seconds)
        after = _ticks()
    except OSError:
        return float("nan")
    return (after - before) / os.sysconf("SC_CLK_TCK") / seconds


def _ticks() -> int:
    """Clock ticks that all cores together have worked: user, nice, system, interrupts."""
    user, nice, system, _idle, _wait, irq, softirq = Path("/proc/stat").read_text().split()[1:8]
    return sum(map(int, (user, nice, system, irq, softirq)))


def header(settings: Sequence[str]) -> list[str]:
    """A table's first two lines."""
    return ["| | " + " | ".join(settings) + " |", "|---" * (len(settings) + 1) + "|"]


def row(name: str, values: Sequence[float]) -> str:
    """A table's line; a dash where nothing ran."""
    cells = ["-" if v != v else f"{v:.0f}" if v >= 100 else f"{v:.2f}" for v in values]
    return f"| {name} | " + " | ".join(cells) + " |"


def machine() -> list[str]:
    """Lines that say where and with what the times were taken."""
    packages = [f"{name} {_version(name)}" for name in ("torch", "numpy", "en_dtypes", "torchao")]
    return [
        f"{_cpu()}, {os.cpu_count()} cores, vectors {torch.backends.cpu.get_cpu_capability()}; "
        f"{platform.system()}; Python {platform.python_version()}, {', '.join(packages)}; {_compiler()}."
    ]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    name, family = (found.get(key, "?").strip() for key in ("model name", "cpu family"))
    return f"{name} (family {family})"


def _compiler() -> str:
    try:
        result = subprocess.run([os.environ.get("CXX", "g++"), "--version"], capture_output=True, text=True)
    except OSError:
        return "no C++ compiler"
    return result.stdout.splitlines()[0] if result.stdout else "no C++ compiler"
