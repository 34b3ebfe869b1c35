"""The training half of a synthetic run: run.json, steps.csv, saturation.csv and timings, in either schema."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pangu_hif8.experiments import EXPERIMENTS, RunConfig
from pangu_hif8.freshness import source_digest

NUM_BLOCKS = {"smoke": 8, "laptop": 30}
LAYERS = ("gate_proj", "up_proj", "down_proj")
KINDS = ("input", "weight", "gradient")
SAMPLE_EVERY = 10
STEP_HEADER = ["step", "loss", "lr", "grad_norm", "quantized", "skipped", "saturated_share", "max_overshoot"]
SATURATION_HEADER = ["step", "block", "layer", "kind", "amax", "estimate", "saturated"]
SAMPLED_HEADER = ["clipped_share", "flushed_share", "sqnr_db"]


@dataclass(frozen=True)
class Dial:
    """What a fake run shows: share of items turned wrong (or right), loss shifts in nats, APE in percent.

    `skipped` names steps without a finite loss or gradient, `overrides` changes the configuration,
    `schema` 1 writes what earlier runs wrote: no skipped column, no samples.
    """

    turned_wrong: float = 0.0
    turned_right: float = 0.0
    heldout_shift: float = 0.0
    second_shift: float = 0.0
    ape_pct: float = 0.03
    noise: float = 0.001
    spikes: float = 0.3
    force_saturated: float | None = None
    skipped: tuple[int, ...] = ()
    switch: int | None = None
    schema: int = 2
    overrides: tuple[tuple[str, Any], ...] = ()


def write_training(directory: Path, config: RunConfig, dial: Dial) -> None:
    """Write the files that training leaves; of E0 only run.json."""
    converted = _converted(config)
    write_json(directory / "run.json", _info(config, dial, converted))
    if config.lr is None:
        return
    saturation = _saturation(config, dial, converted)
    hidden = STEP_HEADER.index("skipped") if dial.schema == 1 else None
    rows = [STEP_HEADER, *_step_rows(config, dial, saturation)]
    if config.train.record_moved_share:
        moved = 0.05 if config.train.weight_dtype == "bfloat16" else 0.99
        every = config.train.telemetry_every
        rows = [[*row, "" if i % every else moved if i else "moved_share"] for i, row in enumerate(rows)]
    write_csv(directory / "steps.csv", [[c for i, c in enumerate(row) if i != hidden] for row in rows])
    if config.quantization:
        width = len(SATURATION_HEADER) + (len(SAMPLED_HEADER) if dial.schema > 1 else 0)
        rows = [SATURATION_HEADER + SAMPLED_HEADER, *saturation]
        write_csv(directory / "saturation.csv", [row[:width] for row in rows])
    _write_timing(directory, config)


def _converted(config: RunConfig) -> list[str]:
    if config.quantization is None:
        return []
    blocks = range(
        config.model.num_first_hp_blocks, NUM_BLOCKS[config.profile] - config.model.num_last_hp_blocks
    )
    return [f"model.layers.{block}.mlp.{layer}" for block in blocks for layer in LAYERS]


def _switch(config: RunConfig, dial: Dial) -> int | None:
    if config.quantization is None:
        return None
    return dial.switch or config.quantization.bf16_warmup_steps + 1


def _info(config: RunConfig, dial: Dial, converted: list[str]) -> dict[str, Any]:
    facts = {
        "schema_version": dial.schema,
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
        "quantized_from_step": _switch(config, dial),
        "tokens_per_step": config.train.batch_size * config.data.sequence_length,
        "num_steps": config.train.steps if config.lr else 0,
        "final_loss": 2.9 if config.lr else None,
    }
    progress = {"num_skipped_steps": len(dial.skipped), "resumed_from": [20], "world_size": 1}
    return facts | (progress if dial.schema > 1 else {})


def _step_rows(config: RunConfig, dial: Dial, saturation: list[list[Any]]) -> list[list[Any]]:
    assert config.lr is not None
    start = _switch(config, dial)
    base = np.random.default_rng([7, config.seed])  # the batches: equal for every experiment of a seed
    own = np.random.default_rng([number(config), config.seed, 1])
    rows = []
    for step in range(1, config.train.steps + 1):
        loss = 3.0 - 0.004 * step * (1.5 if config.lr > 5e-5 else 1.0) + 0.1 * base.standard_normal()
        quantized = start is not None and step >= start
        if quantized:
            loss *= 1 + dial.ape_pct / 100 * own.choice((-1, 1)) * own.uniform(0.5, 1.5)
        if step in dial.skipped:  # in an even step the loss, in an odd one only the gradient is not finite
            rows.append([step, "" if step % 2 == 0 else loss, config.lr, "", int(quantized), 1, "", ""])
            continue
        cells = _cells(saturation, step, quantized)
        rows.append([step, loss, config.lr, 1.0, int(quantized), 0, *cells])
    return rows


def _cells(saturation: list[list[Any]], step: int, quantized: bool) -> list[Any]:
    if not quantized:
        return ["", ""]
    rows = [row for row in saturation if row[0] == step]
    return [float(np.mean([row[6] for row in rows])), max(row[4] / row[5] for row in rows)]


def _saturation(config: RunConfig, dial: Dial, converted: list[str]) -> list[list[Any]]:
    """Independent log-normal amaxes, slow random walks for weights, and the named estimator."""
    if config.quantization is None:
        return []
    kinds = KINDS if config.quantization.gradients else KINDS[:2]
    rows: list[list[Any]] = []
    for index, name in enumerate(converted):
        block, layer = int(name.split(".")[2]), name.rsplit(".", 1)[1]
        for kind in kinds:
            rng = np.random.default_rng([index, KINDS.index(kind), config.seed, 3])
            rows += _tensor_rows(config, dial, (block, layer, kind), rng)
    return sorted(rows, key=lambda row: row[0])


def _tensor_rows(
    config: RunConfig, dial: Dial, name: tuple[int, str, str], rng: np.random.Generator
) -> list[list[Any]]:
    steps, start = config.train.steps, _switch(config, dial) or 0
    spread = 1e-4 if name[2] == "weight" else dial.spikes
    amax = 5.0 * np.exp(spread * rng.standard_normal(steps))
    samples = np.random.default_rng([name[0], LAYERS.index(name[1]), KINDS.index(name[2]), number(config)])
    taken = [t for t in range(steps) if t + 1 not in dial.skipped]
    rows = []
    for t in range(steps):
        if t not in taken:
            rows.append([t + 1, *name, *[""] * 6])
            continue
        estimate = _estimate(config, [amax[i] for i in taken if i < t], float(amax[t]))
        cells: list[Any] = [""] * 5
        if t + 1 >= start:
            saturated = amax[t] > estimate
            if dial.force_saturated is not None:
                saturated = rng.random() < dial.force_saturated
            cells = [estimate, int(saturated), *_sample(t + 1, name, saturated, samples)]
        rows.append([t + 1, *name, amax[t], *cells])
    return rows


def _sample(step: int, name: tuple[int, str, str], saturated: bool, rng: np.random.Generator) -> list[Any]:
    """Shares clipped and flushed and SQNR in dB on every tenth step; down_proj inputs are the worst."""
    if step % SAMPLE_EVERY:
        return ["", "", ""]
    level = {"input": 29.0, "weight": 31.5, "gradient": 27.0}[name[2]]
    sqnr = level - 3.0 * (name[1:] == ("down_proj", "input")) + 0.4 * rng.standard_normal()
    return [0.002 * rng.random() if saturated else 0.0, 0.01 * rng.random(), sqnr]


def _estimate(config: RunConfig, past: list[float], now: float) -> float:
    assert config.quantization is not None
    algo = config.quantization.amax_compute_algo
    if algo == "current" or not past:
        return now
    if algo == "most_recent":
        return float(past[-1])
    if algo == "max_window":
        return float(max(past[-config.quantization.amax_history_len :]))
    value, decay = past[0], config.quantization.smoothing_decay
    for amax in past[1:]:
        value = decay * value + (1 - decay) * amax
    return float(value)


def _write_timing(directory: Path, config: RunConfig) -> None:
    timing = {
        "train_seconds": 60.0,
        "seconds_per_step_median": 1.0 + 0.1 * (config.quantization is not None),
        "peak_rss_mb": 900.0,
        "num_threads": 1,
        "machine": "fake",
    }
    write_json(directory / "train_timing.json", timing)
    times = [[step, 1.0] for step in range(1, config.train.steps + 1)]
    write_csv(directory / "step_times.csv", [["step", "seconds"], *times])


def number(config: RunConfig) -> int:
    """An experiment's number."""
    return int(config.experiment[1:])


def write_csv(path: Path, rows: list[list[Any]]) -> None:
    """Rows, the header first."""
    with path.open("w", newline="", encoding="utf-8") as handle:
        csv.writer(handle, lineterminator="\n").writerows(rows)


def write_json(path: Path, value: Any) -> None:
    """A JSON file."""
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
