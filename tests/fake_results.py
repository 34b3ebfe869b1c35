"""Synthetic result trees that follow the files' contract exactly, with dials for what a run shows.

`write_tree(base, ...)` writes results/<profile> for E0 to E8. A `Dial` sets one experiment's accuracy,
held-out shift and loss error, so that a test can build a tree whose verdicts are known beforehand; the
training half of a run is in fake_training.py.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fake_training import Dial, number, write_csv, write_json, write_training

from pangu_hif8.experiments import EXPERIMENTS, RunConfig, resolve
from pangu_hif8.freshness import source_digest

__all__ = ["Dial", "write_config", "write_run", "write_tree"]


def write_tree(
    results: Path,
    profile: str = "smoke",
    seeds: tuple[int, ...] = (0,),
    dials: dict[str, Dial] | None = None,
    default: Dial | None = None,
) -> Path:
    """Write every run of a profile, by `default` where `dials` has none; returns results/<profile>."""
    for experiment in EXPERIMENTS:
        dial = (dials or {}).get(experiment, default or Dial())
        for seed in (0,) if experiment == "E0" else seeds:
            write_run(results, experiment, profile, seed, dial)
    return results / profile


def write_run(results: Path, experiment: str, profile: str, seed: int, dial: Dial) -> Path:
    """Write one run's directory; equal ones are made once a process and copied."""
    made = _made(experiment, profile, seed, dial)
    return Path(shutil.copytree(made, results / profile / experiment / f"seed{seed}", dirs_exist_ok=True))


_STORE = tempfile.TemporaryDirectory(prefix="fake_results_")


@cache
def _made(experiment: str, profile: str, seed: int, dial: Dial) -> Path:
    config = resolve(experiment, profile, seed, **dict(dial.overrides))
    return write_config(Path(tempfile.mkdtemp(dir=_STORE.name)), config, dial)


def write_config(directory: Path, config: RunConfig, dial: Dial) -> Path:
    """Write the files of a run with these settings."""
    directory.mkdir(parents=True, exist_ok=True)
    write_training(directory, config, dial)
    _write_evaluation(directory, config, dial)
    return directory


def _write_evaluation(directory: Path, config: RunConfig, dial: Dial) -> None:
    items, tasks = [], {}
    for task in config.evaluation.tasks:
        rows = _items(config, dial, task.name, task.num_items, task.metric)
        items += rows
        scores = np.array([row[2] if task.metric == "acc" else row[3] for row in rows])
        tasks[task.name] = {
            "metric": task.metric,
            "value": float(scores.mean()),
            "stderr": float(scores.std(ddof=1) / np.sqrt(len(scores))),
            "num_items": len(scores),
            "num_fewshot": task.num_fewshot,
            "acc": float(scores.mean()),
            "acc_norm": None,
            "nll_correct": float(np.mean([row[4] for row in rows])),
        }
    write_csv(directory / "items.csv", [["task", "item_id", "acc", "acc_norm", "nll_correct"], *items])
    heldout = _write_heldout(directory, config, dial)
    summary = {"schema_version": 1, "batch_size": 32, "add_bos_token": False, "items_digest": "i" * 64}
    identity = {k: getattr(config, k) for k in ("experiment", "seed", "profile")}
    hashes = {
        "train_hash": config.train_hash(),
        "eval_hash": config.eval_hash(),
        "eval_code": source_digest("evaluate_stage"),
    }
    write_json(directory / "eval.json", summary | identity | hashes | {"tasks": tasks, "heldout": heldout})
    write_json(directory / "eval_timing.json", {"eval_seconds": 20.0, "peak_rss_mb": 900.0})


def _items(config: RunConfig, dial: Dial, task: str, num: int, metric: str) -> list[list[Any]]:
    """A fixed 60% of the items is right in E0; a dial turns exact shares of the right and wrong ones."""
    right = np.zeros(num, dtype=int)
    right[: round(0.6 * num)] = 1
    right[: round(dial.turned_wrong * num)] = 0
    right[num - round(dial.turned_right * num) :] = 1
    rng = np.random.default_rng([5, num])
    nll = 1.0 + rng.random(num) + dial.turned_wrong
    scores = [[int(r), ""] if metric == "acc" else [int(r), int(r)] for r in right]
    return [[task, str(i), *scores[i], float(nll[i])] for i in range(num)]


def _write_heldout(directory: Path, config: RunConfig, dial: Dial) -> dict[str, Any]:
    rows, summary = [], {}
    sizes = (config.data.num_heldout_sequences, config.data.num_second_domain_sequences)
    shifts = (dial.heldout_shift, dial.second_shift)
    for domain, num, shift in zip(("same_domain", "second_domain"), sizes, shifts, strict=True):
        level = np.random.default_rng([9, num]).normal(3.0, 0.3, num)
        noise = np.random.default_rng([number(config), config.seed, 2]).normal(0, dial.noise, num)
        losses = level + shift + (0.0 if config.lr is None else noise)
        num_tokens = config.data.sequence_length - 1
        rows += [[domain, i, float(loss), num_tokens] for i, loss in enumerate(losses)]
        summary[domain] = {
            "loss": float(losses.mean()),
            "num_tokens": num * num_tokens,
            "num_sequences": num,
        }
    write_csv(directory / "heldout.csv", [["domain", "sequence", "loss", "num_tokens"], *rows])
    return summary
