"""Whole runs of a tiny model: what is written, that it repeats to the byte, and what stale files lead to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_profile

from pangu_hif8 import evaluate_stage, experiments, prepare, run_facts, train_stage
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json
from pangu_hif8.linear import HiF8Linear
from pangu_hif8.paths import run_dir
from pangu_hif8.prepared import Prepared
from pangu_hif8.run import evaluate_experiment, run_experiment, train_experiment

HP_BLOCKS = {"num_first_hp_blocks": 1, "num_last_hp_blocks": 1}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """Every profile name means the tiny profile, with one block of three to quantize."""
    profile = tiny_profile()
    train = profile.train.model_copy(update={"steps": 4, "bf16_warmup_steps": 2, "lr_scale": 10.0})
    model = profile.model.model_copy(update=HP_BLOCKS)
    profile = profile.model_copy(update={"train": train, "model": model})
    for module in (experiments, prepare):
        monkeypatch.setattr(module, "load_profile", lambda name: profile)
    return prepare.prepare("tiny")


def read(experiment: str, name: str) -> bytes:
    return (run_dir("tiny", experiment, 0) / name).read_bytes()


def table(experiment: str, name: str) -> pd.DataFrame:
    return pd.read_csv(run_dir("tiny", experiment, 0) / name)


@pytest.mark.parametrize("experiment", ["E0", "E1", "E2", "E3", "E4", "E5", "E8"])
def test_a_run_is_what_its_label_says(experiment: str) -> None:
    done = run_experiment(experiment, profile="tiny")
    facts, quantized = read_json(done.directory / "run.json"), done.config.quantization is not None
    assert facts["num_converted_linears"] == (3 if quantized else 0)
    assert facts["quantized_from_step"] == ({"E8": 3}.get(experiment, 1) if quantized else None)
    assert (done.directory / "saturation.csv").exists() == quantized
    assert read_json(done.directory / "eval.json")["tasks"]["people"]["num_items"] == 10
    if experiment != "E0":
        steps = table(experiment, "steps.csv")
        assert steps["quantized"].tolist() == [
            int(quantized and (experiment != "E8" or s > 2)) for s in range(1, 5)
        ]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not() -> None:
    names = ("steps.csv", "saturation.csv", "items.csv", "heldout.csv", "run.json", "eval.json")
    done = run_experiment("E5", profile="tiny")
    before = [read("E5", name) for name in names]
    shutil.rmtree(done.directory)
    run_experiment("E5", profile="tiny")
    assert [read("E5", name) for name in names] == before
    other = run_experiment("E5", profile="tiny", seed=1)
    assert (other.directory / "steps.csv").read_bytes() != before[0]


def test_all_runs_of_a_seed_start_alike_and_the_warm_up_is_the_baseline() -> None:
    losses = {}
    for experiment in ("E1", "E6", "E8"):
        run_experiment(experiment, profile="tiny")
        losses[experiment] = table(experiment, "steps.csv")["loss"].tolist()
    assert losses["E1"][0] == losses["E6"][0]
    assert losses["E8"][:2] == losses["E6"][:2]
    assert losses["E8"][2] != losses["E6"][2]


def test_a_second_call_does_nothing_and_a_damaged_file_redoes_its_stage(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run_experiment("E5", profile="tiny").directory
    steps = read("E5", "steps.csv")
    calls: list[str] = []
    for module, name in ((train_stage, "train_run"), (evaluate_stage, "evaluate_run")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, n=name, f=real, **k: calls.append(n) or f(*a, **k))
    run_experiment("E5", profile="tiny")
    assert calls == [] and "up to date" in capsys.readouterr().out
    (directory / "items.csv").write_text("half")
    run_experiment("E5", profile="tiny")
    assert calls == ["evaluate_run"]
    (directory / "steps.csv").write_bytes(steps[:-3])
    run_experiment("E5", profile="tiny")
    assert calls == ["evaluate_run", "train_run", "evaluate_run"]
    assert read("E5", "steps.csv") == steps


def loaded(experiment: str, tiny: Prepared):
    done = run_experiment(experiment, profile="tiny")
    return done, evaluate_stage.load_trained(done.config, tiny, done.directory)[0]


def test_evaluation_uses_trained_weights_and_frozen_quantizers(tiny: Prepared) -> None:
    done, model = loaded("E5", tiny)
    layers = [m for m in model.modules() if isinstance(m, HiF8Linear)]
    assert len(layers) == 3 and {m.state.mode for m in layers} == {"frozen"} and not model.training
    trained = load_file(done.directory / "checkpoint" / "model.safetensors")
    assert all(torch.equal(p, trained[name]) for name, p in model.named_parameters())
    assert not torch.equal(
        trained["model.embed_tokens.weight"], loaded("E0", tiny)[1].model.embed_tokens.weight
    )
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        quantized = model(tokens).logits
        layers[0].state.set_mode("off")
        assert not torch.equal(model(tokens).logits, quantized)


def test_a_checkpoint_without_scaling_state_or_with_odd_tensors_is_refused(tiny: Prepared) -> None:
    done = run_experiment("E5", profile="tiny")
    checkpoint = done.directory / "checkpoint"

    def refused(match: str) -> None:
        with pytest.raises(UserError, match=match):
            evaluate_stage.load_trained(done.config, tiny, done.directory)

    weights = load_file(checkpoint / "model.safetensors")
    scaling = load_file(checkpoint / "scaling.safetensors")
    save_file({"history": scaling["history"]}, checkpoint / "scaling.safetensors")
    refused("no scaling state 'running'")
    (checkpoint / "scaling.safetensors").unlink()
    refused("can't be read")
    save_file(weights | {"extra": torch.zeros(1)}, checkpoint / "model.safetensors")
    refused("differ in 1 tensors, first extra")
    save_file(weights | {"model.norm.weight": torch.zeros(3)}, checkpoint / "model.safetensors")
    refused("model.norm.weight has shape")
    (checkpoint / "model.safetensors").write_bytes(b"half")
    refused("can't be read")


def test_a_label_without_quantization_is_an_error_and_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_facts, "converted_linears", lambda model: [])
    with pytest.raises(UserError, match="labelled HiF8 and never quantized"):
        run_experiment("E5", profile="tiny")
    assert not list(run_dir("tiny", "E5", 0).glob("*.json"))


def test_retraining_that_fails_leaves_no_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = run_experiment("E5", profile="tiny").directory
    (directory / "steps.csv").unlink()

    def killed(*args: object, **how: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_stage, "train_run", killed)
    with pytest.raises(KeyboardInterrupt):
        run_experiment("E5", profile="tiny")
    assert not [
        n for n in ("run.json", "eval.json", "train.stamp", "evaluate.stamp") if (directory / n).exists()
    ]


def test_benchmarks_are_checked_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pangu_hif8.evaluate.check_tasks", lambda *a: (_ for _ in ()).throw(UserError("no items"))
    )
    monkeypatch.setattr(train_stage, "train_run", lambda *a, **k: pytest.fail("trained"))
    with pytest.raises(UserError, match="no items"):
        run_experiment("E5", profile="tiny")


def test_a_run_that_is_trained_has_nothing_to_resume() -> None:
    run_experiment("E5", profile="tiny")
    with pytest.raises(UserError, match="E5 seed 0 is trained already; there is nothing to resume"):
        run_experiment("E5", profile="tiny", resume=Path("somewhere"))


def test_evaluation_alone_asks_for_training_first() -> None:
    with pytest.raises(UserError, match=r"E5 seed 0 is not trained \(not made yet\); train it first"):
        evaluate_experiment("E5", profile="tiny")
    trained = train_experiment("E5", profile="tiny").directory
    assert not (trained / "eval.json").exists()
    assert (evaluate_experiment("E5", profile="tiny").directory / "eval.json").exists()


def test_a_run_whose_ranks_kept_their_own_amaxes_is_evaluated_with_the_first_one_s(tiny: Prepared) -> None:
    done = run_experiment("E5", profile="tiny", reduce_amax=False)
    saved = load_file(done.directory / "checkpoint" / "scaling.safetensors")
    model = evaluate_stage.load_trained(done.config, tiny, done.directory)[0]
    state = next(m for m in model.modules() if isinstance(m, HiF8Linear)).state
    assert torch.equal(state.history, saved["rank0.history"]) and (state.estimate > 0).all()
