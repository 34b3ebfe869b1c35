"""`python -m pangu_hif8 evaluate --export DIR`: the bytes of the run's own scores, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from tiny import tiny_profile

from pangu_hif8 import cli, evaluate_export, experiments, export_run, export_scores, prepare
from pangu_hif8.config import Profile
from pangu_hif8.files import read_json
from pangu_hif8.paths import run_dir


def small_profile() -> Profile:
    profile = tiny_profile()
    blocks = {"num_first_hp_blocks": 1, "num_last_hp_blocks": 1}
    return profile.model_copy(update={"model": profile.model.model_copy(update=blocks)})


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every profile name means the tiny profile, with one block of three to quantize."""
    for module in (experiments, prepare, export_run, export_scores, evaluate_export):
        monkeypatch.setattr(module, "load_profile", lambda name: small_profile())
    torch.set_num_threads(2)  # the command has to go back to the profile's


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture
def export(kept: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """E8 of the tiny profile, run and exported once, copied for each test."""
    if not (kept / "E8").exists():
        assert cli.main("run E8 --profile tiny".split()) == 0
        assert cli.main(["export", "E8", str(kept / "E8"), "--profile", "tiny"]) == 0
        shutil.copytree(results, kept / "results")
    shutil.copytree(kept / "results", results, dirs_exist_ok=True)
    shutil.copytree(kept / "E8", tmp_path / "E8")
    capsys.readouterr()
    return tmp_path / "E8"


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = cli.main(["evaluate", "--profile", "tiny", *map(str, arguments)])
    return (status, *capsys.readouterr())


def test_an_export_has_the_bytes_of_its_runs_scores(export: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = evaluate(capsys, "--export", export)
    directory, run = export.with_name("E8-scores"), run_dir("tiny", "E8", 0)
    assert status == 0
    for name in ("items.csv", "heldout.csv"):
        assert (directory / name).read_bytes() == (run / name).read_bytes()
    found, expected = read_json(directory / "eval.json"), read_json(run / "eval.json")
    assert found["tasks"] == expected["tasks"] and found["heldout"] == expected["heldout"]
    assert found["export_sha256"] == read_json(export / "hif8_config.json")["tensors_sha256"]
    task, heldout = expected["tasks"]["people"], expected["heldout"]
    assert out.splitlines() == [
        f"people  acc {task['value']:.4f} +- {task['stderr']:.4f} (0-shot, 10 items)",
        *(
            f"held-out loss, {name}: {part['loss']:.4f} nats over {part['num_tokens']:,} tokens"
            for name, part in heldout.items()
        ),
        f"written to {directory}",
    ]


def test_another_place_is_a_new_directory(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(capsys, "--export", export, "--out", tmp_path / "a" / "b")[0] == 0
    names = {path.name for path in (tmp_path / "a" / "b").iterdir()}
    assert names == {"eval.json", "items.csv", "heldout.csv"}
    status, _, err = evaluate(capsys, "--export", export, "--out", tmp_path / "a" / "b")
    assert status == 2 and "exists already" in err and len(err.splitlines()) == 1


def test_a_damaged_export_is_refused_and_leaves_nothing(
    export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = export / "hif8_model.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    status, out, err = evaluate(capsys, "--export", export)
    assert (status, out) == (2, "") and str(tensors) in err
    assert [path.name for path in export.parent.iterdir() if path.name.startswith("E8")] == ["E8"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "evaluate takes an experiment, or --export DIR"),
        ("E8 --out x", "evaluate takes an experiment, or --export DIR (and then --out)"),
        ("E8 --export x", "would have no effect"),
        ("--export x --seed 0", "would have no effect"),
        ("--export x --set lr=1e-4", "would have no effect"),
        ("--export nowhere", "nowhere holds no exported HiF8 model"),
    ],
)
def test_bad_input_is_one_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = evaluate(capsys, *arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and words in err and len(err.splitlines()) == 1
