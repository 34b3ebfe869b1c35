"""The paper's benchmarks from files in the hub's layout: the prompts of lm-eval's own tasks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
from hub_files import PAPER, TASKS, as_datasets, build_items, paper_evaluation, write_hub
from lm_eval.tasks import TaskManager

from pangu_hif8 import benchmarks, hub_tasks, lm_tasks
from pangu_hif8.config import EvalConfig, TaskConfig

LM_EVAL = Path(lm_eval.tasks.__file__).parent


def arguments(tasks: dict[str, Any], seed: int) -> dict[str, list[Any]]:
    """All requests of lm-eval tasks, as its evaluate makes them."""
    found = {}
    for name, task in tasks.items():
        task.set_fewshot_seed(seed)
        task.build_all_requests()
        found[name] = [instance.args for instance in task.instances]
    return found


def ours(evaluation: EvalConfig, folder: Path) -> dict[str, list[Any]]:
    build_items(folder, evaluation)
    with lm_tasks.task_manager(evaluation, folder) as manager:
        tasks = manager.load([evaluation.tasks[0].name])["tasks"]
        return arguments(tasks, hub_tasks.fewshot_seed(evaluation))


def test_the_data_sets_are_those_that_lm_eval_names() -> None:
    for name, task in hub_tasks.HUB_TASKS.items():
        assert {sub.dataset for sub in hub_tasks.subtasks(name)} == {task.dataset}
    assert len(hub_tasks.subtasks("mmlu")) == len(hub_tasks.subtasks("mmlu_continuation")) == 57
    group = read_group("benchmarks/minerva_math.yaml")
    assert [sub.name for sub in hub_tasks.subtasks("minerva_math")] == sorted(group)
    assert {sub.exemplar_split for sub in hub_tasks.subtasks("mmlu")} == {"dev"}


def read_group(path: str) -> list[str]:
    from lm_eval.tasks._yaml_loader import load_yaml

    tasks: list[str] = load_yaml(LM_EVAL / path)["task"]
    return tasks


@pytest.mark.parametrize("name", TASKS)
def test_prompts_are_those_of_lm_eval_s_own_task(
    name: str, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files, its own data source (the hub, in its place the same rows), its default seed."""
    found = ours(paper_evaluation(hub, name), tmp_path)
    monkeypatch.setattr("datasets.load_dataset", as_datasets)
    folder = LM_EVAL / Path(hub_tasks.HUB_TASKS[name].files).parent
    official = TaskManager(include_path=str(folder), include_defaults=False)
    shots = {task: shots for task, shots, _ in PAPER}[name]
    tasks = official.load(sorted(found))["tasks"]
    for task in tasks.values():
        task.set_config(key="num_fewshot", value=shots)
    expected = arguments(tasks, seed=1234)
    assert found == expected
    assert all(requests for requests in expected.values())


def test_exemplars_come_with_the_answers(hub: Path, tmp_path: Path) -> None:
    prompt = ours(paper_evaluation(hub, "arc_easy"), tmp_path)["arc_easy"][0][0]
    assert prompt.count("Question: ") == 26
    assert prompt.endswith("Question: Why 50?\nAnswer:")
    assert "Question: Why 3?\nAnswer: one\n\n" in prompt
    mmlu = ours(paper_evaluation(hub, "mmlu"), tmp_path / "mmlu")["mmlu_virology"][0][0]
    assert mmlu.startswith("The following are multiple choice questions (with answers) about virology.\n\nQ0")
    assert [f"A. dev{i}\n" in mmlu for i in range(6)] == [True] * 5 + [False]
    assert "Q0 anatomy?" not in mmlu


def test_all_items_keep_the_hub_s_order(hub: Path, tmp_path: Path) -> None:
    manifest = build_items(tmp_path, paper_evaluation(hub, "gsm8k", "hellaswag", "arc_easy", "mmlu"))
    assert manifest["gsm8k"]["item_ids"] == ["0", "1", "2", "3", "4"]
    assert manifest["hellaswag"]["item_ids"] == ["90", "91", "92", "93", "94"]
    assert manifest["arc_easy"]["item_ids"][0] == "ARC-Easy_50"
    assert manifest["mmlu"]["num_items"] == 114
    assert manifest["mmlu"]["item_ids"][:2] == ["abstract_algebra/0", "abstract_algebra/1"]
    assert {name: task["num_exemplars"] for name, task in manifest.items()} == {
        "gsm8k": 7, "hellaswag": 13, "arc_easy": 27, "mmlu": 57 * 5,
    }  # fmt: skip


def test_a_sample_is_fixed_by_the_item_seed(hub: Path, tmp_path: Path) -> None:
    def ids(folder: str, seed: int) -> list[str]:
        tasks = [TaskConfig(name="mmlu", num_items=60, metric="acc", num_fewshot=5)]
        config = paper_evaluation(hub).model_copy(update={"tasks": tasks, "item_seed": seed})
        found: list[str] = build_items(tmp_path / folder, config)["mmlu"]["item_ids"]
        return found

    first = ids("a", 0)
    assert first == ids("b", 0) != ids("c", 1)
    assert len({name.split("/")[0] for name in first}) == 57


def test_the_item_seed_draws_other_exemplars(hub: Path, tmp_path: Path) -> None:
    one = ours(paper_evaluation(hub, "arc_easy"), tmp_path / "a")
    assert one == ours(paper_evaluation(hub, "arc_easy"), tmp_path / "b")
    assert one != ours(paper_evaluation(hub, "arc_easy", item_seed=1), tmp_path / "c")


def same_files(one: Path, other: Path) -> None:
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for path in one.iterdir():
        assert path.read_bytes() == (other / path.name).read_bytes()


def test_a_readme_s_configurations_are_followed(hub: Path, tmp_path: Path) -> None:
    names = ("gsm8k", "hellaswag", "arc_easy", "arc_challenge")
    described = write_hub(tmp_path / "hub", readme=True)
    build_items(tmp_path / "a", paper_evaluation(hub, *names))
    build_items(tmp_path / "b", paper_evaluation(described, *names))
    same_files(tmp_path / "a", tmp_path / "b")


def test_json_lines_and_arrow_work_too(hub: Path, tmp_path: Path) -> None:
    for name in ("arrow", "jsonl"):
        folder = tmp_path / name / "allenai/ai2_arc/ARC-Easy"
        folder.mkdir(parents=True)
        for split, rows in as_datasets("allenai/ai2_arc", "ARC-Easy").items():
            if name == "jsonl":
                rows.to_json(folder / f"{split}.jsonl")
            else:
                rows.save_to_disk(folder / split)
        build_items(tmp_path / f"items {name}", paper_evaluation(tmp_path / name, "arc_easy"))
    build_items(tmp_path / "items", paper_evaluation(hub, "arc_easy"))
    same_files(tmp_path / "items", tmp_path / "items arrow")
    same_files(tmp_path / "items", tmp_path / "items jsonl")


def test_without_a_folder_the_hub_is_asked(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_items(tmp_path / "a", paper_evaluation(hub, "gsm8k", "hellaswag", "arc_easy"))
    monkeypatch.setattr("datasets.load_dataset", as_datasets)
    build_items(tmp_path / "b", paper_evaluation(None, "gsm8k", "hellaswag", "arc_easy"))
    same_files(tmp_path / "a", tmp_path / "b")


def test_sources_name_the_files(hub: Path, tmp_path: Path) -> None:
    copy = tmp_path / "hub"
    shutil.copytree(hub, copy)
    evaluation = paper_evaluation(copy, "arc_easy")
    before = benchmarks.item_sources(evaluation)
    assert before == benchmarks.item_sources(evaluation)
    (copy / "openai/gsm8k/main/test-00000-of-00001.parquet").write_bytes(b"another data set")
    assert before == benchmarks.item_sources(evaluation)
    (copy / "allenai/ai2_arc/ARC-Easy/test-00000-of-00001.parquet").write_bytes(b"PAR1")
    assert before != benchmarks.item_sources(evaluation)
    assert set(benchmarks.item_sources(paper_evaluation(None))) == {"lm_eval"}
