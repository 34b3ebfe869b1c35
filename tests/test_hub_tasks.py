"""The paper's benchmarks from files in the hub's layout: the prompts of lm-eval's own tasks, and refusals."""

from __future__ import annotations

import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import pytest
from hub_files import PAPER, as_datasets, paper_evaluation, write_hub
from lm_eval.tasks import TaskManager
from tiny import tiny_profile

from pangu_hif8 import benchmarks, hub_tasks, lm_tasks
from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.evaluate import check_tasks
from pangu_hif8.files import read_json
from pangu_hif8.prepared import Prepared

LM_EVAL = Path(lm_eval.tasks.__file__).parent
HAS_MATH = not hub_tasks._missing_packages()
needs_math = pytest.mark.skipif(not HAS_MATH, reason=f"lm-eval's minerva_math: {hub_tasks.MATH_REMEDY}")
NAMES = [pytest.param(name, marks=needs_math) if name == "minerva_math" else name for name, _, _ in PAPER]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return write_hub(tmp_path_factory.mktemp("hub"))


def build(target: Path, evaluation: EvalConfig, **more: Any) -> dict[str, Any]:
    benchmarks.build_benchmarks(evaluation, tiny_profile().data, target, **more)
    manifest: dict[str, Any] = read_json(target / "manifest.json")["tasks"]
    return manifest


def arguments(tasks: dict[str, Any], seed: int) -> dict[str, list[Any]]:
    """All requests of lm-eval tasks, as its evaluate makes them."""
    found = {}
    for name, task in tasks.items():
        task.set_fewshot_seed(seed)
        task.build_all_requests()
        found[name] = [instance.args for instance in task.instances]
    return found


def ours(evaluation: EvalConfig, folder: Path) -> dict[str, list[Any]]:
    build(folder, evaluation)
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


@pytest.mark.parametrize("name", NAMES)
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
    manifest = build(tmp_path, paper_evaluation(hub, "gsm8k", "hellaswag", "arc_easy", "mmlu"))
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
        found: list[str] = build(tmp_path / folder, config)["mmlu"]["item_ids"]
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
    build(tmp_path / "a", paper_evaluation(hub, *names))
    build(tmp_path / "b", paper_evaluation(described, *names))
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
        build(tmp_path / f"items {name}", paper_evaluation(tmp_path / name, "arc_easy"))
    build(tmp_path / "items", paper_evaluation(hub, "arc_easy"))
    same_files(tmp_path / "items", tmp_path / "items arrow")
    same_files(tmp_path / "items", tmp_path / "items jsonl")


def test_without_a_folder_the_hub_is_asked(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "a", paper_evaluation(hub, "gsm8k", "hellaswag", "arc_easy"))
    monkeypatch.setattr("datasets.load_dataset", as_datasets)
    build(tmp_path / "b", paper_evaluation(None, "gsm8k", "hellaswag", "arc_easy"))
    same_files(tmp_path / "a", tmp_path / "b")


def test_a_hub_that_answers_no_is_a_clear_line(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"benchmark gsm8k: data set openai/gsm8k main can't be read: .*items_dir"
    ):
        build(tmp_path, paper_evaluation(None, "gsm8k"), offline=True)


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
        build(tmp_path / "items", paper_evaluation(damaged(hub, tmp_path, kind), "arc_easy"))
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
    build(tmp_path / "items", evaluation)
    check_tasks(evaluation, Prepared(tmp_path, tmp_path, tmp_path / "items", {}))


@pytest.mark.parametrize("name", NAMES)
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
    build(tmp_path, evaluation)
    path = tmp_path / "arc_easy.exemplars.jsonl"
    path.write_text(path.read_text().replace("Why 3", "Why 4"))
    with pytest.raises(UserError, match=r"arc_easy\.exemplars\.jsonl is missing or damaged"):
        check_tasks(evaluation, Prepared(tmp_path, tmp_path, tmp_path, {}))


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


def test_no_script_of_a_data_set_runs() -> None:
    """What the refusals rest on: this version of datasets has no way to run one."""
    assert int(datasets.__version__.split(".")[0]) >= 4
