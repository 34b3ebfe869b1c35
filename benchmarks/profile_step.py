"""Where does the time of a QAT step go? A max-window step by part, with a plain step beside it.

The functions that a step calls are wrapped by a timer that gives each moment to the innermost part alone, so
that the parts add up to the step. A straight-through node's backward lies between two hooks of autograd; on a
CPU that runs in the thread that called it. Plain and quantized steps train the same weights and take turns,
in an order drawn anew; the plain one has the same timer around the parts that both have.

    smoke    the smoke profile's model and batch
    laptop   SmolLM2-135M's architecture, the laptop profile's batch
    block    one block of the paper's shape, sequences of 1,024 tokens, no loss and no clipping

    python benchmarks/profile_step.py [--size smoke|laptop|block|all] [--rounds N] [--sequences N] [--out DIR]
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from pangu_hif8.siblings import SPINS_ALONE

os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_ALONE))  # as a run alone has it; read with torch

import block_time
import profile_table as table
import step_time
import torch
from asked import add_out, count, run_main
from block_table import PLAIN
from speed_table import busy_cores, machine
from torch import Tensor, nn
from torch.nn import functional as F

from pangu_hif8 import fused, quantized_linear
from pangu_hif8.config import load_profile
from pangu_hif8.fake_quantize import straight_through
from pangu_hif8.files import write_text
from pangu_hif8.linear import converted_linears
from pangu_hif8.plot_style import save_figure
from pangu_hif8.quantized_linear import HiF8Linear
from pangu_hif8.scaling import ScalingState
from pangu_hif8.train import Trainer
from pangu_hif8.train_stage import make_deterministic

ROUNDS = {"smoke": 40, "laptop": 3, "block": 3}
TINY: dict[str, Any] = block_time.SHAPE | {"hidden_size": 24, "intermediate_size": 32}
ABOUT = """\
A plain and a max-window step take turns; medians over the rounds. Parts are exclusive and add up to the
step; + marks what quantization adds. The block is given {} x {:,} tokens. All in float32."""
Function = TypeVar("Function", bound=Callable[..., Any])


class Timer:
    """Exclusive seconds by part. A call leaves two marks, for little time; they are read after the step."""

    def __init__(self) -> None:
        self.marks: list[table.Mark] = []
        self.mark = self.marks.append

    def step(self, run: Callable[[], object]) -> dict[str, float]:
        """Seconds by part of one call; what is in no part is the rest."""
        self.marks.clear()
        timed(self, table.REST, run)()
        return table.exclusive(self.marks)

    @property
    def num_calls(self) -> int:
        """How many calls of parts the last step had."""
        return len(self.marks) // 2


@dataclass(frozen=True)
class Subject:
    """What takes a turn, and its model; `first` gives every slot its scale."""

    run: Callable[[], object]
    model: nn.Module
    first: Callable[[], object]


# ---- what is wrapped -------------------------------------------------------------------------------------


def timed(timer: Timer, part: table.Part, function: Function) -> Function:
    """The function, whose time is its part's."""
    mark, clock = timer.mark, time.perf_counter

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        mark((part, clock()))
        try:
            return function(*args, **kwargs)
        finally:
            mark((None, clock()))

    return wrapper  # type: ignore[return-value]


def with_hooks(timer: Timer) -> Any:
    """`straight_through`, whose node's backward is timed as well; what that takes here is the timer's own."""
    forward = timed(timer, table.STRAIGHT, straight_through)
    mark, clock = timer.mark, time.perf_counter

    def add_hooks(node: Any) -> None:
        node.register_prehook(lambda grads: mark((table.STRAIGHT_BACK, clock())))
        node.register_hook(lambda grads, outer: mark((None, clock())))

    hook = timed(timer, table.HOOKS, add_hooks)

    def wrapper(x: Tensor, quantized: Tensor) -> Tensor:
        out = forward(x, quantized)
        if out.requires_grad:
            hook(out.grad_fn)
        return out

    return wrapper


PLACES: list[tuple[Any, str, table.Part]] = [
    (torch.Tensor, "backward", table.BACKWARD),
    (torch.optim.AdamW, "step", table.OPTIMIZER),
    (torch.optim.AdamW, "zero_grad", table.OPTIMIZER),
    (Trainer, "_clip", table.OPTIMIZER),
    (Trainer, "_loss", table.FORWARD),
    (block_time.Blocks, "forward", table.FORWARD),
    (Trainer, "_begin", table.UPDATE),
    (ScalingState, "update", table.UPDATE),
    (quantized_linear, "quantize_slot", table.RECORD),  # and with it record and scale_for
    (quantized_linear, "_qdq", table.QDQ),
    (quantized_linear, "tensor_to_amax", table.AMAX),
    (fused, "tensor_to_amax", table.AMAX),
    (HiF8Linear, "forward", table.LAYER),
    (HiF8Linear, "_weight", table.WEIGHT),
]


@contextmanager
def instruments(timer: Timer, plain: nn.Module, quantized: nn.Module) -> Iterator[None]:
    """Every part wrapped, in both models; as it was afterwards."""
    wrapped = [(place, name, timed(timer, part, getattr(place, name))) for place, name, part in PLACES]
    wrapped += [(quantized_linear, "straight_through", with_hooks(timer))]
    products = SimpleNamespace(linear=timed(timer, table.PRODUCTS, F.linear))
    wrapped += [(quantized_linear, "F", products)]
    for linear in map(plain.get_submodule, converted_linears(quantized)):
        wrapped += [(linear, "forward", timed(timer, table.PRODUCTS, linear.forward))]
    with ExitStack() as stack:
        for place, name, replacement in wrapped:
            stack.enter_context(mock.patch.object(place, name, replacement))
        yield


# ---- what is measured ------------------------------------------------------------------------------------


def trainers(size: str) -> list[Subject]:
    """`Trainer.run_step` of a plain and a max-window model, on one batch."""
    profile = load_profile(size)
    make_deterministic(0, profile.train.num_threads)
    base = step_time.network(size, profile)
    kinds = step_time.Kind("plain"), step_time.Kind("max_window", "max_window")
    found = [step_time.trainer(kind, base, profile) for kind in kinds]
    found[1].adamw = found[0].adamw
    model: Any = base
    tokens = torch.randint(model.config.vocab_size, (profile.train.batch_size, profile.data.sequence_length))
    steps = [partial(one.run_step, 1, tokens) for one in found]
    return [Subject(step, one.model, step) for step, one in zip(steps, found, strict=True)]


def blocks(shape: dict[str, Any], num_sequences: int, length: int, num_threads: int) -> list[Subject]:
    """A step of a plain and of a max-window block."""
    make_deterministic(0, num_threads)
    base = block_time.Blocks(shape)
    adamw = torch.optim.AdamW(base.parameters(), lr=block_time.LR)
    data = block_time.batch(num_sequences, shape["hidden_size"], length)
    runners = [block_time.Runner(block_time.KINDS[name], base, adamw) for name in (PLAIN, "max_window")]
    small = data[0][:1], data[1][:1]
    return [Subject(partial(one.step, *data), one.block, partial(one.step, *small)) for one in runners]


def profiled(subjects: Sequence[Subject], num_rounds: int) -> table.Profiled:
    """The rounds of both, plain first in `subjects`."""
    found: list[list[table.Round]] = [[], []]
    timer, order, rng, num_calls = Timer(), [0, 1], random.Random(0), [0, 0]
    for subject in subjects:
        subject.first()
    with instruments(timer, subjects[0].model, subjects[1].model):
        for _ in range(num_rounds):
            rng.shuffle(order)
            for index in order:
                found[index].append(timer.step(subjects[index].run))
                num_calls[index] = timer.num_calls
    return table.Profiled(found[0], found[1], torch.get_num_threads(), num_calls[1])


def seconds_of_a_call(num: int = 20) -> float:
    """What the timer takes for a part's call: a tiny block's step with it less one without, fastest each."""
    plain, quantized = blocks(TINY, 1, 4, 1)
    quantized.first()
    timer, num_calls, best = Timer(), 0, {True: float("inf"), False: float("inf")}
    for with_timer in (True, False) * num:
        with instruments(timer, plain.model, quantized.model) if with_timer else ExitStack():
            for _ in range(num):
                seconds = timer.step(quantized.run)
                seconds.pop(table.HOOKS, 0.0)
                best[with_timer] = min(best[with_timer], sum(seconds.values()))
                num_calls = max(num_calls, timer.num_calls)
    return (best[True] - best[False]) / (num_calls - 1)


def measure(size: str, num_rounds: int, num_sequences: int, num_threads: int) -> table.Profiled:
    """One size; the block runs on `num_threads`, the others as their profile says."""
    paper = block_time.SHAPE, num_sequences, block_time.LENGTH, num_threads
    return profiled(blocks(*paper) if size == "block" else trainers(size), num_rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Where a QAT step's time goes, by part.")
    parser.add_argument("--size", choices=(*ROUNDS, "all"), default="all")
    parser.add_argument("--rounds", type=count, help=f"{ROUNDS} by default")
    parser.add_argument("--sequences", type=count, default=4, help="the block's; the paper's are 16")
    add_out(parser)
    options = parser.parse_args(arguments)
    busy, num_threads = busy_cores(), torch.get_num_threads()
    found = {}
    for size in ROUNDS if options.size == "all" else (options.size,):
        print(f"{size} ...", flush=True)
        found[size] = measure(size, options.rounds or ROUNDS[size], options.sequences, num_threads)
    head = [
        *machine(),
        f"Cores busy with other work before and after: {busy:.1f} and {busy_cores():.1f}.",
        "",
    ]
    text = table.as_csv(found, seconds_of_a_call())
    about = [ABOUT.format(options.sequences, block_time.LENGTH), step_time.INTERVAL]
    page = table.as_markdown(text, [*head, *about])
    write_text(options.out / "profile.csv", text)
    write_text(options.out / "profile.md", page)
    save_figure(table.draw(text), options.out, "profile")
    print(page)


if __name__ == "__main__":
    run_main(main)
