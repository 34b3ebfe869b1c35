"""How does training scale from one thread to two, and from one run at a time to two (make -j2)?

Each way starts its processes, lets each do its first step, and times the next ones of all together, so that
nothing but training is timed. Threads wait at barriers as those of runs do, alone or beside others
(pangu_hif8/siblings.py), whatever GOMP_SPINCOUNT was. Throughput counts the steps of all processes. The step
is the laptop profile's with max-window, on SmolLM2-135M's architecture (step_time.py).

    python benchmarks/threads.py [--size smoke|laptop] [--steps N] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from asked import add_out, count, run_main
from speed_table import busy_cores, machine
from step_time import batch_for, kinds, network, trainer

from pangu_hif8.config import load_profile
from pangu_hif8.files import write_text
from pangu_hif8.siblings import SPINS_ALONE, SPINS_BESIDE
from pangu_hif8.train_stage import make_deterministic

NUM_FIRST_STEPS = 1  # it gives every slot its scale, and AdamW its state
GO = "go\n"


@dataclass(frozen=True)
class Way:
    """Processes at once, each a run of its own, and the threads of each."""

    processes: int
    threads: int


WAYS = (Way(1, 1), Way(1, 2), Way(2, 1), Way(2, 2))


@dataclass(frozen=True)
class Measured:
    """One way: seconds of a step (median over steps and processes), and steps of all in an hour."""

    processes: int
    threads: int
    step_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    steps_per_hour: float


def work(size: str, threads: int, num_steps: int) -> None:
    """One process: its first step, a line, the others' go, its steps' seconds as JSON."""
    profile = load_profile(size)
    make_deterministic(0, threads)
    (kind,) = (kind for kind in kinds(every=False, compiled=False) if kind.name == "max_window")
    one = trainer(kind, network(size, profile), profile)
    torch.set_num_threads(threads)  # the trainer has set the profile's
    times = []
    for number in range(1, NUM_FIRST_STEPS + num_steps + 1):
        if number == NUM_FIRST_STEPS + 1:
            print("ready", flush=True)
            sys.stdin.readline()
        started = time.perf_counter()
        one.run_step(number, batch_for(one, profile))
        times.append(time.perf_counter() - started)
    print(json.dumps({"threads": torch.get_num_threads(), "seconds": times[NUM_FIRST_STEPS:]}), flush=True)


def measure(way: Way, size: str, num_steps: int) -> Measured:
    """All processes of a way, their timed steps at the same time. Raises CalledProcessError."""
    command = [sys.executable, __file__, "--worker", str(way.threads), "--size", size]
    command += ["--steps", str(num_steps)]
    start: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": waiting(way)}
    jobs = [subprocess.Popen(command, **start) for _ in range(way.processes)]
    for job in jobs:
        _line(job, "ready")
    started = time.perf_counter()
    for job in jobs:
        assert job.stdin
        job.stdin.write(GO)
        job.stdin.flush()
    found = [json.loads(_line(job, "{")) for job in jobs]
    took = time.perf_counter() - started
    assert all(job.wait() == 0 for job in jobs) and {one["threads"] for one in found} == {way.threads}
    seconds = [value for one in found for value in one["seconds"]]
    rate = 3600 * len(seconds) / took
    return Measured(way.processes, way.threads, statistics.median(seconds), min(seconds), max(seconds), rate)


def waiting(way: Way) -> dict[str, str]:
    """The environment of a way's processes: how their threads wait at a barrier."""
    return os.environ | {"GOMP_SPINCOUNT": str(SPINS_BESIDE if way.processes > 1 else SPINS_ALONE)}


def _line(job: subprocess.Popen[str], start: str) -> str:
    """The next line of a process that begins so. Raises CalledProcessError when it ends without one."""
    assert job.stdout
    for line in job.stdout:
        if line.startswith(start):
            return line
    raise subprocess.CalledProcessError(job.wait() or 1, job.args)


def as_csv(found: Sequence[Measured]) -> str:
    """One line a way."""
    sink = io.StringIO()
    writer = csv.DictWriter(sink, [field.name for field in fields(Measured)], lineterminator="\n")
    writer.writeheader()
    for one in found:
        writer.writerow({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in asdict(one).items()})
    return sink.getvalue()


def table_lines(table: str) -> list[str]:
    """The text of the CSV as a table; throughput beside the first way's."""
    rows = list(csv.DictReader(io.StringIO(table)))
    lines = ["| runs at once | threads each | a step, s | fastest to slowest | steps an hour | times |"]
    lines += ["|---" * 6 + "|"]
    for row in rows:
        times = float(row["steps_per_hour"]) / float(rows[0]["steps_per_hour"])
        span = f"{float(row['fastest_seconds']):.2f} to {float(row['slowest_seconds']):.2f}"
        cells = [row["processes"], row["threads"], f"{float(row['step_seconds']):.2f}", span]
        lines.append(
            "| " + " | ".join([*cells, f"{float(row['steps_per_hour']):,.0f}", f"{times:.2f}"]) + " |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Training steps by threads and by runs at once.")
    parser.add_argument("--size", choices=("smoke", "laptop"), default="laptop")
    parser.add_argument("--steps", type=count, default=2, help="timed in each process; 2 by default")
    add_out(parser)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.size, options.worker, options.steps)
        return
    before, found = busy_cores(), []
    for way in WAYS:
        found.append(measure(way, options.size, options.steps))
        print(f"{way}: {found[-1].steps_per_hour:.0f} steps an hour", flush=True)
    table = as_csv(found)
    busy = f"Cores busy with other work before and after: {before:.1f} and {busy_cores():.1f}."
    head = ["# Threads, and runs at once", "", *machine(), busy, ""]
    head += [f"Profile {options.size}, {options.steps} steps a process. Times: throughput beside the first."]
    head += [
        f"Turns that a waiting thread spins: {SPINS_ALONE:,} alone, {SPINS_BESIDE:,} beside another.",
        "",
    ]
    write_text(options.out / "threads.csv", table)
    write_text(options.out / "threads.md", "\n".join([*head, *table_lines(table)]) + "\n")


if __name__ == "__main__":
    run_main(main)
