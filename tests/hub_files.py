"""The six benchmarks' data sets in the hub's own layout and columns, with a few invented items each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from tiny import tiny_profile

from pangu_hif8 import hub_tasks
from pangu_hif8.benchmarks import build_benchmarks
from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.files import read_json
from pangu_hif8.hub_tasks import subtasks

Rows = list[dict[str, Any]]
Splits = dict[str, Rows]

PAPER = (  # shots and metrics
    ("mmlu", 5, "acc"),
    ("gsm8k", 5, "exact_match"),
    ("minerva_math", 4, "exact_match"),
    ("hellaswag", 10, "acc_norm"),
    ("arc_easy", 25, "acc_norm"),
    ("arc_challenge", 25, "acc_norm"),
)
LAYOUTS = {  # data set to the folder of a configuration
    "cais/mmlu": "{}",
    "openai/gsm8k": "{}",
    "EleutherAI/hendrycks_math": "{}",
    "allenai/ai2_arc": "{}",
    "Rowan/hellaswag": "data",
}
HAS_MATH = not hub_tasks._missing_packages()
needs_math = pytest.mark.skipif(not HAS_MATH, reason=f"lm-eval's minerva_math: {hub_tasks.MATH_REMEDY}")
TASKS = [pytest.param(name, marks=needs_math) if name == "minerva_math" else name for name, _, _ in PAPER]


def _mmlu(subject: str) -> Splits:
    def row(i: int, split: str) -> dict[str, Any]:
        choices = [f"{split}{i}", "x", "y", "z"]
        return {
            "question": f" Q{i} {subject}? ",
            "subject": subject,
            "choices": choices,
            "answer": (i + len(subject)) % 4,
        }

    sizes = {"test": 2, "validation": 1, "dev": 5}
    return {split: [row(i, split) for i in range(size)] for split, size in sizes.items()}


def _gsm8k(_: str) -> Splits:
    def row(i: int) -> dict[str, Any]:
        return {"question": f"{i} and 2?", "answer": f"{i}+2=<<{i}+2={i + 2}>>{i + 2}.\n#### {i + 2}"}

    return {"train": [row(i) for i in range(7)], "test": [row(i) for i in range(20, 25)]}


def _math(config: str) -> Splits:
    def row(i: int) -> dict[str, Any]:
        solution = f"It is $\\boxed{{{i}}}$."
        return {"problem": f"{config} {i}?", "level": "Level 1", "type": config, "solution": solution}

    return {"train": [row(1)], "test": [row(2), row(3)]}


def _hellaswag(_: str) -> Splits:
    def row(i: int, split: str) -> dict[str, Any]:
        return {
            "ind": i,
            "activity_label": "Cooking",
            "ctx_a": f"Step {i} [title] begins.",
            "ctx_b": "she",
            "ctx": "unused",
            "endings": [" stirs.", f" runs {i}.", " flies.", " sleeps [substeps] deeply."],
            "source_id": f"activitynet~{i}",
            "split": split,
            "split_type": "indomain",
            "label": str(i % 4),
        }

    return {
        "train": [row(i, "train") for i in range(13)],
        "validation": [row(i, "val") for i in range(90, 95)],
    }


def _arc(config: str) -> Splits:
    def row(i: int) -> dict[str, Any]:
        labels = ["1", "2", "3"] if i % 5 == 4 else ["A", "B", "C"]
        choices = {"text": ["one", "two", f"three {i}"], "label": labels}
        return {
            "id": f"{config}_{i}",
            "question": f"Why {i}?",
            "choices": choices,
            "answerKey": labels[i % 3],
        }

    return {
        "train": [row(i) for i in range(27)],
        "test": [row(i) for i in range(50, 56)],
        "validation": [row(99)],
    }


MAKERS = {
    "cais/mmlu": _mmlu,
    "openai/gsm8k": _gsm8k,
    "EleutherAI/hendrycks_math": _math,
    "Rowan/hellaswag": _hellaswag,
    "allenai/ai2_arc": _arc,
}


def configurations(dataset: str) -> list[str | None]:
    """The configurations that lm-eval reads of a data set."""
    subs = [sub for name, _, _ in PAPER for sub in subtasks(name) if sub.dataset == dataset]
    return [sub.dataset_config for sub in subs]


def splits_of(dataset: str, config: str | None) -> Splits:
    return MAKERS[dataset](config or "")


def as_datasets(path: str, name: str | None = None) -> datasets.DatasetDict:
    """What `datasets.load_dataset` would give from the hub."""
    splits = splits_of(path, name)
    return datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})


def write_hub(folder: Path, *, readme: bool = False) -> Path:
    """All five data sets below `folder`, as `hf download` leaves them; with their README.md or without."""
    for dataset in MAKERS:
        files = []
        for config in configurations(dataset):
            place = Path(LAYOUTS[dataset].format(config))
            paths = []
            for split, rows in splits_of(dataset, config).items():
                path = folder / dataset / place / f"{split}-00000-of-00001.parquet"
                path.parent.mkdir(parents=True, exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows), path)
                paths.append({"split": split, "path": f"{place.as_posix()}/{split}-*"})
            files.append({"config_name": config or "default", "data_files": paths})
        if readme:
            text = yaml.safe_dump({"license": "mit", "configs": files})
            (folder / dataset / "README.md").write_text(f"---\n{text}---\n# About\n")
    return folder


def paper_evaluation(items_dir: Path | None, *names: str, **more: Any) -> EvalConfig:
    """The paper's tasks (or those named), all items, from a folder."""
    tasks = [
        TaskConfig(name=name, num_fewshot=shots, metric=metric)
        for name, shots, metric in PAPER
        if not names or name in names
    ]
    settings = {"batch_size": 4, "source": "hub", "max_generated_tokens": 12} | more
    return EvalConfig(tasks=tasks, items_dir=None if items_dir is None else str(items_dir), **settings)


def build_items(target: Path, evaluation: EvalConfig, **more: Any) -> dict[str, Any]:
    """Prepare its benchmarks there; returns what the manifest says of each."""
    build_benchmarks(evaluation, tiny_profile().data, target, **more)
    manifest: dict[str, Any] = read_json(target / "manifest.json")["tasks"]
    return manifest
