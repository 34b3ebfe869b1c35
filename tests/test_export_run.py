"""`python -m pangu_hif8 export`: a trained run of a tiny model, exported, loaded, and scored the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from tiny import tiny_profile
from transformers import AutoTokenizer

from pangu_hif8 import cli, evaluate_stage, experiments, export_run, prepare
from pangu_hif8.evaluate import evaluate_model
from pangu_hif8.export import load_hif8
from pangu_hif8.files import read_json, write_json
from pangu_hif8.paths import run_dir
from pangu_hif8.prepared import Prepared
from pangu_hif8.run import Run, run_experiment


@pytest.fixture(scope="module")
def results_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """Every profile name means the tiny profile, with one block of three to quantize."""
    profile = tiny_profile()
    blocks = {"num_first_hp_blocks": 1, "num_last_hp_blocks": 1}
    profile = profile.model_copy(update={"model": profile.model.model_copy(update=blocks)})
    for module in (experiments, prepare, export_run):
        monkeypatch.setattr(module, "load_profile", lambda name: profile)
    torch.set_num_threads(1)
    return prepare.prepare("tiny")


@pytest.fixture
def run(results_of_the_module: Path, results: Path, tiny: Prepared) -> Run:
    """A trained and evaluated E8, made once, copied for each test."""
    if not list(results_of_the_module.iterdir()):
        run_experiment("E8", profile="tiny")
        shutil.copytree(results, results_of_the_module / "results")
    shutil.copytree(results_of_the_module / "results", results, dirs_exist_ok=True)
    return Run(experiments.resolve("E8", "tiny"), run_dir("tiny", "E8", 0))


def refused(words: str, arguments: list[str | Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["export", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    *bars, last = err.splitlines()  # transformers draws one while it loads
    assert not out and last.startswith("error: ") and words in last, err
    assert all("Loading weights" in bar for bar in filter(None, bars))


def test_an_exported_run_scores_the_very_same(
    run: Run, tiny: Prepared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    capsys.readouterr()
    assert cli.main(["export", str(run.directory), str(out)]) == 0
    first, weights, whole = capsys.readouterr().out.splitlines()
    assert first == f"E8 seed 0: 3 linears as 8-bit HiF8 codes in {out}"
    num_weights = 3 * 32 * 48
    assert f"{4 * num_weights:,} bytes before" in weights and "ratio 4.0" not in weights
    assert f"{num_weights + 3 * 8:,} after, ratio 3.98" in weights
    assert f"{(run.directory / 'checkpoint' / 'model.safetensors').stat().st_size:,} bytes before" in whole

    model, tokenizer = load_hif8(out), AutoTokenizer.from_pretrained(out, local_files_only=True)
    frozen, original = evaluate_stage.load_trained(run.config, tiny, run.directory)
    text = "Who is it that lives here, and what is the colour?"
    assert tokenizer(text).input_ids == original(text).input_ids
    tokens = torch.tensor([tokenizer(text).input_ids])
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, frozen(tokens).logits)
    found = evaluate_model(model, tokenizer, run.config.evaluation, tiny)
    for name, frame in (("items.csv", found.items), ("heldout.csv", found.heldout)):
        expected = pd.read_csv(run.directory / name, dtype={"item_id": str})
        pd.testing.assert_frame_equal(frame, expected, check_exact=True, check_dtype=False)


def test_a_run_is_found_by_its_id(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "E8", str(tmp_path / "out"), "--profile", "tiny", "--seed", "0"]) == 0
    assert (tmp_path / "out" / "hif8_config.json").exists()
    refused("exists already", ["E8", tmp_path / "out", "--profile", "tiny"], capsys)
    refused("no run in", ["E8", tmp_path / "other", "--profile", "tiny", "--seed", "3"], capsys)
    refused("no run in nowhere", ["nowhere", tmp_path / "other"], capsys)
    refused("would have no effect", [run.directory, tmp_path / "other", "--seed", "0"], capsys)
    refused("the following arguments are required: OUT", ["E8"], capsys)


def test_a_run_that_does_not_quantize_is_refused(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for experiment in ("E0", "E6"):
        config = experiments.resolve(experiment, "tiny")
        info = read_json(run.directory / "run.json") | {
            "config": config.model_dump(),
            "experiment": experiment,
        }
        write_json(run.directory / "run.json", info)
        refused(f"{experiment} does not quantize", [run.directory, tmp_path / "out"], capsys)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run.json", "run.json is damaged"),
        ("checkpoint/model.safetensors", "checkpoint/model.safetensors is damaged or changed"),
        ("checkpoint/scaling.safetensors", "checkpoint/scaling.safetensors is damaged or changed"),
    ],
)
@pytest.mark.parametrize("stamped", [True, False])
def test_a_damaged_run_is_refused(
    name: str, words: str, stamped: bool, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.directory / name
    path.write_bytes(path.read_bytes()[:-9])
    if not stamped:
        (run.directory / "train.stamp").unlink()
        words = words if name == "run.json" else "can't be read"
    refused(words, [run.directory, tmp_path / "out"], capsys)
    path.unlink()
    refused("no run in" if name == "run.json" else path.name, [run.directory, tmp_path / "out"], capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "running"}, "not finished (status 'running')"),
        ({"train_hash": "0"}, "trained with other settings"),
        ({"config": None}, "is no record of a run|Input should be"),
        ({"config": {}}, "profile: Field required"),
        ({"model_digest": "0"}, "started from another base model"),
    ],
    ids=str,
)
def test_a_record_of_something_else_is_refused(
    changes: dict[str, object], words: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.directory / "train.stamp").unlink()
    path = run.directory / "run.json"
    path.write_text(json.dumps(read_json(path) | changes))
    assert cli.main(["export", str(run.directory), str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert any(word in err for word in words.split("|")) and len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
