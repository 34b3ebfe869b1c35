"""Score a model: lm-eval's own tasks and metrics on local items, and held-out loss on two domains.

Every run is scored on the same items in the same order, with one fixed batch size, one BOS rule and one seed
for exemplars, and all are recorded: each of them shifts scores. Besides accuracy the true answer's negative
log-likelihood is kept for every item, because accuracy near its floor or ceiling hides differences; where an
answer is generated it is that of the worked answer. A task that is missing from the results, or has another
number of items or a metric that is not finite, is an error.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.corpus import TokenShards
from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.heldout import heldout_losses, sequence_losses, summarize_heldout
from pangu_hif8.hub_tasks import fewshot_seed
from pangu_hif8.item_scores import ITEM_COLUMNS, score_task, summarize_task
from pangu_hif8.lm_tasks import MANIFEST, item_ids, task_manager
from pangu_hif8.models import bos_rule
from pangu_hif8.prepared import Prepared

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pangu_hif8.ranks import Ranks
    from pangu_hif8.scoring import SharedPrefixLM

__all__ = ["ITEM_COLUMNS", "Evaluation", "check_tasks", "evaluate_model", "sequence_losses", "summarize_task"]

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. `summary` is deterministic; `seconds` (wall time by part) is not."""

    summary: dict[str, Any]
    items: pd.DataFrame
    heldout: pd.DataFrame
    seconds: dict[str, float] = field(default_factory=dict)


def check_tasks(evaluation: EvalConfig, prepared: Prepared) -> None:
    """Load every task as the evaluation will, without a model, and make a prompt of each.

    Raises UserError naming the benchmark that fails.
    """
    with _random_state_kept(), task_manager(evaluation, prepared.benchmarks_dir) as manager:
        for task in evaluation.tasks:
            try:
                loaded = list(manager.load([task.name])["tasks"].values())
                num_items = sum(len(one.eval_docs) for one in loaded)
            except Exception as error:  # lm-eval and datasets raise many kinds
                raise UserError(f"benchmark {task.name} cannot be loaded: {error}") from error
            expected = len(item_ids(task, prepared.benchmarks_dir))
            if num_items != expected:
                raise UserError(f"benchmark {task.name} loads {num_items} items, not {expected}")
            for one in loaded:
                _check_prompt(task, one, fewshot_seed(evaluation))


def _check_prompt(task: TaskConfig, loaded: Any, seed: int) -> None:
    """Enough exemplars, and a first prompt that can be made of them."""
    name, available = loaded.task_name, len(loaded.sampler.df) if hasattr(loaded, "sampler") else 0
    if available < task.num_fewshot:
        raise UserError(f"benchmark {name} has {available} exemplars, num_fewshot is {task.num_fewshot}")
    try:
        loaded.set_fewshot_seed(seed)
        loaded.fewshot_context(loaded.eval_docs[0], num_fewshot=task.num_fewshot)
    except Exception as error:  # whatever a template or a sampler raises
        raise UserError(f"benchmark {name}: no prompt can be made of its items: {error}") from error


def evaluate_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    evaluation: EvalConfig,
    prepared: Prepared,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Score `model` as it stands (quantizers frozen, eval mode) on `evaluation`'s tasks and both domains.

    Leaves the model's mode and the random state as they were. Raises UserError for an incomplete result. With
    `ranks` a collective call: the batches are dealt to the processes, and all have the one result.
    """
    if model.training:
        raise ValueError("evaluate_model wants a model in eval mode: quantizers must not record")
    add_bos_token, seconds = bos_rule(tokenizer), {}
    items, tasks = [], {}
    with _random_state_kept(), task_manager(evaluation, prepared.benchmarks_dir) as manager:
        scorer = _scorer(model, tokenizer, evaluation, add_bos_token, ranks)
        for task in evaluation.tasks:
            started = time.perf_counter()
            ids = item_ids(task, prepared.benchmarks_dir)
            frame, extra = score_task(scorer, manager, task, ids, fewshot_seed(evaluation))
            items.append(frame)
            tasks[task.name] = summarize_task(task, frame) | extra
            seconds[task.name] = round(time.perf_counter() - started, 3)
    started = time.perf_counter()
    shards = TokenShards.open(prepared.shards_dir, verify=False)  # the prepare step has looked at them
    heldout = heldout_losses(model, shards, evaluation.batch_size, ranks)
    seconds["heldout"] = round(time.perf_counter() - started, 3)
    summary = {
        "schema_version": SCHEMA_VERSION,
        "batch_size": evaluation.batch_size,
        "add_bos_token": add_bos_token,
        "fewshot_seed": fewshot_seed(evaluation),
        "items_digest": sha256_file(prepared.benchmarks_dir / MANIFEST),
        "tasks": tasks,
        "heldout": summarize_heldout(heldout),
    }
    return Evaluation(summary, pd.concat(items, ignore_index=True), heldout, seconds)


def _scorer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    evaluation: EvalConfig,
    add_bos_token: bool,
    ranks: Ranks | None,
) -> SharedPrefixLM:
    from pangu_hif8.scoring import SharedPrefixLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # it warns that it was given a model, not a name
    return SharedPrefixLM(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=evaluation.batch_size,
        add_bos_token=add_bos_token,
        ranks=ranks,
        max_generated_tokens=evaluation.max_generated_tokens,
    )


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
