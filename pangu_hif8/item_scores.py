"""One benchmark through lm-eval: a row for every item, checked against what lm-eval itself reports.

`acc` and `acc_norm` are lm-eval's. Where an answer is generated, its metric (exact_match or math_verify, 0
or 1) has a column of its own and stands in `acc` too, `acc_norm` is empty, and `nll_correct` is that of the
worked answer in the data set. The digest over all prompts and continuations says whether two evaluations
asked the very same.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pangu_hif8.config import TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.files import digest
from pangu_hif8.hub_tasks import HUB_TASKS, HubTask

if TYPE_CHECKING:
    from pangu_hif8.scoring import SharedPrefixLM

ITEM_COLUMNS = ["task", "item_id", "acc", "acc_norm", "nll_correct"]
_PLAIN = HubTask("", "", ("acc", "acc_norm"))  # what is read of a benchmark that is not on the hub

Sample = dict[str, Any]


def score_task(
    scorer: SharedPrefixLM, manager: Any, task: TaskConfig, item_ids: list[str], seed: int
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row an item, in the order of `item_ids`, and what else is to be recorded of the benchmark."""
    import lm_eval

    known, scorer.num_truncated = HUB_TASKS.get(task.name, _PLAIN), 0
    loaded = manager.load([task.name])
    for one in loaded["tasks"].values():
        one.set_fewshot_seed(seed)
    # Not simple_evaluate: it gives results to the first process of a job only, and here all have them.
    results: dict[str, Any] = dict(lm_eval.evaluate(lm=scorer, task_dict=loaded, log_samples=True) or {})
    samples = _samples(results, known.filter)
    if not samples:
        raise UserError(f"benchmark {task.name} is absent from lm-eval's results")
    extra = {"prompts_digest": _prompts_digest(samples), "num_truncated": scorer.num_truncated}
    rows = _rows(scorer, task, known, samples)
    frame = pd.DataFrame(rows, columns=ITEM_COLUMNS)
    if task.metric not in frame:
        frame[task.metric] = frame["acc"]
    _check_complete(task, frame, item_ids)
    _check_official(task, known, frame, results)
    if known.other_filter is not None:
        other = _samples(results, known.other_filter)
        extra[f"{task.metric},{known.other_filter}"] = float(np.mean([s[task.metric] for s in other]))
    ordered = frame.set_index("item_id").loc[item_ids].reset_index()
    return ordered[frame.columns], extra


def _samples(results: dict[str, Any], wanted: str) -> list[Sample]:
    """The samples of all of a benchmark's tasks under one filter, in lm-eval's order of documents."""
    found = []
    for samples in results.get("samples", {}).values():
        own = [sample for sample in samples if sample["filter"] == wanted]
        found += sorted(own, key=lambda sample: int(sample["doc_id"]))
    return found


def _prompts_digest(samples: list[Sample]) -> str:
    """Over all prompts and continuations, by the items' ids; one item at a time, they may be many."""
    found = hashlib.sha256()
    for sample in sorted(samples, key=lambda s: str(s["doc"]["item_id"])):
        arguments = [list(argument) for argument in sample["arguments"]]
        found.update(digest([sample["doc"]["item_id"], arguments]).encode())
    return found.hexdigest()


def _rows(scorer: SharedPrefixLM, task: TaskConfig, known: HubTask, samples: list[Sample]) -> list[list[Any]]:
    if known.answer_column is None:
        return [_choice_row(task, sample) for sample in samples]
    nll = _answer_nll(scorer, known.answer_column, samples)
    scores = [float(sample[task.metric]) for sample in samples]
    ids = [sample["doc"]["item_id"] for sample in samples]
    return [[task.name, *row] for row in zip(ids, scores, [math.nan] * len(ids), nll, strict=True)]


def _choice_row(task: TaskConfig, sample: Sample) -> list[Any]:
    log_likelihoods = [float(response[0]) for response in sample["filtered_resps"]]
    correct = int(sample["target"])
    return [
        task.name,
        sample["doc"]["item_id"],
        float(sample["acc"]),
        float(sample.get("acc_norm", math.nan)),
        -log_likelihoods[correct],
    ]


def _answer_nll(scorer: SharedPrefixLM, column: str, samples: list[Sample]) -> list[float]:
    """Negative log-likelihood (nats) of the data set's own worked answer after the prompt."""
    from lm_eval.api.instance import Instance

    pairs = [(sample["arguments"][0][0], f" {sample['doc'][column]}") for sample in samples]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    return [-float(value) for value, _ in scorer.loglikelihood(requests)]


def _check_complete(task: TaskConfig, frame: pd.DataFrame, item_ids: list[str]) -> None:
    if len(frame) != len(item_ids) or set(frame["item_id"]) != set(item_ids):
        raise UserError(f"benchmark {task.name} scored {len(frame)} items, not {len(item_ids)}")
    values = frame[[task.metric, "nll_correct"]].to_numpy(dtype=float)
    if not np.isfinite(values).all():
        raise UserError(f"benchmark {task.name}: {task.metric} or a likelihood is not finite")


def _check_official(task: TaskConfig, known: HubTask, frame: pd.DataFrame, results: dict[str, Any]) -> None:
    """lm-eval's own means, weighted by the number of items, against the rows."""
    sizes = {
        name: sum(sample["filter"] == known.filter for sample in samples)
        for name, samples in results["samples"].items()
    }
    key = f"{task.metric},{known.filter}"
    values = [results["results"].get(name, {}).get(key, math.nan) for name in sizes]
    official = float(np.average(values, weights=list(sizes.values())))
    if not math.isclose(official, frame[task.metric].mean(), abs_tol=1e-9):
        raise UserError(
            f"benchmark {task.name}: lm-eval reports {task.metric} {official}, its items say otherwise"
        )


def summarize_task(task: TaskConfig, frame: pd.DataFrame) -> dict[str, Any]:
    """Means over items; stderr is the sample standard deviation over the root of n, as lm-eval's."""
    values = frame[task.metric].to_numpy(dtype=float)
    acc_norm = float(frame["acc_norm"].mean())
    return {
        "metric": task.metric,
        "value": float(values.mean()),
        "stderr": float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None,
        "num_items": len(frame),
        "num_fewshot": task.num_fewshot,
        "acc": float(frame["acc"].mean()),
        "acc_norm": None if math.isnan(acc_norm) else acc_norm,
        "nll_correct": float(frame["nll_correct"].mean()),
    }
