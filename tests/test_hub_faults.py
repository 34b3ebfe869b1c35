"""The paper's benchmarks from files in the hub's layout: what is faulty or can't be scored is refused."""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import datasets
import pytest
from hub_files import TASKS, as_datasets, build_items, needs_math, paper_evaluation

from pangu_hif8 import hub_tasks, lm_tasks
from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.evaluate import check_tasks
from pangu_hif8.prepared import Prepared


def test_a_hub_that_answers_no_is_a_clear_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"benchmark gsm8k: data set openai/gsm8k main can't be read: .*items_dir"
    ):
        build_items(tmp_path, paper_evaluation(None, "gsm8k"), offline=True)


def damaged(hub: Path, tmp_path: Path, kind: str) -> Path:
    """A copy of the hub's files with one fault."""
    folder = tmp_path / "hub"
    shutil.copytree(hub, folder)
    arc = folder / "allenai/ai2_arc"
    test = arc / "ARC-Easy/test-00000-of-00001.parquet"
    if kind == "script":
        shutil.rmtree(arc / "ARC-Easy")
        (arc / "ai2_arc.py").write_text("raise SystemExit('run')")
    elif kind == "cut short":
        test.write_bytes(test.read_bytes()[:-200])
    elif kind == "no split":
        test.unlink()
    elif kind == "empty":
        rows = as_datasets("allenai/ai2_arc", "ARC-Easy")["test"].select([])
        rows.to_parquet(test)
    elif kind == "no configuration":
        shutil.rmtree(arc / "ARC-Easy")
    else:
        shutil.rmtree(arc)
    return folder


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("script", "benchmark arc_easy: data set allenai/ai2_arc ARC-Easy .* a script, which is never run"),
        (
            "cut short",
            "benchmark arc_easy: data set allenai/ai2_arc ARC-Easy can't be read: .*fetch it again",
        ),
        ("no split", r"ARC-Easy has no files test-\* and train-\* of one kind \(\.parquet"),
        ("empty", "benchmark arc_easy: .* corresponds to no data"),
        ("no configuration", r"ARC-Easy has no files test-\*"),
        (
            "nothing",
            r"allenai/ai2_arc is missing; hf download --repo-type dataset allenai/ai2_arc --local-dir",
        ),
    ],
)
def test_a_faulty_data_set_is_refused(kind: str, message: str, hub: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_items(tmp_path / "items", paper_evaluation(damaged(hub, tmp_path, kind), "arc_easy"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TaskConfig(name="people", metric="acc"), "unknown benchmark 'people'; valid with source hub: mmlu"),
        (TaskConfig(name="mmlu", metric="acc_norm"), "mmlu has no metric acc_norm; valid: acc"),
        (TaskConfig(name="gsm8k", metric="math_verify"), "gsm8k has no metric math_verify"),
        (TaskConfig(name="arc_easy", metric="exact_match"), "valid: acc, acc_norm"),
    ],
)
def test_a_task_that_cannot_be_scored_is_refused(task: TaskConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lm_tasks.check_task(task, "hub")


def test_missing_packages_are_named_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "math-verify":
            raise PackageNotFoundError(name)
        return "4.13.2"

    monkeypatch.setattr(hub_tasks, "version", version)
    with pytest.raises(
        UserError, match=r"minerva_math needs math-verify, antlr4-python3-runtime 4.11; pip install"
    ):
        lm_tasks.check_task(TaskConfig(name="minerva_math", metric="exact_match", num_fewshot=4), "hub")


def preflight(evaluation: EvalConfig, tmp_path: Path) -> None:
    build_items(tmp_path / "items", evaluation)
    check_tasks(evaluation, Prepared(tmp_path, tmp_path, tmp_path / "items", {}))


@pytest.mark.parametrize("name", TASKS)
def test_preflight_passes_what_can_be_scored(name: str, hub: Path, tmp_path: Path) -> None:
    preflight(paper_evaluation(hub, name), tmp_path)


@pytest.mark.parametrize(
    ("name", "shots", "message"),
    [
        ("mmlu", 6, r"benchmark mmlu_abstract_algebra has 5 exemplars, num_fewshot is 6"),
        ("gsm8k", 8, "benchmark gsm8k has 7 exemplars, num_fewshot is 8"),
        pytest.param("minerva_math", 5, "minerva_math_algebra has 4 exemplars", marks=needs_math),
        ("hellaswag", 13, "benchmark hellaswag: no prompt can be made"),  # draws one more, to leave one out
    ],
)
def test_too_few_exemplars_are_refused(
    name: str, shots: int, message: str, hub: Path, tmp_path: Path
) -> None:
    config = paper_evaluation(hub, name)
    tasks = [task.model_copy(update={"num_fewshot": shots}) for task in config.tasks]
    with pytest.raises(UserError, match=message):
        preflight(config.model_copy(update={"tasks": tasks}), tmp_path)


def test_damaged_exemplars_are_found(hub: Path, tmp_path: Path) -> None:
    evaluation = paper_evaluation(hub, "arc_easy")
    build_items(tmp_path, evaluation)
    path = tmp_path / "arc_easy.exemplars.jsonl"
    path.write_text(path.read_text().replace("Why 3", "Why 4"))
    with pytest.raises(UserError, match=r"arc_easy\.exemplars\.jsonl is missing or damaged"):
        check_tasks(evaluation, Prepared(tmp_path, tmp_path, tmp_path, {}))


def test_no_script_of_a_data_set_runs() -> None:
    """What the refusals rest on: this version of datasets has no way to run one."""
    assert int(datasets.__version__.split(".")[0]) >= 4
