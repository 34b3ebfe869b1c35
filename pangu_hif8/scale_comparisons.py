"""Shares of saturation, overshoot and jitter of a profile's runs, over steps and over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pangu_hif8.errors import UserError
from pangu_hif8.metrics import (
    Floats,
    Interval,
    expected_record_share,
    mean_interval,
    scale_jitter,
    with_seeds,
)
from pangu_hif8.results import ProfileResults, quantized_rows
from pangu_hif8.run_checks import each_once
from pangu_hif8.run_files import RunResult


def steps_of(run: RunResult) -> pd.DataFrame:
    """A run's training steps. Raises UserError for E0."""
    if run.steps is None:
        raise UserError(f"{run.experiment} was not trained")
    return run.steps


def taken_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that updated the model."""
    return steps[steps["skipped"] == 0]


def saturation_rows(
    results: ProfileResults, experiment: str, kind: str, layer: str | None = None
) -> pd.DataFrame:
    """Quantized (tensor, step) rows of one kind, all seeds, with a column seed; no skipped step.

    gate_proj and up_proj have one input: over all layers it counts once.
    """
    parts = [(run.seed, quantized_rows(run)) for run in results.of(experiment)]
    tables = [table.assign(seed=seed) for seed, table in parts if table is not None]
    if not tables:
        raise UserError(f"{experiment} is not quantized or has no run")
    rows = pd.concat(tables, ignore_index=True)
    rows = rows[rows["kind"] == kind]
    return each_once(rows) if layer is None else rows[rows["layer"] == layer]


def saturation_interval(
    results: ProfileResults, experiment: str, kind: str = "input", layer: str | None = None
) -> Interval:
    """Share of (tensor, step) pairs that saturate, 0 to 1, with an interval over steps and over seeds."""
    return share_interval(saturation_rows(results, experiment, kind, layer))


def share_interval(rows: pd.DataFrame) -> Interval:
    """Saturated share of rows with columns seed, step, saturated; over (seed, step) means and over seeds.

    Tensors of one step share its batch, so the step and not the tensor is the independent unit.
    """
    by_step = rows.groupby(["seed", "step"])["saturated"].mean()
    return bounded(with_seeds(mean_interval(by_step), by_step.groupby("seed").mean()))


def bounded(interval: Interval) -> Interval:
    """A share's interval cut to 0..1."""
    return interval.cut(0.0, 1.0)


def overshoot(rows: pd.DataFrame) -> Floats:
    """amax/estimate of the saturated pairs (above 1); non-finite ones are left out."""
    hit = rows[rows["saturated"] == 1]
    ratio = (hit["amax"] / hit["estimate"]).to_numpy(dtype=float)
    return np.asarray(ratio[np.isfinite(ratio)], dtype=np.float64)


def jitter_table(results: ProfileResults, experiment: str, kind: str) -> pd.DataFrame:
    """Columns block, layer, jitter: std of log2 of the estimate's ratio between steps, mean over seeds."""
    by_seed = _jitter_by_seed(results, experiment, kind)
    return by_seed.groupby(["block", "layer"]).mean().rename("jitter").reset_index().dropna()


def _jitter_by_seed(results: ProfileResults, experiment: str, kind: str) -> pd.Series:
    """Jitter by (seed, block, layer)."""
    rows = saturation_rows(results, experiment, kind).sort_values("step")
    return rows.groupby(["seed", "block", "layer"])["estimate"].agg(scale_jitter)


@dataclass(frozen=True)
class JitterGap:
    """Mean jitter of two runs' input scales and their difference, in octaves; over tensors and seeds."""

    first: float
    second: float
    difference: Interval


def jitter_gap(results: ProfileResults, first: str, second: str) -> JitterGap | None:
    """How much more the first run's input scales move from step to step; None with too few steps."""
    parts = [_jitter_by_seed(results, name, "input") for name in (first, second)]
    joined = pd.concat(parts, axis=1, keys=["first", "second"], join="inner").dropna()
    tensors = joined.groupby(["block", "layer"]).mean()
    if len(tensors) < 2:
        return None
    by_seed = (joined["first"] - joined["second"]).groupby("seed").mean()
    gap = with_seeds(mean_interval(tensors["first"] - tensors["second"]), by_seed)
    return JitterGap(float(tensors["first"].mean()), float(tensors["second"].mean()), gap)


def expected_share(results: ProfileResults, experiment: str) -> float | None:
    """The record law's share for an experiment's estimator; None where it makes no prediction."""
    quantization = results.of(experiment)[0].config.quantization
    windows = {"most_recent": 1, "max_window": quantization.amax_history_len if quantization else 1}
    if quantization is None or quantization.amax_compute_algo not in windows:
        return None
    steps = taken_steps(steps_of(results.of(experiment)[0]))["quantized"]
    window, prefilled = windows[quantization.amax_compute_algo], int((steps == 0).sum())
    share = expected_record_share(len(steps) - prefilled, window, prefilled=prefilled)
    return share if np.isfinite(share) else None
