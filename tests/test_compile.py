"""torch.compile of the model: what an eager run computes, few compilations, and clear refusals.

Each graph takes seconds to compile, so these runs have one block.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_runs import TokensAreAmaxes, differences, everything, losses, quant, scales, steps, trainer
from test_linear import tiny_llama
from torch import Tensor
from torch._dynamo.utils import counters

from pangu_hif8.errors import UserError
from pangu_hif8.quant_config import QuantConfig
from pangu_hif8.train import StepRecord, Trainer

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler"
)
NUM_STEPS, SWITCH, SAMPLED = 70, 5, 7


def small(step: int) -> Tensor:
    return torch.randint(1, 16, (4, 6), generator=torch.Generator().manual_seed(step))


def toy(config: QuantConfig, compile: bool = True, **more: Any) -> Trainer:
    return trainer(config, TokensAreAmaxes(), blocks=0, micro_batch_size=2, compile=compile, **more)


def num_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    counters.clear()


def compare(eager: list[StepRecord], compiled: list[StepRecord]) -> None:
    assert losses(compiled) == pytest.approx(losses(eager), rel=1e-5)
    for a, b in zip(eager, compiled, strict=True):
        assert a.scaling is not None
        assert b.scaling is not None
        assert a.scaling.quantized == b.scaling.quantized
        torch.testing.assert_close(a.scaling.amax, b.scaling.amax, rtol=1e-5, atol=0)
        torch.testing.assert_close(a.scaling.estimate, b.scaling.estimate, rtol=1e-5, atol=0)


@needs_compiler
def test_seventy_steps_with_warm_up_switch_and_samples_are_an_eager_run_s() -> None:
    config = quant("max_window", bf16_warmup_steps=SWITCH)
    more = dict(lr=1e-4, micro_batch_size=2, telemetry_every=SAMPLED, blocks=0)
    eager, compiled = (trainer(config, tiny_llama(1), compile=on, **more) for on in (False, True))
    expected, found = steps(eager, NUM_STEPS), list[StepRecord]()
    after = {}
    for step in range(1, NUM_STEPS + 1):
        found += steps(compiled, 1, first=step)
        after[step] = num_graphs()
    compare(expected, found)
    torch.testing.assert_close(scales(eager).scale, scales(compiled).scale, rtol=1e-5, atol=0)
    kinds = [after[SWITCH], after[SWITCH + 1], after[SAMPLED], after[NUM_STEPS]]
    assert kinds == [1, 2, 3, 3]  # calibrate, quantize, sampled; none for being another step
    assert not counters["graph_break"]
    for step in range(SAMPLED, NUM_STEPS + 1, SAMPLED):
        a, b = (records[step - 1].scaling.stats for records in (expected, found))  # type: ignore[union-attr]
        assert a is not None
        assert b is not None
        torch.testing.assert_close(a.sqnr_db, b.sqnr_db, rtol=1e-4, atol=0)
        torch.testing.assert_close(a.clipped_share, b.clipped_share, rtol=0, atol=1e-3)
        torch.testing.assert_close(a.flushed_share, b.flushed_share, rtol=0, atol=1e-3)


@needs_compiler
def test_current_scaling_with_recomputation() -> None:
    found = []
    for on in (False, True):
        run = trainer(
            quant("current"), tiny_llama(1), blocks=0, compile=on, activation_checkpointing=True, lr=1e-4
        )
        found.append(steps(run, 3))
    compare(*found)


@needs_compiler
def test_in_bfloat16_what_is_recorded_is_what_is_quantized() -> None:
    """As without compilation, to the bit: the compiler does not leave a rounding out."""
    runs = [toy(quant("max_window"), on, precision="bfloat16", lr=1e-3) for on in (False, True)]
    eager, compiled = (steps(run, 3, small) for run in runs)
    compare(eager, compiled)
    for record in compiled:
        assert record.scaling is not None
        assert torch.equal(record.scaling.amax, record.scaling.amax.bfloat16().float())


@needs_compiler
def test_a_skipped_step_and_the_diagnosis_in_a_compiled_run() -> None:
    run = toy(quant("max_window"), max_skipped_steps=2)
    steps(run, 1, small)
    head = run.model.get_parameter("head.weight")
    kept = head.detach().clone()
    before = everything(run)
    head.data[3, 1] = float("nan")
    assert run.run_step(2, small(2)).skipped
    head.data.copy_(kept)
    assert differences(before, everything(run)) == []
    assert not run.run_step(3, small(3)).skipped
    assert num_graphs() == 1
    head.data[3, 1] = float("nan")
    assert run.run_step(4, small(4)).skipped
    with pytest.raises(UserError, match=r"step 5: .*First: the weight head\.weight holds"):
        run.run_step(5, small(5))


@needs_compiler
def test_a_stale_weight_is_never_used() -> None:
    """A layer that can't be traced, its weight being out of date, runs uncompiled and makes it anew."""
    run = toy(quant("max_window"), lr=0.1)
    stale = run.model.get_submodule("model.layers.0.mlp.up_proj")
    steps(run, 1, small)
    before = stale.quantized_weight
    logits = run.wrapped(small(2)).logits
    assert not torch.equal(stale.quantized_weight, before)
    assert torch.equal(logits, run.model(small(2)).logits)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (quant("max_window", gradients=quant("max_window")), "compile with quantized gradients"),
        (quant("max_window", history_unit="micro_batch"), "compile with history_unit micro_batch"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(config: QuantConfig, words: str) -> None:
    with pytest.raises(UserError, match=f"{words} is not offered"):
        toy(config)


WITHOUT = """
import engine_runs
from pangu_hif8.errors import UserError
run = engine_runs.trainer(engine_runs.quant(), engine_runs.TokensAreAmaxes(), blocks=0, compile=True)
try:
    run.run_step(1, engine_runs.rows(1, 2, 3, 4))
except UserError as error:
    print(error)
"""


def test_without_a_compiler_one_line_says_so(tmp_path: Path) -> None:
    """In a process of its own, whose caches are empty and whose compiler is a path to nothing."""
    here = Path(__file__).parent
    nothing = {"CXX": "/nowhere/g++", "PATH": "/nowhere", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    environment = os.environ | nothing | {"PYTHONPATH": str(here)}
    command = [sys.executable, "-c", WITHOUT]
    found = subprocess.run(command, cwd=here.parent, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    (line,) = found.stdout.strip().splitlines()
    assert line.startswith("torch.compile does not work here: No working C++ compiler found")
    assert line.endswith("or set compile to false.")
