"""How does the cost of HiF8 grow with the window, the quantized blocks, the batch and the processes?

A small Llama (8 blocks, width 256, MLP 1,024) is trained by `Trainer.run_step` on 4 sequences of 256 tokens;
one of these sizes is varied at a time. A plain step and a max-window step take turns on the same weights, in
an order drawn anew in each round, and a ratio is formed within a round. Processes have one thread and 4
sequences each, in one batch, so that what each of them computes is the same however many there are. Memory is
counted, not measured: the tensors that the scales' state holds, and what backward keeps of the quantized
layers' inputs, as float32 and as codes.

    python benchmarks/growth.py [--rounds N] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pangu_hif8.siblings import SPINS_ALONE

os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_ALONE))  # as a run alone has it; read with torch

import torch
from asked import add_out, count, run_main
from block_memory import Counter, counting
from growth_table import AXES, PROCESSES_ARE, Growth, as_csv, as_markdown, draw, ratio_of
from speed_table import busy_cores, machine
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from pangu_hif8.config import QuantConfig, TrainConfig
from pangu_hif8.files import write_text
from pangu_hif8.launch import Parallel
from pangu_hif8.linear import prepare_qat
from pangu_hif8.plot_style import save_figure
from pangu_hif8.ranks import Ranks
from pangu_hif8.saved_codes import save_inputs_as_codes
from pangu_hif8.scaling import ScalingState
from pangu_hif8.train import Trainer
from pangu_hif8.train_stage import make_deterministic

SHAPE: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
}
NEVER, LR = 10**6, 1e-7  # steps: beyond what is run here
PROCESSES = (1, 2)
VALUES = {
    "window": (1, 64, 1024),
    "quantized_blocks": (1, 4, 8),
    "sequences": (1, 2, 4, 8),
    "length": (64, 256, 1024),
}


@dataclass(frozen=True)
class Setting:
    """One point: what is varied, from its usual value."""

    window: int = 64
    quantized_blocks: int = 8
    sequences: int = 4
    length: int = 256


def pair(setting: Setting, shape: dict[str, Any], parallel: Parallel = "none") -> tuple[Trainer, Trainer]:
    """A plain trainer and one with max-window around the same weights, with one optimizer."""
    torch.manual_seed(0)
    plain: nn.Module = LlamaForCausalLM(LlamaConfig(**shape))
    twin = copy.deepcopy(plain, {id(p): p for p in plain.parameters()})
    config = QuantConfig(amax_compute_algo="max_window", amax_history_len=setting.window)
    scaling = prepare_qat(twin, config, shape["num_hidden_layers"] - setting.quantized_blocks, 0)
    ranks = Ranks(parallel)
    sizes = {"batch_size": setting.sequences * ranks.world, "micro_batch_size": setting.sequences}
    train = TrainConfig.model_validate({"steps": NEVER, "bf16_warmup_steps": 0, "telemetry_every": 0} | sizes)
    first, second = Trainer(plain, train, LR, None, ranks), Trainer(twin, train, LR, scaling, ranks)
    second.adamw = first.adamw
    return first, second


def seconds(trainers: Sequence[Trainer], setting: Setting, vocabulary: int, num: int) -> list[list[float]]:
    """Seconds of a step of each trainer, one list a trainer; a first round, not counted, gives scales.

    The order is drawn anew in each round, the same in every process.
    """
    found: list[list[float]] = [[] for _ in trainers]
    turns, rng = list(zip(found, trainers, strict=True)), random.Random(0)
    for number in range(1, num + 2):
        tokens = torch.randint(0, vocabulary, (trainers[0].settings.batch_size, setting.length))
        rng.shuffle(turns)
        for times, trainer in turns:
            started = time.perf_counter()
            trainer.run_step(number, tokens)
            times.append(time.perf_counter() - started)
    return [times[1:] for times in found]


def state_bytes(scaling: ScalingState) -> int:
    """Bytes of every tensor that the state holds, what a checkpoint leaves out included, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _tensors(vars(scaling))}
    return sum(storages.values())


def _tensors(held: Any) -> Iterator[Tensor]:
    """All tensors in an object's attributes, in containers, and in objects of this project."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, Mapping | list | tuple):
        for value in held.values() if isinstance(held, Mapping) else held:
            yield from _tensors(value)
    elif type(held).__module__.startswith("pangu_hif8."):
        yield from _tensors(vars(held))


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


def measure(setting: Setting, shape: dict[str, Any], num: int) -> dict[str, Any]:
    """Ratio with its interval, step time and memory at one point."""
    trainers = pair(setting, shape)
    plain, quantized = seconds(trainers, setting, shape["vocab_size"], num)
    scaling = trainers[1].scaling
    assert scaling is not None
    floats, codes = kept_bytes(trainers[1], setting, shape["vocab_size"])
    memory = {"state_bytes": state_bytes(scaling), "kept_bytes": floats, "kept_codes_bytes": codes}
    return ratio_of(plain, quantized) | memory


def measure_processes(num_processes: int, rounds: int) -> dict[str, Any]:
    """The usual setting in each of so many processes of one thread (DDP over gloo): ratio and step time."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    command = [sys.executable, *launch, str(Path(__file__)), "--worker", "--rounds", str(rounds)]
    printed = subprocess.check_output(command, text=True, stderr=subprocess.PIPE)
    return dict(json.loads(next(line for line in printed.splitlines() if line.startswith("{"))))


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
    parser.add_argument("--rounds", type=count, default=3)
    add_out(parser)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        worker(options.rounds)
        return
    before = busy_cores()
    found = grown(options.rounds)
    head = [*machine(), f"Cores busy with other work before and after: {before:.1f} and {busy_cores():.1f}."]
    head += ["", f"Usual: {', '.join(f'{AXES[n]} {v:,}' for n, v in asdict(Setting()).items())}; "]
    head[-1] += f"{options.rounds} rounds, {torch.get_num_threads()} threads. " + PROCESSES_ARE
    table = as_csv(found)
    write_text(options.out / "growth.csv", table)
    write_text(options.out / "growth.md", as_markdown(found, head))
    save_figure(draw(found), options.out, "growth")


if __name__ == "__main__":
    run_main(main)
