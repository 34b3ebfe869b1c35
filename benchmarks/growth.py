"""How does the cost of HiF8 grow with the window, the quantized blocks, the batch and the processes?

A small Llama (8 blocks, width 256, MLP 1,024) is trained by `Trainer.run_step` on 4 sequences of 256 tokens;
one of these sizes is varied at a time. A plain step and a max-window step take turns on the same weights,
and a ratio is formed within a round. Memory is counted, not measured: the scales' state, and what backward
keeps of the quantized layers' inputs, as float32 and as codes.

    python benchmarks/growth.py [--rounds N] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from block_memory import Counter, counting
from growth_table import AXES, Growth, as_csv, as_markdown, draw, ratio_of
from speed_table import busy_cores, machine
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from pangu_hif8.config import QuantConfig, TrainConfig
from pangu_hif8.files import write_text
from pangu_hif8.linear import prepare_qat
from pangu_hif8.plot_style import save_figure
from pangu_hif8.ranks import Ranks
from pangu_hif8.saved_codes import save_inputs_as_codes
from pangu_hif8.train import Trainer
from pangu_hif8.train_stage import make_deterministic

SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}
NEVER = 10**6  # steps: beyond what is run here
PROCESSES = (1, 2)
VALUES = {
    "window": (1, 4, 16, 64, 256, 1024),
    "quantized_blocks": (1, 2, 4, 8),
    "sequences": (1, 2, 4, 8, 16),
    "length": (64, 128, 256, 512, 1024),
}


@dataclass(frozen=True)
class Setting:
    """One point: what is varied, from its usual value."""

    window: int = 64
    quantized_blocks: int = 8
    sequences: int = 4
    length: int = 256


def pair(setting: Setting, shape: dict[str, Any], ranks: str = "none") -> tuple[Trainer, Trainer]:
    """A plain trainer and one with max-window around the same weights, with one optimizer."""
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(**shape))
    found = []
    for quantized in (False, True):
        own = {id(p): p for p in plain.parameters()}
        model: nn.Module = copy.deepcopy(plain, own) if quantized else plain
        config = QuantConfig(amax_compute_algo="max_window", amax_history_len=setting.window)
        kept = shape["num_hidden_layers"] - setting.quantized_blocks
        scaling = prepare_qat(model, config, kept, 0) if quantized else None
        micro = setting.sequences if ranks == "none" else 1  # which any number of processes shares out
        values = {"steps": NEVER, "batch_size": setting.sequences, "micro_batch_size": micro}
        values |= {"bf16_warmup_steps": 0, "telemetry_every": 0}
        found.append(Trainer(model, TrainConfig(**values), 1e-7, scaling, Ranks(ranks)))  # type: ignore[arg-type]
    found[1].adamw = found[0].adamw
    return found[0], found[1]


def seconds(trainers: Sequence[Trainer], setting: Setting, vocabulary: int, num: int) -> list[list[float]]:
    """Seconds of a step of each trainer, in turn, one list a trainer; a first round gives scales."""
    found: list[list[float]] = [[] for _ in trainers]
    for number in range(1, num + 2):
        tokens = torch.randint(0, vocabulary, (setting.sequences, setting.length))
        for times, trainer in zip(found, trainers, strict=True):
            started = time.perf_counter()
            trainer.run_step(number, tokens)
            times.append(time.perf_counter() - started)
    return [times[1:] for times in found]


def kept_bytes(trainer: Trainer, setting: Setting, vocabulary: int) -> tuple[int, int]:
    """Bytes that backward keeps of the quantized layers' inputs: as they are, and as codes."""
    tokens = torch.zeros(setting.sequences, setting.length, dtype=torch.int64)
    found = []
    for codes in (False, True):
        if codes:
            save_inputs_as_codes(trainer.model)
        counter = Counter(trainer.model)
        with counting(counter):
            trainer.model(input_ids=tokens + torch.arange(setting.length) % vocabulary)
        found.append(sum(counter.inputs.values()))
    return found[0], found[1]


def measure(setting: Setting, shape: dict[str, Any], num: int) -> dict[str, float]:
    """Ratio with its interval, step time and memory at one point."""
    trainers = pair(setting, shape)
    plain, quantized = seconds(trainers, setting, shape["vocab_size"], num)
    scaling = trainers[1].scaling
    assert scaling is not None
    state = sum(value.nbytes for value in scaling.state_dict().values())
    floats, codes = kept_bytes(trainers[1], setting, shape["vocab_size"])
    memory = {"state_bytes": state, "kept_bytes": floats, "kept_codes_bytes": codes}
    return ratio_of(plain, quantized) | memory


def measure_processes(num_processes: int, rounds: int) -> dict[str, float]:
    """The usual setting in micro-batches of one, on as many processes of one thread (DDP over gloo)."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={num_processes}",
    ]
    command += [str(Path(__file__)), "--worker", "--rounds", str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return dict(json.loads(line))


def worker(rounds: int) -> None:
    """One of the processes; the first prints what was measured."""
    make_deterministic(0, 1)
    setting = Setting()
    trainers = pair(setting, SHAPE, "ddp")
    plain, quantized = seconds(trainers, setting, SHAPE["vocab_size"], rounds)
    if trainers[0].ranks.is_main:
        print(json.dumps(ratio_of(plain, quantized)), flush=True)


def grown(rounds: int) -> list[Growth]:
    """Every point."""
    make_deterministic(0, torch.get_num_threads())
    found = []
    for axis, values in VALUES.items():
        for value in values:
            setting = replace(Setting(), **{axis: value})
            found.append(Growth(axis, value, **measure(setting, SHAPE, rounds)))
            print(f"{axis} {value}: {found[-1].ratio:.3f}", flush=True)
    for num in PROCESSES:
        found.append(Growth("processes", num, **measure_processes(num, rounds)))
        print(f"processes {num}: {found[-1].ratio:.3f}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="How the cost of HiF8 grows with window, model and batch.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        worker(options.rounds)
        return
    before = busy_cores()
    found = grown(options.rounds)
    head = [*machine(), f"Cores busy with other work before and after: {before:.1f} and {busy_cores():.1f}."]
    head += ["", f"Usual: {', '.join(f'{AXES[n]} {v:,}' for n, v in asdict(Setting()).items())}; "]
    head[-1] += f"{options.rounds} rounds, {torch.get_num_threads()} threads, processes with one each."
    table = as_csv(found)
    write_text(options.out / "growth.csv", table)
    write_text(options.out / "growth.md", as_markdown(found, head))
    save_figure(draw(found), options.out, "growth")


if __name__ == "__main__":
    main()
