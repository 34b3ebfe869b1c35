"""A run is used whole or not at all: whatever is wrong with its files, it is listed with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_results import Dial, write_run, write_tree
from fake_training import NUM_BLOCKS

from pangu_hif8 import results as module
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS, RunConfig, resolve
from pangu_hif8.results import ProfileResults, load_profile_results
from pangu_hif8.run_checks import Unusable
from pangu_hif8.run_files import open_run, read_run


@pytest.fixture
def tree(results: Path) -> Path:
    return write_tree(results)


def load() -> ProfileResults:
    return load_profile_results("smoke")


def reasons() -> dict[str, str]:
    return {missing.experiment: missing.reason for missing in load().missing}


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("profile", sorted(NUM_BLOCKS))
def test_a_complete_tree_is_used_whole(results: Path, profile: str) -> None:
    write_tree(results, profile)
    found = load_profile_results(profile)
    assert found.experiments() == list(EXPERIMENTS)
    assert (found.missing, found.notices) == ([], [])
    assert (
        len(found.input_hashes()) == 9 * 5 + 8 * 2 + 6
    )  # all; trained: steps and timing; quantized: saturation


def test_frames_are_tidy(tree: Path) -> None:
    found = load()
    steps = found.settings.train.steps
    assert len(found.steps) == 8 * steps
    assert set(found.saturation["experiment"]) == {"E2", "E3", "E4", "E5", "E7", "E8"}
    warmup = found.saturation.query("experiment == 'E8'")["step"].min()
    assert warmup == found.settings.train.bf16_warmup_steps + 1


def _truncate(share: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])

    return change


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "half": _truncate(0.5),
    "last byte": lambda path: path.write_bytes(path.read_bytes().rstrip()[:-1]),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 4),
    "folder": _folder,
    "text": lambda path: path.write_text("hello\n"),
    "list": lambda path: path.write_text("[1]\n"),
}


FILES = ["run.json", "steps.csv", "saturation.csv", "eval.json", "items.csv", "heldout.csv"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_by_name(results: Path, name: str, damage: str) -> None:
    directory = write_run(results, "E5", "smoke", 0, Dial())
    DAMAGE[damage](directory / name)
    with pytest.raises(Unusable) as refusal:
        read_run(directory, resolve("E5", "smoke", 0))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_takes_its_run_out_and_no_other(tree: Path, name: str) -> None:
    DAMAGE["half"](tree / "E5" / "seed0" / name)
    found = load()
    assert [m.experiment for m in found.missing] == ["E5"]
    assert name in found.missing[0].reason
    assert found.experiments() == [name for name in EXPERIMENTS if name != "E5"]
    assert found.lacks("E1", "E5") == [f"E5 missing ({found.missing[0].reason})"]


def test_timings_are_not_required(tree: Path) -> None:
    for path in tree.glob("*/seed0/*timing.json"):
        path.write_text("{")
    assert load().missing == []


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("run.json", {"status": "running"}, "not finished"),
        ("run.json", {"experiment": "E2"}, "another run"),
        ("run.json", {"seed": 1}, "another run"),
        ("run.json", {"profile": "laptop"}, "another run"),
        ("run.json", {"schema_version": 3}, "schema"),
        ("run.json", {"train_hash": "0"}, "other settings"),
        ("run.json", {"num_converted_linears": 0, "converted": []}, "labelled HiF8"),
        ("run.json", {"quantized_from_step": None}, "labelled HiF8"),
        ("run.json", {"num_steps": 59}, "steps"),
        ("eval.json", {"experiment": "E2"}, "another run"),
        ("eval.json", {"train_hash": "0"}, "other settings"),
        ("eval.json", {"eval_hash": "0"}, "other settings"),
        ("eval.json", {"tasks": {}}, "lacks people"),
    ],
)
def test_a_wrong_field_is_named(tree: Path, name: str, changes: dict[str, Any], reason: str) -> None:
    edit(tree / "E5" / "seed0" / name, **changes)
    assert reason in reasons()["E5"]
    assert set(reasons()) == {"E5"}


def test_changed_settings_are_named(tree: Path) -> None:
    path = tree / "E5" / "seed0" / "run.json"
    config = json.loads(path.read_text())["config"]
    config["train"]["steps"] += 7
    edit(path, train_hash="0", config=config)
    steps = load().settings.train.steps
    assert f"train.steps: {steps + 7}, now {steps}" in reasons()["E5"]


def test_an_unquantized_run_that_converted_is_refused(tree: Path) -> None:
    edit(tree / "E6" / "seed0" / "run.json", num_converted_linears=1, converted=["x"])
    assert "says that it converted" in reasons()["E6"]


def _drop_line(path: Path) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")


def test_tables_that_lack_a_row_are_refused(tree: Path) -> None:
    for experiment, name in (
        ("E1", "steps.csv"),
        ("E2", "saturation.csv"),
        ("E3", "items.csv"),
        ("E4", "heldout.csv"),
    ):
        _drop_line(tree / experiment / "seed0" / name)
    assert set(reasons()) == {"E1", "E2", "E3", "E4"}


def test_another_runs_items_are_noticed(results: Path) -> None:
    tree = write_tree(results, dials={"E1": Dial(turned_wrong=0.1)})
    shutil.copy(tree / "E0/seed0/items.csv", tree / "E1/seed0/items.csv")
    assert "disagree" in reasons()["E1"]


def test_a_nan_loss_is_refused(tree: Path) -> None:
    path = tree / "E1" / "seed0" / "steps.csv"
    lines = path.read_text().splitlines()
    cells = lines[5].split(",")
    path.write_text("\n".join([*lines[:5], ",".join([cells[0], "nan", *cells[2:]]), *lines[6:]]) + "\n")
    assert "steps.csv" in reasons()["E1"]


def test_a_run_that_is_not_there(tree: Path) -> None:
    shutil.rmtree(tree / "E5")
    assert reasons() == {"E5": "not run"}


def test_no_results_at_all(results: Path) -> None:
    with pytest.raises(UserError, match="make reproduce PROFILE=smoke"):
        load()
    with pytest.raises(UserError, match="valid:"):
        load_profile_results("desktop")
    (results / "smoke").mkdir(parents=True)
    assert {m.reason for m in load().missing} == {"not run"}


def test_runs_of_different_code_are_not_mixed(tree: Path) -> None:
    edit(tree / "E5" / "seed0" / "run.json", train_code="old")
    assert reasons() == {"E5": "made by another version of the train_stage code than the present one"}
    edit(tree / "E2" / "seed0" / "eval.json", eval_code="old")
    assert set(reasons()) == {"E5", "E2"}


def test_runs_that_share_an_earlier_code_are_used(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "source_digest", lambda name: "new")
    found = load()
    assert found.missing == []
    assert len(found.notices) == 2


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("run.json", "model_digest"),
        ("run.json", "data_digest"),
        ("eval.json", "items_digest"),
        ("eval.json", "batch_size"),
    ],
)
def test_a_run_on_other_data_is_left_out(tree: Path, name: str, field: str) -> None:
    edit(tree / "E8" / "seed0" / name, **{field: "other"})
    assert "not comparable" in reasons()["E8"]
    assert set(reasons()) == {"E8"}


def test_without_a_majority_nothing_is_compared(tree: Path) -> None:
    for name in ("E3", "E4", "E5", "E6", "E7", "E8", "E2"):
        shutil.rmtree(tree / name)
    edit(tree / "E1" / "seed0" / "run.json", model_digest="other")
    found = load()
    assert found.runs == {}
    assert "not comparable" in {m.experiment: m.reason for m in found.missing}["E0"]


def test_every_seed_is_expected_of_every_run(results: Path) -> None:
    tree = write_tree(results, seeds=(0, 2))
    shutil.rmtree(tree / "E7" / "seed2")
    found = load()
    assert [str(m) for m in found.missing] == ["E7 (seed 2): not run"]
    assert [(q.name, b.name) for q, b in found.pairs("E8", "E0")] == [
        ("E8/seed0", "E0/seed0"),
        ("E8/seed2", "E0/seed0"),
    ]
    assert len(found.pairs("E7", "E6")) == 1


def test_other_directories_are_named_and_left_alone(tree: Path) -> None:
    (tree / "E8-custom-0123").mkdir()
    (tree / "E8" / "seedx").mkdir()
    (tree / ".tmp").write_text("")
    found = load()
    assert found.notices == ["not part of this report: 1 run with changed settings"]
    assert len(found.runs) == 9


def test_open_run_says_what_is_wrong(results: Path) -> None:
    directory = write_run(results, "E8", "smoke", 0, Dial())
    assert open_run(str(directory)).name == "E8/seed0"
    (directory / "steps.csv").unlink()
    with pytest.raises(UserError, match=r"steps\.csv is missing"):
        open_run(directory)
    with pytest.raises(UserError, match=r"run\.json is missing"):
        open_run(results / "nowhere")


def test_answers_that_are_generated_are_read_by_their_own_metric(results: Path) -> None:
    directory = write_run(results, "E1", "smoke", 0, Dial())
    info = json.loads((directory / "run.json").read_text())
    info["config"]["evaluation"]["tasks"][0] |= {"metric": "exact_match", "num_items": None}
    info["config"]["evaluation"] |= {"source": "hub"}
    config = RunConfig.model_validate(info["config"])
    edit(directory / "run.json", config=info["config"])
    tasks = json.loads((directory / "eval.json").read_text())["tasks"]
    tasks["people"]["metric"] = "exact_match"
    edit(directory / "eval.json", tasks=tasks, eval_hash=config.eval_hash())
    items = pd.read_csv(directory / "items.csv")
    right = items["acc"].to_numpy()
    items.assign(exact_match=right, acc=float("nan")).to_csv(directory / "items.csv", index=False)
    assert read_run(directory, config).items["correct"].sum() == right.sum()
    items.assign(acc=float("nan")).to_csv(directory / "items.csv", index=False)
    with pytest.raises(Unusable, match="no column exact_match"):
        read_run(directory, config)
