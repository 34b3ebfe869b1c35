"""Two runs side by side: the paired differences that claims, tables and figures share.

Usable runs of a profile have the same items and the same held-out sequences in the same order (results.py
sees to it), so rows pair by position. Several seeds are averaged item by item, sequence by sequence and
step by step before an interval over rows is taken: an item counts once, however many seeds answered it.
Each seed's own difference is kept, too, with Student's t interval over seeds, and the interval of a
comparison is the hull of both (`metrics.with_seeds`): it covers other items and other seeds. E0, which has
no seed, pairs with every seed of the other run. A step that any of the compared runs skipped (its loss or
gradient was not finite) is left out on both sides. Shares of saturation: scale_comparisons.py.
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
    mcnemar_exact,
    mean_interval,
    paired_accuracy_difference,
    paired_loss_difference,
    proportion_interval,
    relative_drop_pct,
    with_seeds,
)
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_files import RunResult
from pangu_hif8.scale_comparisons import (
    bounded,
    expected_share,
    jitter_gap,
    jitter_table,
    overshoot,
    saturation_interval,
    saturation_rows,
    share_interval,
    steps_of,
    taken_steps,
)

__all__ = [
    "Accuracy",
    "accuracy_by_seed",
    "accuracy_interval",
    "ape_by_seed",
    "ape_interval",
    "ape_table",
    "bounded",
    "compare_accuracy",
    "compare_answer_nll",
    "compare_heldout",
    "expected_share",
    "jitter_gap",
    "jitter_table",
    "late_loss_difference",
    "loss_pairs",
    "mean_loss",
    "num_steps_left_out",
    "overshoot",
    "quantized_pairs",
    "saturation_interval",
    "saturation_rows",
    "share_interval",
    "taken_steps",
]


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of a run and its baseline in percent, and their paired difference in points.

    `difference.by_seed` has each seed's difference; `mcnemar` is None of several seeds, whose own tests are
    in `mcnemar_by_seed`.
    """

    value: float
    baseline: float
    difference: Interval
    num_items: int
    num_seeds: int
    mcnemar: McNemar | None
    mcnemar_by_seed: tuple[McNemar, ...] = ()

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


def _values(pairs: list[tuple[RunResult, RunResult]], part: Callable[[RunResult], Any]) -> list[list[Floats]]:
    """The part of each run as an array: one [quantized, baseline] a seed."""
    return [[np.asarray(part(run), dtype=np.float64) for run in pair] for pair in pairs]


def _difference(values: list[list[Floats]], measure: Callable[[Floats, Floats], Interval]) -> Interval:
    """A measure of the mean over seeds, widened by its spread over seeds."""
    q, b = np.mean(values, axis=0)
    return with_seeds(measure(q, b), [measure(*pair).value for pair in values])


def compare_accuracy(
    results: ProfileResults, experiment: str, baseline: str, tasks: list[str] | None = None
) -> Accuracy:
    """Paired accuracy over the items of `tasks` (all when None), every item with equal weight."""
    pairs = _pairs(results, experiment, baseline)
    values = _values(pairs, lambda run: _of_tasks(run.items, tasks)["correct"])
    q, b = np.mean(values, axis=0)
    tests = tuple(mcnemar_exact(*pair) for pair in values)
    return Accuracy(
        value=float(q.mean()) * 100,
        baseline=float(b.mean()) * 100,
        difference=_difference(values, paired_accuracy_difference).scaled(100),
        num_items=q.size,
        num_seeds=len(pairs),
        mcnemar=tests[0] if len(pairs) == 1 else None,
        mcnemar_by_seed=tests,
    )


def _of_tasks(items: pd.DataFrame, tasks: list[str] | None) -> pd.DataFrame:
    return items if tasks is None else items[items["task"].isin(tasks)]


def accuracy_interval(results: ProfileResults, experiment: str, task: str) -> Interval:
    """Accuracy of an experiment on a task in percent: Wilson's interval over items, t over seeds."""
    shares = [_of_tasks(run.items, [task])["correct"] for run in results.of(experiment)]
    by_seed = [float(share.mean()) for share in shares]
    found = with_seeds(proportion_interval(float(np.mean(by_seed)), len(shares[0])), by_seed)
    return bounded(found).scaled(100)


def accuracy_by_seed(results: ProfileResults, experiment: str, task: str) -> list[float]:
    """Accuracy in percent of each seed."""
    return [100 * float(_of_tasks(run.items, [task])["correct"].mean()) for run in results.of(experiment)]


def compare_answer_nll(
    results: ProfileResults, experiment: str, baseline: str, tasks: list[str] | None = None
) -> Interval:
    """Difference in the true answers' negative log-likelihood, nats per item; above 0 is worse."""
    pairs = _pairs(results, experiment, baseline)
    values = _values(pairs, lambda run: _of_tasks(run.items, tasks)["nll_correct"])
    return _difference(values, paired_loss_difference)


def compare_heldout(results: ProfileResults, experiment: str, baseline: str, domain: str) -> Interval:
    """Difference in held-out loss over a domain's sequences, nats per token; above 0 is worse."""
    pairs = _pairs(results, experiment, baseline)
    values = _values(pairs, lambda run: run.heldout.loc[run.heldout["domain"] == domain, "loss"])
    return _difference(values, paired_loss_difference)


def _taken(pairs: list[tuple[RunResult, RunResult]]) -> NDArray[np.bool_]:
    """[num_steps]: which steps none of the runs skipped."""
    return np.all([steps_of(run)["skipped"] == 0 for pair in pairs for run in pair], axis=0)


def num_steps_left_out(results: ProfileResults, experiment: str, baseline: str) -> int:
    """Steps that a comparison of training losses leaves out because one of its runs skipped them."""
    return int((~_taken(_pairs(results, experiment, baseline))).sum())


def loss_pairs(results: ProfileResults) -> list[tuple[str, str]]:
    """Those of `quantized_pairs` that have a quantized step which none of their runs skipped."""
    found = []
    for experiment, baseline in quantized_pairs(results):
        pairs = _pairs(results, experiment, baseline)
        if (_taken(pairs) & (steps_of(pairs[0][0])["quantized"] == 1)).any():
            found.append((experiment, baseline))
    return found


def ape_by_seed(
    results: ProfileResults, experiment: str, baseline: str
) -> tuple[pd.DataFrame, NDArray[np.float64]]:
    """The steps that all took, and their APE in percent, [num_seeds, num_steps]."""
    pairs = _pairs(results, experiment, baseline)
    taken = _taken(pairs)
    if not taken.any():
        raise UserError(f"{experiment} and {baseline} have no step that neither skipped")
    series = [ape_series_pct(*(steps_of(run)["loss"][taken] for run in pair)) for pair in pairs]
    return steps_of(pairs[0][0])[taken], np.array(series)


def ape_table(results: ProfileResults, experiment: str, baseline: str) -> pd.DataFrame:
    """Columns step, ape_pct (mean over seeds), ape_min, ape_max, quantized."""
    steps, series = ape_by_seed(results, experiment, baseline)
    return pd.DataFrame(
        {
            "step": steps["step"],
            "ape_pct": series.mean(axis=0),
            "ape_min": series.min(axis=0),
            "ape_max": series.max(axis=0),
            "quantized": steps["quantized"].astype(bool),
        }
    )


def ape_interval(
    results: ProfileResults, experiment: str, baseline: str, quantized: bool, from_step: int = 1
) -> Interval:
    """Mean APE in percent over all steps, or over the quantized ones; interval over steps and seeds.

    `from_step` leaves out the steps before it, so that runs that switch at different steps can be compared.
    Raises UserError when nothing is left.
    """
    steps, series = ape_by_seed(results, experiment, baseline)
    late = steps["step"].to_numpy() >= from_step
    wanted = late & (steps["quantized"].to_numpy().astype(bool) | (not quantized))
    if not wanted.any():
        raise UserError(f"{experiment} and {baseline} have no such step from {from_step} on")
    chosen = series[:, wanted]
    return with_seeds(mean_interval(chosen.mean(axis=0)), chosen.mean(axis=1)).cut(0.0, np.inf)


def late_loss_difference(
    results: ProfileResults, experiment: str, baseline: str, last_share: float = 0.25
) -> Interval:
    """Training loss minus the baseline's over the last quarter of the steps, nats, paired by step."""
    pairs = _pairs(results, experiment, baseline)
    taken = _taken(pairs)
    late = taken & (np.arange(taken.size) >= taken.size - max(1, round(taken.size * last_share)))
    return _difference(_values(pairs, lambda run: steps_of(run)["loss"][late]), paired_loss_difference)


def mean_loss(results: ProfileResults, experiment: str, last_share: float = 0.25) -> float:
    """Mean training loss over the last quarter of the steps, over seeds, in nats; NaN if all were skipped."""
    late = [
        steps_of(run).tail(max(1, round(len(steps_of(run)) * last_share))) for run in results.of(experiment)
    ]
    return float(pd.Series([taken_steps(steps)["loss"].mean() for steps in late]).mean())
