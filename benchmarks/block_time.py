"""What does HiF8 cost one transformer block of the paper's shape, in time and in memory kept for backward?

The block is openPangu-Embedded-1B's (width 1,536, MLP 6,144, 12 heads, 6 of them for keys and values,
biases), in float32, on sequences of 1,024 tokens. A step is forward, backward, AdamW over the block's weights
and the scales' update. Every kind of training step trains the same weights in one process; the evaluations
share weights that nobody trains. In a round each kind takes a step, in an order drawn anew, and then another
in the reversed order; their mean is kept, so that a steady drift meets all alike. Peers take one, in every
second round. Ratios are formed within a round. Memory: block_memory.py, one process a kind.

    python benchmarks/block_time.py [--sequences N] [--rounds N] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pangu_hif8.siblings import SPINS_ALONE

os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_ALONE))  # as a run alone has it; read with torch

import torch
from asked import add_out, count, run_main
from block_table import EVAL, EVAL_PLAIN, NUM_BLOCKS, PLAIN, Kept, Rounds, as_csv, as_markdown
from peers import replace_linears, torchao_linear, writing_out
from speed_table import busy_cores, machine
from step_table import BOTH, CODES, steadiness
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from pangu_hif8.config import QuantConfig
from pangu_hif8.files import write_text
from pangu_hif8.linear import prepare_qat
from pangu_hif8.saved_codes import save_inputs_as_codes
from pangu_hif8.scaling import ScalingState

SHAPE: dict[str, Any] = {
    "hidden_size": 1536,
    "intermediate_size": 6144,
    "num_attention_heads": 12,
    "num_key_value_heads": 6,
    "attention_bias": True,
}
LENGTH, LR, PEERS_EVERY = 1024, 1e-6, 2  # tokens, learning rate, rounds
Clock = Callable[[], float]  # seconds


@dataclass(frozen=True)
class Kind:
    """One kind of step. `algo` None: the plain block."""

    algo: str | None = None
    codes: bool = False
    written_out: bool = False
    torchao: bool = False
    evaluates: bool = False

    @property
    def is_peer(self) -> bool:
        """Whether it is somebody else's way, which has no goal."""
        return self.written_out or self.torchao


KINDS = {
    PLAIN: Kind(),
    "max_window": Kind("max_window"),
    "current": Kind("current"),
    CODES: Kind("max_window", codes=True),
    "max_window, format written out in torch ops": Kind("max_window", written_out=True),
    "float8 QAT of torchao (e4m3, scales of its own)": Kind(torchao=True),
    EVAL_PLAIN: Kind(evaluates=True),
    EVAL: Kind("max_window", evaluates=True),
}
MEASURED_IN_MEMORY = (PLAIN, "max_window", CODES)  # current scaling keeps what max_window keeps


class Blocks(nn.Module):
    """Decoder blocks where `prepare_qat` looks for them."""

    def __init__(self, shape: dict[str, Any], num_blocks: int = 1) -> None:
        super().__init__()
        config = LlamaConfig(**shape, num_hidden_layers=num_blocks, attn_implementation="sdpa")
        self.model: Any = nn.Module()
        self.model.layers = nn.ModuleList(LlamaDecoderLayer(config, i) for i in range(num_blocks))
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)[None]
        angles = self.rotary(x, places)
        for layer in self.model.layers:
            x = layer(x, position_embeddings=angles, position_ids=places)
        return x


class Runner:
    """A block of one kind around shared weights, and its step."""

    def __init__(self, kind: Kind, base: Blocks, adamw: torch.optim.Optimizer) -> None:
        self.kind, self.adamw = kind, adamw
        self.block = copy.deepcopy(base, {id(p): p for p in base.parameters()})
        self.state: ScalingState | None = None
        if kind.algo:
            self.state = prepare_qat(self.block, QuantConfig(amax_compute_algo=kind.algo), 0, 0)
            self.state.set_mode("quantize")  # an evaluation's mode is "frozen" as soon as it has scales
        if kind.codes:
            save_inputs_as_codes(self.block)
        if kind.torchao:
            replace_linears(self.block, torchao_linear)

    def step(self, x: Tensor, gradient: Tensor) -> None:
        """One step of training, or the forward pass of an evaluation."""
        with writing_out() if self.kind.written_out else nullcontext():
            if self.kind.evaluates:
                self._evaluate(x)
            else:
                self._train(x, gradient)

    def _train(self, x: Tensor, gradient: Tensor) -> None:
        self.block(x).backward(gradient)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self.state:
            self.state.update()

    def _evaluate(self, x: Tensor) -> None:
        with torch.no_grad():
            if self.state and self.state.mode != "frozen":
                with self.state.seed():
                    self.block(x)
                self.state.set_mode("frozen")
            self.block(x)


def kinds_here() -> dict[str, Kind]:
    """Those that can run: torchao is no dependency of this project (benchmarks/README.md)."""
    has_torchao = importlib.util.find_spec("torchao") is not None
    return {name: kind for name, kind in KINDS.items() if has_torchao or not kind.torchao}


def batch(num_sequences: int, width: int, length: int) -> tuple[Tensor, Tensor]:
    """An input that asks for a gradient, and the output's gradient."""
    x, gradient = (torch.randn(num_sequences, length, width) for _ in range(2))
    return x.requires_grad_(), 1e-3 * gradient


def make_runners(shape: dict[str, Any]) -> dict[str, Runner]:
    """One of each kind. Those that train share weights and optimizer, those that evaluate a frozen copy."""
    trained = Blocks(shape)
    frozen, adamw = copy.deepcopy(trained), torch.optim.AdamW(trained.parameters(), lr=LR)
    kinds = kinds_here().items()
    return {name: Runner(kind, frozen if kind.evaluates else trained, adamw) for name, kind in kinds}


def time_rounds(runners: dict[str, Runner], data: tuple[Tensor, Tensor], num: int, clock: Clock) -> Rounds:
    """Seconds of every kind of step in each round, None where a peer takes no turn.

    One step on a single sequence comes first: it gives every slot its scale, and frozen weights their copies.
    """
    for runner in runners.values():
        runner.step(data[0][:1], data[1][:1])
    found: dict[str, list[float | None]] = {name: [] for name in runners}
    order, rng = list(runners), random.Random(0)
    for number in range(num):
        rng.shuffle(order)
        times: dict[str, list[float]] = {name: [] for name in runners}
        for name in turns(order, number):
            started = clock()
            runners[name].step(*data)
            times[name].append(clock() - started)
        for name, taken in times.items():
            found[name].append(statistics.mean(taken) if taken else None)
        print(f"round {number + 1} of {num}", flush=True)
    return found


def turns(order: Sequence[str], number: int) -> list[str]:
    """Who takes a step in that round: ours there and back, peers on the way there of every second one."""
    ours = [name for name in order if not KINDS[name].is_peer]
    return [*(ours if number % PEERS_EVERY else order), *reversed(ours)]


def measure(
    shape: dict[str, Any], num_sequences: int, length: int, num: int, clock: Clock = time.perf_counter
) -> Rounds:
    """Seconds of every kind of step in each round."""
    torch.manual_seed(0)
    runners = make_runners(shape)
    return time_rounds(runners, batch(num_sequences, shape["hidden_size"], length), num, clock)


def kept(
    shape: dict[str, Any], num_sequences: int, length: int, kinds: Sequence[str] = MEASURED_IN_MEMORY
) -> dict[str, Kept]:
    """What each kind of training step keeps for backward, and the peak memory of a process that runs it."""
    command = [sys.executable, str(Path(__file__).with_name("block_memory.py"))]
    given_back = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # bytes; block_memory.py says what for
    sizes = [str(num_sequences), str(length), json.dumps(shape), str(NUM_BLOCKS)]
    found = {}
    for name in kinds:
        printed = subprocess.check_output([*command, name, *sizes], text=True, env=given_back)
        found[name] = Kept(**json.loads(printed.splitlines()[-1]))
        print(f"memory: {name}", flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Time a block of the paper's shape with and without HiF8.")
    parser.add_argument("--sequences", type=count, default=4, help="of 1,024 tokens; 4 by default")
    parser.add_argument("--rounds", type=count, default=3)
    add_out(parser)
    options = parser.parse_args(arguments)
    before = busy_cores()
    times = measure(SHAPE, options.sequences, LENGTH, options.rounds)
    head = [*machine(), f"Cores busy with other work before and after: {before:.1f} and {busy_cores():.1f}."]
    head += ["", f"{options.sequences} x {LENGTH:,} tokens, {torch.get_num_threads()} threads."]
    head[-1] += f" {options.rounds} rounds{BOTH}; a peer's one step."
    head[-1] += f" {steadiness([s for s in times[PLAIN] if s is not None])}"
    table = as_csv(times, kept(SHAPE, options.sequences, LENGTH))
    write_text(options.out / "block_time.csv", table)
    text = as_markdown(table, head)
    write_text(options.out / "block_time.md", text)
    print(text)


if __name__ == "__main__":
    run_main(main)
