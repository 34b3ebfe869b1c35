"""Two runs side by side: the paired differences that claims, tables and figures share.

Usable runs of a profile have the same items and the same held-out sequences in the same order (results.py
sees to it), so rows pair by position. Several seeds are averaged item by item, sequence by sequence and
step by step before an interval is taken: an item counts once, however many seeds answered it. A step that
any of the compared runs skipped (its loss or gradient was not finite) is left out on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.metrics import (
    Floats,
    Interval,
    McNemar,
    ape_series_pct,
    expected_record_share,
    mcnemar_exact,
    mean_interval,
    paired_accuracy_difference,
    paired_loss_difference,
    proportion_interval,
    relative_drop_pct,
    scale_jitter,
)
from pangu_hif8.results import ProfileResults, quantized_rows
from pangu_hif8.run_files import RunResult


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a run and its baseline in percent, and their paired difference in points."""

    value: float
    baseline: float
    difference: Interval
    num_items: int
    num_seeds: int
    mcnemar: McNemar | None

    @property
    def drop_pct(self) -> float | None:
        """Relative drop in percent; None when the baseline answered nothing rightly."""
        return relative_drop_pct(self.baseline, self.value) if self.baseline > 0 else None


def _pairs(results: ProfileResults, experiment: str, baseline: str) -> list[tuple[RunResult, RunResult]]:
    pairs = results.pairs(experiment, baseline)
    if not pairs:
        raise UserError(f"{experiment} and {baseline} have no seed in common")
    return pairs


def quantized_pairs(results: ProfileResults) -> list[tuple[str, str]]:
    """(experiment, matched baseline) for every quantized experiment that has both at a common seed."""
    rows = [(row.id, row.baseline) for row in EXPERIMENTS.values() if row.baseline]
    return [(name, base) for name, base in rows if base and results.pairs(name, base)]


def _mean_over_seeds(
    pairs: list[tuple[RunResult, RunResult]], part: Callable[[RunResult], Any]
) -> tuple[Floats, Floats]:
    first = np.mean([np.asarray(part(q), dtype=float) for q, _ in pairs], axis=0)
    second = np.mean([np.asarray(part(b), dtype=float) for _, b in pairs], axis=0)
    return first, second


def compare_accuracy(
    results: ProfileResults, experiment: str, baseline: str, tasks: list[str] | None = None
) -> Accuracy:
    """Paired accuracy over the items of `tasks` (all when None), every item with equal weight."""
    pairs = _pairs(results, experiment, baseline)
    q, b = _mean_over_seeds(pairs, lambda run: _of_tasks(run.items, tasks)["correct"])
    return Accuracy(
        value=float(q.mean()) * 100,
        baseline=float(b.mean()) * 100,
        difference=paired_accuracy_difference(q, b).scaled(100),
        num_items=q.size,
        num_seeds=len(pairs),
        mcnemar=mcnemar_exact(q, b) if len(pairs) == 1 else None,
    )


def _of_tasks(items: pd.DataFrame, tasks: list[str] | None) -> pd.DataFrame:
    return items if tasks is None else items[items["task"].isin(tasks)]


def accuracy_interval(results: ProfileResults, experiment: str, task: str) -> Interval:
    """Accuracy of an experiment on a task in percent (mean over seeds), with its Wilson interval."""
    shares = [_of_tasks(run.items, [task])["correct"] for run in results.of(experiment)]
    return proportion_interval(float(np.mean([s.mean() for s in shares])), len(shares[0])).scaled(100)


def accuracy_by_seed(results: ProfileResults, experiment: str, task: str) -> list[float]:
    """Accuracy in percent of each seed."""
    return [100 * float(_of_tasks(run.items, [task])["correct"].mean()) for run in results.of(experiment)]


def compare_answer_nll(results: ProfileResults, experiment: str, baseline: str) -> Interval:
    """Difference in the true answers' negative log-likelihood, nats per item; above 0 is worse."""
    pairs = _pairs(results, experiment, baseline)
    return paired_loss_difference(*_mean_over_seeds(pairs, lambda run: run.items["nll_correct"]))


def compare_heldout(results: ProfileResults, experiment: str, baseline: str, domain: str) -> Interval:
    """Difference in held-out loss over a domain's sequences, nats per token; above 0 is worse."""
    pairs = _pairs(results, experiment, baseline)
    return paired_loss_difference(
        *_mean_over_seeds(pairs, lambda run: run.heldout.loc[run.heldout["domain"] == domain, "loss"])
    )


def _steps(run: RunResult) -> pd.DataFrame:
    if run.steps is None:
        raise UserError(f"{run.experiment} was not trained")
    return run.steps


def _taken(pairs: list[tuple[RunResult, RunResult]]) -> NDArray[np.bool_]:
    """[num_steps]: which steps none of the runs skipped."""
    return np.all([_steps(run)["skipped"] == 0 for pair in pairs for run in pair], axis=0)


def num_steps_left_out(results: ProfileResults, experiment: str, baseline: str) -> int:
    """Steps that a comparison of training losses leaves out because one of its runs skipped them."""
    return int((~_taken(_pairs(results, experiment, baseline))).sum())


def loss_pairs(results: ProfileResults) -> list[tuple[str, str]]:
    """Those of `quantized_pairs` that have a quantized step which none of their runs skipped."""
    found = []
    for experiment, baseline in quantized_pairs(results):
        pairs = _pairs(results, experiment, baseline)
        if (_taken(pairs) & (_steps(pairs[0][0])["quantized"] == 1)).any():
            found.append((experiment, baseline))
    return found


def ape_table(results: ProfileResults, experiment: str, baseline: str) -> pd.DataFrame:
    """Columns step, ape_pct (mean over seeds), ape_min, ape_max, quantized."""
    pairs = _pairs(results, experiment, baseline)
    taken = _taken(pairs)
    if not taken.any():
        raise UserError(f"{experiment} and {baseline} have no step that neither skipped")
    series = np.array([ape_series_pct(*(_steps(run)["loss"][taken] for run in pair)) for pair in pairs])
    steps = _steps(pairs[0][0])[taken]
    return pd.DataFrame(
        {
            "step": steps["step"],
            "ape_pct": series.mean(axis=0),
            "ape_min": series.min(axis=0),
            "ape_max": series.max(axis=0),
            "quantized": steps["quantized"].astype(bool),
        }
    )


def ape_interval(results: ProfileResults, experiment: str, baseline: str, quantized: bool) -> Interval:
    """Mean APE in percent over all steps, or over the quantized ones, with an interval over steps."""
    table = ape_table(results, experiment, baseline)
    return mean_interval(table.loc[table["quantized"] | (not quantized), "ape_pct"])


def late_loss_difference(
    results: ProfileResults, experiment: str, baseline: str, last_share: float = 0.25
) -> Interval:
    """Training loss minus the baseline's over the last quarter of the steps, nats, paired by step."""
    pairs = _pairs(results, experiment, baseline)
    taken = _taken(pairs)
    late = taken & (np.arange(taken.size) >= taken.size - max(1, round(taken.size * last_share)))
    return paired_loss_difference(*_mean_over_seeds(pairs, lambda run: _steps(run)["loss"][late]))


def mean_loss(results: ProfileResults, experiment: str, last_share: float = 0.25) -> float:
    """Mean training loss over the last quarter of the steps, over seeds, in nats; NaN if all were skipped."""
    late = [_steps(run).tail(max(1, round(len(_steps(run)) * last_share))) for run in results.of(experiment)]
    return float(pd.Series([taken_steps(steps)["loss"].mean() for steps in late]).mean())


def taken_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps that updated the model."""
    return steps[steps["skipped"] == 0]


def saturation_rows(
    results: ProfileResults, experiment: str, kind: str, layer: str | None = None
) -> pd.DataFrame:
    """Quantized (tensor, step) rows of one kind, all seeds, with a column seed; no skipped step."""
    parts = [(run.seed, quantized_rows(run)) for run in results.of(experiment)]
    tables = [table.assign(seed=seed) for seed, table in parts if table is not None]
    if not tables:
        raise UserError(f"{experiment} is not quantized or has no run")
    rows = pd.concat(tables, ignore_index=True)
    rows = rows[rows["kind"] == kind]
    return rows if layer is None else rows[rows["layer"] == layer]


def saturation_interval(
    results: ProfileResults, experiment: str, kind: str = "input", layer: str | None = None
) -> Interval:
    """Share of (tensor, step) pairs that saturate, 0 to 1; the interval is over (seed, step) means.

    Tensors of one step share its batch, so the step and not the tensor is the independent unit.
    """
    rows = saturation_rows(results, experiment, kind, layer)
    return bounded(mean_interval(rows.groupby(["seed", "step"])["saturated"].mean()))


def bounded(interval: Interval) -> Interval:
    """A share's interval cut to 0..1."""
    return Interval(interval.value, max(interval.low, 0.0), min(interval.high, 1.0))


def overshoot(rows: pd.DataFrame) -> Floats:
    """amax/estimate of the saturated pairs (above 1); non-finite ones are left out."""
    hit = rows[rows["saturated"] == 1]
    ratio = (hit["amax"] / hit["estimate"]).to_numpy(dtype=float)
    return np.asarray(ratio[np.isfinite(ratio)], dtype=np.float64)


def jitter_table(results: ProfileResults, experiment: str, kind: str) -> pd.DataFrame:
    """Columns block, layer, jitter: std of log2 of the estimate's ratio between steps, mean over seeds."""
    rows = saturation_rows(results, experiment, kind).sort_values("step")
    by_seed = rows.groupby(["seed", "block", "layer"])["estimate"].agg(scale_jitter)
    return by_seed.groupby(["block", "layer"]).mean().rename("jitter").reset_index().dropna()


def expected_share(results: ProfileResults, experiment: str) -> float | None:
    """The record law's share for an experiment's estimator; None where it makes no prediction."""
    quantization = results.of(experiment)[0].config.quantization
    windows = {"most_recent": 1, "max_window": quantization.amax_history_len if quantization else 1}
    if quantization is None or quantization.amax_compute_algo not in windows:
        return None
    steps = taken_steps(_steps(results.of(experiment)[0]))["quantized"]
    window, prefilled = windows[quantization.amax_compute_algo], int((steps == 0).sum())
    return expected_record_share(len(steps) - prefilled, window, prefilled=prefilled)
