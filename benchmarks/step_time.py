"""What does quantization cost a training step? Each kind of step beside the plain model's, in one process.

All kinds train the same weights with one optimizer: each has its own modules and scales around the same
parameters, and runs `Trainer.run_step` as a run does, AdamW included, at a tiny learning rate. A round gives
each kind two steps, in an order drawn anew. At smoke size they follow each other and the second is timed, so
that it finds memory and caches as a step of its own kind has left them. At laptop size a step goes through
gigabytes, whoever was there before: all kinds take their first step and then, in the reversed order, their
second, and the mean is kept, so that a steady drift meets all kinds alike. Weights are random: what a step
costs does not depend on them.

    smoke    the smoke profile's model and batch
    laptop   SmolLM2-135M's architecture, the laptop profile's batch

The journal's cost (`entry_of` and `Journal.append`) is timed by itself, since `run_step` does not write.

    python benchmarks/step_time.py [--size smoke|laptop|both] [--repeats N] [--all] [--compile] [--out DIR]
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pangu_hif8.siblings import SPINS_ALONE

os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_ALONE))  # as a run alone has it; read with torch

import torch
from asked import add_out, count, run_main
from speed_table import busy_cores, machine
from step_table import (
    BOTH,
    CODES,
    CYCLE,
    DELAYED,
    INTERVAL,
    JOURNAL,
    OFF,
    SAMPLED,
    Rounds,
    as_csv,
    as_markdown,
    steadiness,
)
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from pangu_hif8.config import Profile, QuantConfig, TrainConfig, load_profile
from pangu_hif8.files import write_text
from pangu_hif8.journal import Journal
from pangu_hif8.linear import prepare_qat
from pangu_hif8.ranks import Ranks
from pangu_hif8.records import entry_of
from pangu_hif8.saved_codes import save_inputs_as_codes
from pangu_hif8.train import StepRecord, Trainer
from pangu_hif8.train_stage import make_deterministic

SMOLLM2_135M: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
REPEATS = {"smoke": 30, "laptop": 3}
THERE_AND_BACK = ("laptop",)
NUM_WARM_UP_ROUNDS = 1  # it gives every slot its scale
NEVER = 10**6  # steps: beyond what is run here
LR, QUIET = 1e-7, 0.2


@dataclass(frozen=True)
class Kind:
    """One kind of step. `algo` None: the plain model, never converted."""

    name: str
    algo: str | None = None
    quant: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    codes: bool = False


def kinds(every: bool, compiled: bool) -> list[Kind]:
    """What is timed: what carries a goal, and `every` other; `compiled` adds torch.compile of the model."""
    window = "max_window"
    found = [Kind(OFF), *(Kind(algo, algo) for algo in (*DELAYED, "current"))]
    found += [Kind(SAMPLED, window, train={"telemetry_every": 1}), Kind(CODES, window, codes=True)]
    if every:
        found += [Kind("calibrate", window, {"bf16_warmup_steps": NEVER})]
        gradients = {"gradients": {"amax_compute_algo": window}}
        found += [Kind("max_window, gradients quantized", window, gradients)]
    conditions = {"activation checkpointing": {"activation_checkpointing": True}} if every else {}
    if compiled:
        conditions["compile"] = {"compile": True}
    for name, settings in conditions.items():
        found += [Kind(f"{OFF} + {name}", train=settings), Kind(f"{window} + {name}", window, train=settings)]
    return found


def network(size: str, profile: Profile) -> nn.Module:
    """A model of that size with random weights."""
    small = {"vocab_size": profile.model.vocab_size} | (profile.model.architecture or {})
    return LlamaForCausalLM(LlamaConfig(**(SMOLLM2_135M if size == "laptop" else small)))


def trainer(kind: Kind, base: nn.Module, profile: Profile) -> Trainer:
    """A Trainer around `base`'s own parameters, in modules and with scales of its own."""
    model = copy.deepcopy(base, {id(p): p for p in base.parameters()})
    values = profile.train.model_dump() | {"steps": NEVER, "telemetry_every": 0} | kind.train
    scaling = None
    if kind.algo:
        window = {"amax_compute_algo": kind.algo, "amax_history_len": profile.train.amax_history_len}
        blocks = (profile.model.num_first_hp_blocks, profile.model.num_last_hp_blocks)
        scaling = prepare_qat(model, QuantConfig.model_validate(window | kind.quant), *blocks)
    if kind.codes:
        save_inputs_as_codes(model)
    return Trainer(model, TrainConfig.model_validate(values), LR, scaling, Ranks("none"))


def journal_seconds(journal: Journal, record: StepRecord, trained: Trainer, number: int) -> float:
    """Time to write a step's line."""
    started = time.perf_counter()
    journal.append(entry_of(record, trained.scaling) | {"step": number})
    return time.perf_counter() - started


def measure(size: str, num_rounds: int, every: bool = False, compiled: bool = False) -> tuple[int, Rounds]:
    """Threads, and the seconds of every kind of step in each round."""
    profile = load_profile(size)
    make_deterministic(0, profile.train.num_threads)
    base = network(size, profile)
    trainers = {kind.name: trainer(kind, base, profile) for kind in kinds(every, compiled)}
    for one in trainers.values():
        one.adamw = trainers[OFF].adamw
    with tempfile.TemporaryDirectory() as directory, Journal(Path(directory) / "journal.jsonl") as journal:
        rounds = _rounds(trainers, profile, num_rounds + NUM_WARM_UP_ROUNDS, size in THERE_AND_BACK, journal)
    return profile.train.num_threads, {name: times[NUM_WARM_UP_ROUNDS:] for name, times in rounds.items()}


def _rounds(
    trainers: dict[str, Trainer], profile: Profile, num: int, there_and_back: bool, journal: Journal
) -> Rounds:
    found: Rounds = {name: [] for name in (*trainers, JOURNAL)}
    order, rng = list(trainers), random.Random(0)
    for number in range(1, num + 1):
        tokens = batch_for(trainers[OFF], profile)
        rng.shuffle(order)
        times: Rounds = {name: [] for name in trainers}
        records: dict[str, StepRecord] = {}
        for name in turns(order, there_and_back, number <= NUM_WARM_UP_ROUNDS):
            started = time.perf_counter()
            records[name] = trainers[name].run_step(number, tokens)
            times[name].append(time.perf_counter() - started)
        for name in trainers:
            found[name].append(seconds_kept(times[name], there_and_back))
        found[JOURNAL].append(journal_seconds(journal, records[SAMPLED], trainers[SAMPLED], number))
    return found


def turns(order: Sequence[str], there_and_back: bool, warms_up: bool = False) -> list[str]:
    """Who takes a step in a round, one after the other: each kind twice; once where a way there warms up."""
    if not there_and_back:
        return [name for name in order for _ in range(2)]
    return [*order] if warms_up else [*order, *reversed(order)]


def seconds_kept(times: Sequence[float], there_and_back: bool) -> float:
    """What stands for a kind's steps in a round: their mean, or the last, before which its own kind ran."""
    return statistics.mean(times) if there_and_back else times[-1]


def batch_for(trained: Trainer, profile: Profile) -> Tensor:
    model: Any = trained.model
    return torch.randint(0, model.config.vocab_size, (profile.train.batch_size, profile.data.sequence_length))


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Time a training step with and without HiF8.")
    parser.add_argument("--size", choices=(*REPEATS, "both"), default="both")
    parser.add_argument("--repeats", type=count, help=f"rounds, {REPEATS} by default")
    parser.add_argument("--all", action="store_true", help="also checkpointing, gradients and calibration")
    parser.add_argument("--compile", action="store_true", help="also with torch.compile of the model")
    add_out(parser)
    options = parser.parse_args(arguments)
    busy = [busy_cores()]
    if busy[0] > QUIET:
        print(f"warning: {busy[0]:.1f} cores are busy with something else; ratios hold, milliseconds don't")
    measured = {}
    for size in REPEATS if options.size == "both" else (options.size,):
        print(f"{size} ...", flush=True)
        measured[size] = measure(size, options.repeats or REPEATS[size], options.all, options.compile)
    table = as_csv(measured)
    text = as_markdown(table, _head(measured, [*busy, busy_cores()]))
    write_text(options.out / "step_time.csv", table)
    write_text(options.out / "step_time.md", text)
    print(text)


def _head(measured: dict[str, tuple[int, Rounds]], busy: list[float]) -> list[str]:
    sizes = []
    for size, (threads, rounds) in measured.items():
        plain = rounds[OFF]
        num = f"{len(plain)} rounds{BOTH * (size in THERE_AND_BACK)}"
        sizes.append(f"- {size}: {num}, {threads} thread(s). {steadiness(plain)}")
    return [
        *machine(),
        f"Cores busy with other work before and after: {' and '.join(f'{b:.1f}' for b in busy)}.",
        "",
        *sizes,
        "",
        f"Medians of ratios within a round. {INTERVAL} Telemetry "
        f"on: the journal of every step, and clipping, flushing and SQNR sampled once in {CYCLE}.",
    ]


if __name__ == "__main__":
    run_main(main)
