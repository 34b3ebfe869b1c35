"""Synthetic result trees that follow the files' contract exactly, with dials for what a run shows.

`write_tree(base, ...)` writes results/<profile> for E0 to E8. A `Dial` sets one experiment's accuracy,
held-out shift and loss error, so that a test can build a tree whose verdicts are known beforehand.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pangu_hif8.experiments import EXPERIMENTS, RunConfig, resolve
from pangu_hif8.freshness import source_digest

NUM_BLOCKS = {"smoke": 8, "laptop": 30}
LAYERS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Dial:
    """What a fake run shows: share of items turned wrong (or right), loss shifts in nats, APE in percent."""

    turned_wrong: float = 0.0
    turned_right: float = 0.0
    heldout_shift: float = 0.0
    second_shift: float = 0.0
    ape_pct: float = 0.03
    noise: float = 0.001
    spikes: float = 0.3
    force_saturated: float | None = None


def write_tree(
    results: Path, profile: str = "smoke", seeds: tuple[int, ...] = (0,), dials: dict[str, Dial] | None = None
) -> Path:
    """Write every run of a profile; returns results/<profile>."""
    for experiment in EXPERIMENTS:
        for seed in (0,) if experiment == "E0" else seeds:
            write_run(results, experiment, profile, seed, (dials or {}).get(experiment, Dial()))
    return results / profile


def write_run(results: Path, experiment: str, profile: str, seed: int, dial: Dial) -> Path:
    """Write one run's directory; equal ones are made once a process and copied."""
    made = _made(experiment, profile, seed, dial)
    return Path(shutil.copytree(made, results / profile / experiment / f"seed{seed}", dirs_exist_ok=True))


_STORE = tempfile.TemporaryDirectory(prefix="fake_results_")


@cache
def _made(experiment: str, profile: str, seed: int, dial: Dial) -> Path:
    config = resolve(experiment, profile, seed)
    directory = Path(tempfile.mkdtemp(dir=_STORE.name))
    converted = _converted(config)
    if config.lr is not None:
        _write_training(directory, config, dial, converted)
    _json(directory / "run.json", _info(config, converted))
    _write_evaluation(directory, config, dial)
    return directory


def _converted(config: RunConfig) -> list[str]:
    if config.quantization is None:
        return []
    blocks = range(
        config.model.num_first_hp_blocks, NUM_BLOCKS[config.profile] - config.model.num_last_hp_blocks
    )
    return [f"model.layers.{block}.mlp.{layer}" for block in blocks for layer in LAYERS]


def _info(config: RunConfig, converted: list[str]) -> dict[str, Any]:
    quantization = config.quantization
    return {
        "schema_version": 1,
        "status": "complete",
        "profile": config.profile,
        "experiment": config.experiment,
        "title": EXPERIMENTS[config.experiment].title,
        "seed": config.seed,
        "config": config.model_dump(),
        "train_hash": config.train_hash(),
        "eval_hash": config.eval_hash(),
        "train_code": source_digest("train_stage"),
        "model_digest": "m" * 64,
        "data_digest": "d" * 64,
        "versions": {"torch": "2.13.0"},
        "num_parameters": 500_000,
        "num_linears": 57,
        "num_converted_linears": len(converted),
        "converted": converted,
        "quantized_from_step": quantization.bf16_warmup_steps + 1 if quantization else None,
        "tokens_per_step": config.train.batch_size * config.data.sequence_length,
        "num_steps": config.train.steps if config.lr else 0,
        "final_loss": 2.9 if config.lr else None,
    }


def _write_training(directory: Path, config: RunConfig, dial: Dial, converted: list[str]) -> None:
    assert config.lr is not None
    quantized_from = config.quantization.bf16_warmup_steps + 1 if config.quantization else None
    saturation = _saturation(config, dial, converted)
    base = np.random.default_rng([7, config.seed])  # the batches: equal for every experiment of a seed
    own = np.random.default_rng([_number(config), config.seed, 1])
    rows = []
    for step in range(1, config.train.steps + 1):
        loss = 3.0 - 0.004 * step * (1.5 if config.lr > 5e-5 else 1.0) + 0.1 * base.standard_normal()
        quantized = quantized_from is not None and step >= quantized_from
        if quantized:
            loss *= 1 + dial.ape_pct / 100 * own.choice((-1, 1)) * own.uniform(0.5, 1.5)
        rows.append([step, loss, config.lr, 1.0, int(quantized), *_cells(saturation, step, quantized)])
    header = ["step", "loss", "lr", "grad_norm", "quantized", "saturated_share", "max_overshoot"]
    _csv(directory / "steps.csv", header, rows)
    if config.quantization:
        header = ["step", "block", "layer", "kind", "amax", "estimate", "saturated"]
        _csv(directory / "saturation.csv", header, saturation)
    timing = {
        "train_seconds": 60.0,
        "seconds_per_step_median": 1.0 + 0.1 * (config.quantization is not None),
        "peak_rss_mb": 900.0,
        "num_threads": 1,
        "machine": "fake",
    }
    _json(directory / "train_timing.json", timing)
    _csv(
        directory / "step_times.csv",
        ["step", "seconds"],
        [[s, 1.0] for s in range(1, config.train.steps + 1)],
    )


def _cells(saturation: list[list[Any]], step: int, quantized: bool) -> list[Any]:
    if not quantized:
        return ["", ""]
    rows = [row for row in saturation if row[0] == step]
    return [float(np.mean([row[6] for row in rows])), max(row[4] / row[5] for row in rows)]


def _saturation(config: RunConfig, dial: Dial, converted: list[str]) -> list[list[Any]]:
    """Independent log-normal amaxes for inputs, slow random walks for weights, and the named estimator."""
    if config.quantization is None:
        return []
    rows: list[list[Any]] = []
    for index, name in enumerate(converted):
        block, layer = int(name.split(".")[2]), name.rsplit(".", 1)[1]
        for kind in ("input", "weight"):
            rng = np.random.default_rng([index, kind == "weight", config.seed, 3])
            rows += _tensor_rows(config, dial, (block, layer, kind), rng)
    return sorted(rows, key=lambda row: row[0])


def _tensor_rows(
    config: RunConfig, dial: Dial, name: tuple[int, str, str], rng: np.random.Generator
) -> list[list[Any]]:
    assert config.quantization is not None
    start, steps = config.quantization.bf16_warmup_steps + 1, config.train.steps
    spread = dial.spikes if name[2] == "input" else 1e-4
    amax = 5.0 * np.exp(spread * rng.standard_normal(steps))
    rows = []
    for t in range(steps):
        estimate = _estimate(config, amax, t)
        cells: list[Any] = ["", ""]
        if t + 1 >= start:
            saturated = amax[t] > estimate
            if dial.force_saturated is not None:
                saturated = rng.random() < dial.force_saturated
            cells = [estimate, int(saturated)]
        rows.append([t + 1, *name, amax[t], *cells])
    return rows


def _estimate(config: RunConfig, amax: Any, t: int) -> float:
    assert config.quantization is not None
    algo = config.quantization.amax_compute_algo
    if algo == "current" or t == 0:
        return float(amax[t])
    if algo == "most_recent":
        return float(amax[t - 1])
    if algo == "max_window":
        return float(amax[max(0, t - config.quantization.amax_history_len) : t].max())
    value = amax[0]
    for past in amax[1:t]:
        value = config.quantization.smoothing_decay * value + (1 - config.quantization.smoothing_decay) * past
    return float(value)


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
    _csv(directory / "items.csv", ["task", "item_id", "acc", "acc_norm", "nll_correct"], items)
    heldout = _write_heldout(directory, config, dial)
    summary = {"schema_version": 1, "batch_size": 32, "add_bos_token": False, "items_digest": "i" * 64}
    identity = {k: getattr(config, k) for k in ("experiment", "seed", "profile")}
    hashes = {
        "train_hash": config.train_hash(),
        "eval_hash": config.eval_hash(),
        "eval_code": source_digest("evaluate_stage"),
    }
    _json(directory / "eval.json", summary | identity | hashes | {"tasks": tasks, "heldout": heldout})
    _json(directory / "eval_timing.json", {"eval_seconds": 20.0, "peak_rss_mb": 900.0})


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
        noise = np.random.default_rng([_number(config), config.seed, 2]).normal(0, dial.noise, num)
        losses = level + shift + (0.0 if config.lr is None else noise)
        num_tokens = config.data.sequence_length - 1
        rows += [[domain, i, float(loss), num_tokens] for i, loss in enumerate(losses)]
        summary[domain] = {
            "loss": float(losses.mean()),
            "num_tokens": num * num_tokens,
            "num_sequences": num,
        }
    _csv(directory / "heldout.csv", ["domain", "sequence", "loss", "num_tokens"], rows)
    return summary


def _number(config: RunConfig) -> int:
    return int(config.experiment[1:])


def _csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
