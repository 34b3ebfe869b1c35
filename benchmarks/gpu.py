"""What HiF8 costs on a GPU: the format's kernel beside a copy, a block of the paper's shape, its memory.

The block is openPangu-Embedded-1B's on sequences of 1,024 tokens, in bfloat16 by autocast over float32
weights, as a run with `precision: bfloat16` has it. Every kind of step trains the same weights; a round gives
each a turn, in an order drawn anew. Peers (torchao, transformer_engine) run where they can be imported. What
fails or runs out of memory gets a row that says so, and the others go on. The tables are written after each
part; what does not fit into the time is left out, which they say. A compilation under way is not cut short.

    python benchmarks/gpu.py [--device cuda|cpu] [--sequences N] [--rounds N] [--minutes N] [--out DIR]
    python benchmarks/gpu.py --small [--device cuda|cpu]

`--small` tries the script out with small shapes, on a GPU or a CPU, and writes elsewhere. On a CPU everything
is float32, a compiled block is traced but not made into machine code, and memory is not measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pangu_hif8.siblings import SPINS_ALONE

os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_ALONE))  # as a run alone has it; read with torch

import gpu_table as table
import torch
from block_time import LENGTH, SHAPE
from gpu_block import KINDS, Kind, Runner, Setting
from gpu_kernel import CALLS, measure_kernel
from gpu_rounds import TIME_IS_UP, Budget, Turn, attempt, free_memory, ready, run_rounds, say
from gpu_table import NUM_BLOCKS, Memory, Report, places, timings

from pangu_hif8.errors import UserError
from pangu_hif8.paths import cache_dir

SMALL = {
    **SHAPE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def block_turn(kind: Kind, setting: Setting, *shared: Any) -> Turn:
    """Seconds of a step: the mean of a few, after one that finds the weights as another kind left them."""
    runner = Runner(kind, *shared)

    def turn() -> float:
        runner.step()
        setting.wait()
        started = time.perf_counter()
        for _ in range(setting.num_steps):
            runner.step()
        setting.wait()
        return (time.perf_counter() - started) / setting.num_steps

    return turn


def measure_block(report: Report, setting: Setting, budget: Budget) -> None:
    """Every kind of step around one block's weights."""
    print("one block", flush=True)

    def measure() -> None:
        shared = (*setting.blocks(1), *setting.batch())
        makers = {name: partial(block_turn, kind, setting, *shared) for name, kind in KINDS.items()}
        run_rounds(report.block, ready(report.block, makers, budget), setting.num_rounds, budget)

    say(report.block.values(), attempt(measure)[1])
    free_memory()


def measure_memory(report: Report, setting: Setting, budget: Budget) -> None:
    """The peak of every kind of step of some blocks; on a GPU only, whose allocator keeps count."""
    if not setting.on_gpu:
        for row in report.memory.values():
            row.note = "not measured on a CPU"
        return
    print(f"memory of {NUM_BLOCKS} blocks", flush=True)
    say(report.memory.values(), attempt(partial(_memory_of_all, report, setting, budget))[1])
    free_memory()


def _memory_of_all(report: Report, setting: Setting, budget: Budget) -> None:
    shared, longest = (*setting.blocks(NUM_BLOCKS), *setting.batch()), 0.0
    Runner(KINDS[table.PLAIN], *shared)  # AdamW's state, the libraries' work space
    for name, kind in KINDS.items():
        print(f"  {name}", flush=True)
        started = budget.clock()
        found = memory_of(kind, setting, *shared) if budget.allows(longest) else Memory(note=TIME_IS_UP)
        report.memory[name] = found
        longest = max(longest, budget.clock() - started)


def memory_of(kind: Kind, setting: Setting, *shared: Any) -> Memory:
    """What this kind of step takes above what all kinds have."""
    free_memory()
    base = torch.cuda.memory_allocated(setting.device)

    def measure() -> Memory:
        runner = Runner(kind, *shared)
        setting.wait()
        free_memory()
        held = torch.cuda.memory_allocated(setting.device) - base
        torch.cuda.reset_peak_memory_stats(setting.device)
        runner.step()
        setting.wait()
        return Memory(held, torch.cuda.max_memory_allocated(setting.device) - base, "")

    found, why = attempt(measure)
    return found or Memory(note=f"not run: {why}")


# ---- how it runs -----------------------------------------------------------------------------------------

PARTS = ((measure_kernel, 0.4), (measure_block, 0.6), (measure_memory, 1.0))  # share of the time then left


def run(setting: Setting, budget: Budget, head: Sequence[str], out: Path) -> Report:
    """All parts, the tables written after each, also after one that was interrupted."""
    dtypes = ("float32", "bfloat16") if setting.on_gpu else ("float32",)
    cells = [(num, dtype) for num in setting.num_values for dtype in dtypes]
    report = Report([*head], {cell: timings(tuple(CALLS)) for cell in cells})
    report.write(out)  # what can't be written is known before anything is measured
    for measure, share in PARTS:
        try:
            measure(report, setting, budget.part(share))
        finally:
            report.write(out)
    return report


def setting_of(options: argparse.Namespace) -> Setting:
    """Where and how much. Raises UserError where that can't be."""
    if options.sequences < 1 or options.rounds < 1 or options.minutes < 0:
        raise UserError("--sequences and --rounds must be 1 or more, --minutes 0 or more")
    if options.device == "cpu" and not options.small:
        raise UserError("on a CPU this script only tries itself out: add --small, or run block_time.py")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"torch {torch.__version__} finds no CUDA device; run this on a machine with an NVIDIA GPU, its "
            "driver and a torch built for CUDA, or try the script out with --device cpu --small"
        )
    device = (
        torch.device("cuda", torch.cuda.current_device()) if options.device == "cuda" else torch.device("cpu")
    )
    if options.small:
        return Setting(device, SMALL, 2, 32, (2**18, 2**19), min(options.rounds, 3), 1)
    return Setting(device, SHAPE, options.sequences, LENGTH, (2**24, 2**27), options.rounds, 3)


def head_of(setting: Setting, small: bool) -> list[str]:
    """Lines that say where and how it was measured."""
    dtype = "bfloat16 by autocast over float32 weights" if setting.on_gpu else "float32"
    how = (
        f"{setting.num_sequences} x {setting.length:,} tokens, {dtype}; at most {setting.num_rounds} rounds."
    )
    trial = ["", "A trial of the script with small shapes: it says nothing about the speed of anything."]
    return [*places(setting.device), "", how, *(trial if small else [])]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description="Measure what HiF8 costs on a GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--sequences", type=int, default=16, help="of 1,024 tokens; 16 by default")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0, help="after which nothing new is begun")
    parser.add_argument("--out", type=Path, help="by default beside this script; a trial's in the cache")
    parser.add_argument("--small", action="store_true", help="try the script out with small shapes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; the exit status."""
    options = parsed(arguments)
    out = options.out or (cache_dir() / "gpu_trial" if options.small else Path(__file__).parent)
    budget = Budget(time.monotonic() + 60 * options.minutes)
    try:
        setting = setting_of(options)
        run(setting, budget, head_of(setting, options.small), out)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {out / 'gpu.md'}", file=sys.stderr)
        return 130
    print((out / "gpu.md").read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
