"""What the engine writes passes the reader: a tiny model trained for real, one step skipped, some sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import tiny_profile

from pangu_hif8 import experiments, prepare, train
from pangu_hif8.describe import describe_run
from pangu_hif8.run import run_experiment
from pangu_hif8.run_files import open_run
from pangu_hif8.telemetry import read_telemetry

BROKEN, STEPS, EVERY = 3, 6, 2


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every profile name means the tiny profile: one block of three to quantize, samples at even steps."""
    profile = tiny_profile()
    changes = {"steps": STEPS, "bf16_warmup_steps": 1, "telemetry_every": EVERY}
    blocks = {"num_first_hp_blocks": 1, "num_last_hp_blocks": 1}
    parts = {
        "train": profile.train.model_copy(update=changes),
        "model": profile.model.model_copy(update=blocks),
    }
    changed = profile.model_copy(update=parts)
    for module in (experiments, prepare):
        monkeypatch.setattr(module, "load_profile", lambda name: changed)


@pytest.fixture
def broken_step(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of step 3 is not a number. The run has one micro-batch a step and no pass before its first."""
    prepare.prepare("tiny")  # its pre-training is none of this
    plain, calls = train.next_token_loss_sum, []

    def loss_sum(*args: Any, **options: Any) -> torch.Tensor:
        calls.append(None)
        return plain(*args, **options) * (float("nan") if len(calls) == BROKEN else 1.0)

    monkeypatch.setattr(train, "next_token_loss_sum", loss_sum)


@pytest.mark.parametrize("gradients", [None, True])
def test_a_run_with_a_skipped_step(broken_step: None, gradients: bool | None) -> None:
    directory = run_experiment("E8", profile="tiny", gradients=gradients).directory
    found, run = read_telemetry(directory), open_run(directory)
    kinds = {"input", "weight"} | ({"gradient"} if gradients else set())
    assert set(found["kind"]) == kinds
    assert len(found) == STEPS * 3 * len(kinds)
    assert run.num_skipped == 1
    assert set(found.loc[found["amax"].isna(), "step"]) == {BROKEN}
    assert set(found.loc[found["quantized"], "step"]) == {2, 3, 4, 5, 6}
    assert set(found.loc[found["clipped_share"].notna(), "step"]) == {2, 4, 6}
    sampled = found[found["clipped_share"].notna()]
    assert sampled["sqnr_db"].between(5, 45).all()  # 31 dB unclipped; a gradient that doubles is clipped
    assert sampled["clipped_share"].le(0.01).all()
    assert "not finite: 1 of the steps." in describe_run(directory)


@pytest.mark.parametrize("experiment", ["E2", "E3", "E4", "E5"])
def test_each_estimator(experiment: str) -> None:
    found = read_telemetry(run_experiment(experiment, profile="tiny").directory)
    assert found["quantized"].all()
    assert ((found["overshoot"] > 1) == found["saturated"]).all()
