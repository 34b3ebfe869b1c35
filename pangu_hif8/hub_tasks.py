"""The paper's six benchmarks as lm-eval defines them: its files, and the hub data sets that they name.

lm-eval has MMLU as 57 tasks, one a subject, each with its own exemplars, and MATH as seven; here such a group
is one benchmark whose score is the mean over all items (lm-eval's own `weight_by_size`). Prompts, exemplars,
stop words, filters and metrics are those of the installed lm-eval; only the data source is replaced by local
files.

GSM8K has two filters in lm-eval. The paper reports `flexible-extract` (the last number of the answer) and so
do we; the score of `strict-match` (the number after ####) is kept beside it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.errors import UserError

FEWSHOT_SEED = 1234  # lm-eval's default; `item_seed` is added, so that 0 draws the exemplars that it draws
MATH_PACKAGES = {  # what lm-eval's minerva_math imports, as it asks for them
    "sympy": "",
    "math-verify": "",
    "latex2sympy2_extended": "",
    "antlr4-python3-runtime": "4.11",
}
MATH_REMEDY = "pip install math-verify==0.9.0 latex2sympy2_extended==1.11.0 antlr4-python3-runtime==4.11.0"


@dataclass(frozen=True)
class HubTask:
    """One benchmark: lm-eval's files (a pattern), its data set on the hub, and what is read from a result."""

    files: str
    dataset: str
    metrics: tuple[str, ...]
    id_column: str | None = None  # None: the place in the data set
    filter: str = "none"  # the one of lm-eval's filters whose metric is reported
    other_filter: str | None = None  # another whose mean is kept beside it
    answer_column: str | None = None  # generation: the worked answer, whose likelihood is nll_correct


HUB_TASKS: dict[str, HubTask] = {
    "mmlu": HubTask("mmlu/default/mmlu_*.yaml", "cais/mmlu", ("acc",)),
    "mmlu_continuation": HubTask("mmlu/continuation/mmlu_*.yaml", "cais/mmlu", ("acc", "acc_norm")),
    "gsm8k": HubTask(
        "gsm8k/gsm8k.yaml",
        "openai/gsm8k",
        ("exact_match",),
        filter="flexible-extract",
        other_filter="strict-match",
        answer_column="answer",
    ),
    "minerva_math": HubTask(
        "minerva_math/minerva_math_*.yaml",
        "EleutherAI/hendrycks_math",
        ("exact_match", "math_verify"),
        answer_column="solution",
    ),
    "hellaswag": HubTask("hellaswag/hellaswag.yaml", "Rowan/hellaswag", ("acc", "acc_norm"), "ind"),
    "arc_easy": HubTask("arc/arc_easy.yaml", "allenai/ai2_arc", ("acc", "acc_norm"), "id"),
    "arc_challenge": HubTask("arc/arc_challenge.yaml", "allenai/ai2_arc", ("acc", "acc_norm"), "id"),
}


@dataclass(frozen=True)
class Subtask:
    """One of lm-eval's tasks. `group` is its subject where a benchmark has several."""

    name: str
    path: Path
    dataset: str
    dataset_config: str | None
    group: str | None
    item_split: str
    exemplar_split: str | None  # None: the exemplars stand in lm-eval's own file

    @property
    def splits(self) -> tuple[str, ...]:
        return (self.item_split, *([self.exemplar_split] if self.exemplar_split else []))


def check_hub_task(task: TaskConfig) -> None:
    """Raise UserError for a task that can't be scored as configured, or lacks a package."""
    known = HUB_TASKS.get(task.name)
    if known is None:
        raise UserError(f"unknown benchmark {task.name!r}; valid with source hub: {', '.join(HUB_TASKS)}")
    if task.metric not in known.metrics:
        raise UserError(f"{task.name} has no metric {task.metric}; valid: {', '.join(known.metrics)}")
    if task.name == "minerva_math" and (faults := _missing_packages()):
        raise UserError(f"minerva_math needs {', '.join(faults)}; {MATH_REMEDY}")


def _missing_packages() -> list[str]:
    return [f"{name} {wanted}".strip() for name, wanted in MATH_PACKAGES.items() if not _has(name, wanted)]


def _has(name: str, wanted: str) -> bool:
    try:
        return version(name).startswith(wanted)
    except PackageNotFoundError:
        return False


def fewshot_seed(evaluation: EvalConfig) -> int:
    """Seed of lm-eval's draw of exemplars; the same for every run of a profile."""
    return FEWSHOT_SEED + evaluation.item_seed


def subtasks(name: str) -> list[Subtask]:
    """lm-eval's tasks that make up a benchmark, in the order of their names."""
    import lm_eval.tasks

    folder = Path(lm_eval.tasks.__file__).parent
    paths = sorted(folder.glob(HUB_TASKS[name].files))
    if not paths:
        raise UserError(
            f"the installed lm-eval has no {HUB_TASKS[name].files}; install the version in requirements.lock"
        )
    return [_subtask(path, grouped=len(paths) > 1) for path in paths]


def _subtask(path: Path, *, grouped: bool) -> Subtask:
    from lm_eval.tasks._yaml_loader import load_yaml

    official = load_yaml(path, resolve_func=False)
    has_own = "samples" in (official.get("fewshot_config") or {})
    config = official.get("dataset_name")
    return Subtask(
        name=official["task"],
        path=path,
        dataset=official["dataset_path"],
        dataset_config=config,
        group=config if grouped else None,
        item_split=official.get("test_split") or official["validation_split"],
        exemplar_split=None if has_own else official.get("fewshot_split") or official["training_split"],
    )


def definitions(task: TaskConfig, items: Path, exemplars: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Name to definition, as lm-eval's YAML holds it, of every subtask that has items.

    A group's subtasks carry the benchmark's name as their tag, by which lm-eval loads them together. Their
    shares of the local files are written into `folder`.
    """
    found = {}
    for sub in subtasks(task.name):
        files = {sub.item_split: _share(items, sub, folder / f"{sub.name}.items.jsonl")}
        if sub.exemplar_split:
            files[sub.exemplar_split] = _share(exemplars, sub, folder / f"{sub.name}.exemplars.jsonl")
        if files[sub.item_split] is not None:
            found[sub.name] = {
                "include": str(sub.path),
                "task": sub.name,
                "tag": [task.name] if sub.group else None,
                "dataset_path": "json",
                "dataset_name": None,
                "dataset_kwargs": {"data_files": files, "cache_dir": str(folder / "cache")},
                "num_fewshot": task.num_fewshot,
            }
    return found


def _share(path: Path, sub: Subtask, target: Path) -> str | None:
    """The file of a subtask's lines: `path` itself, or those of its group, written to `target`."""
    if sub.group is None:
        return str(path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    own = [line for line in lines if json.loads(line)["subject"] == sub.group]
    target.write_text("".join(own), encoding="utf-8")
    return str(target) if own else None
