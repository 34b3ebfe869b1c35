"""Score a model: lm-eval's own tasks and metrics on local items, and held-out loss on two domains.

Every run is scored on the same items in the same order, with one fixed batch size and one BOS rule, and
all three are recorded: each of them shifts scores. Besides accuracy the true answer's negative
log-likelihood is kept for every item, because accuracy near its floor or ceiling hides differences. A task
that is missing from the results, or has another number of items or a metric that is not finite, is an error.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.corpus import TokenShards
from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.lm_tasks import MANIFEST, task_manager
from pangu_hif8.models import bos_rule
from pangu_hif8.prepared import Prepared

if TYPE_CHECKING:
    from lm_eval.api.model import LM
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SCHEMA_VERSION = 1
DOMAINS = {"same_domain": "heldout", "second_domain": "second_domain"}
ITEM_COLUMNS = ["task", "item_id", "acc", "acc_norm", "nll_correct"]
HELDOUT_COLUMNS = ["domain", "sequence", "loss", "num_tokens"]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. `summary` is deterministic; `seconds` (wall time by part) is not."""

    summary: dict[str, Any]
    items: pd.DataFrame
    heldout: pd.DataFrame
    seconds: dict[str, float] = field(default_factory=dict)


def check_tasks(evaluation: EvalConfig, prepared: Prepared) -> None:
    """Load every task as the evaluation will, without a model. Raises UserError naming the one that fails."""
    with task_manager(evaluation, prepared.benchmarks_dir) as manager:
        for task in evaluation.tasks:
            try:
                loaded = manager.load([task.name])["tasks"][task.name]
            except Exception as error:  # lm-eval and datasets raise many kinds
                raise UserError(f"benchmark {task.name} cannot be loaded: {error}") from error
            num_items = len(list(loaded.eval_docs))
            if num_items != task.num_items:
                raise UserError(f"benchmark {task.name} loads {num_items} items, not {task.num_items}")


def evaluate_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, evaluation: EvalConfig, prepared: Prepared
) -> Evaluation:
    """Score `model` as it stands (quantizers frozen, eval mode) on `evaluation`'s tasks and both domains.

    Leaves the model's mode and the random state as they were. Raises UserError for an incomplete result.
    """
    if model.training:
        raise ValueError("evaluate_model wants a model in eval mode: quantizers must not record")
    add_bos_token, seconds = bos_rule(tokenizer), {}
    items, tasks = [], {}
    with _random_state_kept(), task_manager(evaluation, prepared.benchmarks_dir) as manager:
        scorer = _scorer(model, tokenizer, evaluation.batch_size, add_bos_token)
        for task in evaluation.tasks:
            started = time.perf_counter()
            items.append(_score_task(scorer, manager, task))
            tasks[task.name] = summarize_task(task, items[-1])
            seconds[task.name] = round(time.perf_counter() - started, 3)
    started = time.perf_counter()
    heldout = heldout_losses(model, TokenShards.open(prepared.shards_dir), evaluation.batch_size)
    seconds["heldout"] = round(time.perf_counter() - started, 3)
    summary = {
        "schema_version": SCHEMA_VERSION,
        "batch_size": evaluation.batch_size,
        "add_bos_token": add_bos_token,
        "items_digest": sha256_file(prepared.benchmarks_dir / MANIFEST),
        "tasks": tasks,
        "heldout": _summarize_heldout(heldout),
    }
    return Evaluation(summary, pd.concat(items, ignore_index=True), heldout, seconds)


def _scorer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int, add_bos_token: bool
) -> LM:
    from pangu_hif8.scoring import SharedPrefixLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns that it was given a model, not a name
    return SharedPrefixLM(
        pretrained=model, tokenizer=tokenizer, batch_size=batch_size, add_bos_token=add_bos_token
    )


def _score_task(scorer: LM, manager: Any, task: TaskConfig) -> pd.DataFrame:
    """One row an item, in lm-eval's order of documents."""
    import lm_eval

    results = lm_eval.simple_evaluate(
        model=scorer, tasks=[task.name], task_manager=manager, log_samples=True, verbosity="ERROR"
    )
    samples = (results or {}).get("samples", {}).get(task.name)
    if not samples:
        raise UserError(f"benchmark {task.name} is absent from lm-eval's results")
    rows = [_item_row(task, s) for s in sorted(samples, key=lambda sample: int(sample["doc_id"]))]
    frame = pd.DataFrame(rows, columns=ITEM_COLUMNS)
    _check_complete(task, frame, dict(results["results"][task.name]))
    return frame


def _item_row(task: TaskConfig, sample: dict[str, Any]) -> list[Any]:
    log_likelihoods = [float(response[0]) for response in sample["filtered_resps"]]
    correct = int(sample["target"])
    return [
        task.name,
        sample["doc"]["item_id"],
        float(sample["acc"]),
        float(sample.get("acc_norm", math.nan)),
        -log_likelihoods[correct],
    ]


def _check_complete(task: TaskConfig, frame: pd.DataFrame, reported: dict[str, Any]) -> None:
    if len(frame) != task.num_items or frame["item_id"].nunique() != task.num_items:
        raise UserError(f"benchmark {task.name} scored {len(frame)} items, not {task.num_items}")
    values = frame[[task.metric, "nll_correct"]].to_numpy(dtype=float)
    if not np.isfinite(values).all():
        raise UserError(f"benchmark {task.name}: {task.metric} or a likelihood is not finite")
    official = reported.get(f"{task.metric},none")
    if official is None or not math.isclose(official, frame[task.metric].mean(), abs_tol=1e-9):
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


def heldout_losses(model: PreTrainedModel, shards: TokenShards, batch_size: int) -> pd.DataFrame:
    """Mean next-token loss (nats) of every held-out sequence of both domains, one row a sequence."""
    rows: list[list[Any]] = []
    for domain, split in DOMAINS.items():
        tokens = getattr(shards, split)
        for start in range(0, len(tokens), batch_size):
            losses = sequence_losses(
                model, torch.from_numpy(tokens[start : start + batch_size].astype("int64"))
            )
            rows += [[domain, start + i, loss, tokens.shape[1] - 1] for i, loss in enumerate(losses.tolist())]
    frame = pd.DataFrame(rows, columns=HELDOUT_COLUMNS)
    if not np.isfinite(frame["loss"].to_numpy()).all():
        raise UserError("the held-out loss is not finite for some sequences; the model's weights are damaged")
    return frame


@torch.no_grad()
def sequence_losses(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss in nats of tokens [batch, seq] -> float64 [batch]; the labels are shifted once."""
    tokens = tokens.to(model.device)
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return losses.double().mean(dim=1).cpu()


def _summarize_heldout(frame: pd.DataFrame) -> dict[str, Any]:
    """Sequences have equal lengths, so the mean over sequences is the mean over tokens."""
    return {
        str(domain): {
            "loss": float(group["loss"].mean()),
            "num_tokens": int(group["num_tokens"].sum()),
            "num_sequences": len(group),
        }
        for domain, group in frame.groupby("domain", sort=True)
    }


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """lm-eval seeds Python, numpy and torch globally; put the states back afterwards."""
    python, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = np.random.get_state()  # noqa: NPY002 (the global state is what lm-eval changes)
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
