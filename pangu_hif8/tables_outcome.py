"""Tables of outcomes: benchmarks, held-out loss, and with several seeds each measure's spread over them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8 import paper
from pangu_hif8.comparisons import (
    accuracy_by_seed,
    accuracy_interval,
    compare_accuracy,
    compare_answer_nll,
    compare_heldout,
    loss_pairs,
    quantized_pairs,
    saturation_interval,
)
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.late_ape import MAX_WINDOW, ape_gap, common_start, late_ape
from pangu_hif8.metrics import Interval
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import DOMAINS, KINDS


def benchmark_table(results: ProfileResults) -> pd.DataFrame:
    """One row per experiment and task: accuracy, standard error, spread over seeds, drop, the paper's."""
    tasks = [task.name for task in results.settings.evaluation.tasks]
    pairs = dict(quantized_pairs(results))
    return pd.DataFrame(
        [_benchmark_row(results, n, t, pairs.get(n)) for n in results.experiments() for t in tasks]
    )


def _benchmark_row(results: ProfileResults, name: str, task: str, baseline: str | None) -> dict[str, Any]:
    interval, seeds = accuracy_interval(results, name, task), accuracy_by_seed(results, name, task)
    scores = results.of(name)[0].summary["tasks"][task]
    row: dict[str, Any] = {
        "experiment": name,
        "run": EXPERIMENTS[name].title,
        "task": task,
        "metric": scores["metric"],
        "num_items": scores["num_items"],
        "num_seeds": len(seeds),
        "accuracy_pct": interval.value,
        "accuracy_low": interval.low,
        "accuracy_high": interval.high,
        "stderr_pct": 100 * float(np.mean([r.summary["tasks"][task]["stderr"] for r in results.of(name)])),
        "seed_std_pct": float(np.std(seeds, ddof=1)) if len(seeds) > 1 else None,
        "seed_low": interval.over_seeds and interval.over_seeds.low,
        "seed_high": interval.over_seeds and interval.over_seeds.high,
        "paper_accuracy_pct": paper.accuracy(name, task),
        "answer_nll_nats": _mean_answer_nll(results, name, task),
    }
    return row | _drop_cells(results, name, task, baseline) | _nll_cells(results, name, task, baseline)


def _mean_answer_nll(results: ProfileResults, name: str, task: str) -> float:
    items = (run.items for run in results.of(name))
    return float(np.mean([table.loc[table["task"] == task, "nll_correct"].mean() for table in items]))


def _nll_cells(results: ProfileResults, name: str, task: str, baseline: str | None) -> dict[str, Any]:
    """The true answers' negative log-likelihood minus the baseline's, with its interval."""
    found = None if baseline is None else compare_answer_nll(results, name, baseline, [task])
    ends = (found.value, found.low, found.high) if found else (None, None, None)
    return dict(zip(("nll_minus_baseline", "nll_minus_low", "nll_minus_high"), ends, strict=True))


def _drop_cells(results: ProfileResults, name: str, task: str, baseline: str | None) -> dict[str, Any]:
    empty = ("baseline", "drop_pct", "difference_points", "difference_low", "difference_high", "mcnemar_p")
    cells: dict[str, Any] = dict.fromkeys([*empty, "paper_drop_pct"])
    if baseline is None:
        return cells
    found = compare_accuracy(results, name, baseline, [task])
    d = found.difference
    values = (baseline, found.drop_pct, d.value, d.low, d.high, found.mcnemar and found.mcnemar.p_value)
    return (
        cells
        | dict(zip(empty, values, strict=True))
        | {"paper_drop_pct": paper.drop_pct(name, baseline, task)}
    )


def heldout_table(results: ProfileResults) -> pd.DataFrame:
    """One row per experiment and domain: held-out loss, difference from E0 and from the matched baseline."""
    return pd.DataFrame([_heldout_row(results, n, d) for n in results.experiments() for d in DOMAINS])


def _heldout_row(results: ProfileResults, name: str, domain: str) -> dict[str, Any]:
    losses = [run.summary["heldout"][domain]["loss"] for run in results.of(name)]
    row: dict[str, Any] = {
        "experiment": name,
        "domain": domain,
        "loss_nats": float(np.mean(losses)),
        "seed_std_nats": float(np.std(losses, ddof=1)) if len(losses) > 1 else None,
    }
    for key, other in (("E0", "E0"), ("baseline", EXPERIMENTS[name].baseline)):
        usable = other and other != name and results.pairs(name, other)
        found = compare_heldout(results, name, other, domain) if other and usable else None
        row[f"minus_{key}"] = found and found.value
        row[f"minus_{key}_low"], row[f"minus_{key}_high"] = found and found.low, found and found.high
    return row


Measure = tuple[str, str, str, Interval]  # what, experiment, against, the interval


def seeds_table(results: ProfileResults) -> pd.DataFrame:
    """What other seeds change: mean and Student's t interval over seeds, and each seed's value.

    One row per measure and experiment that has several seeds; without any, no rows. `seed_low` to
    `seed_high` is of the seeds alone; what claims are judged by also covers other items, sequences, steps.
    """
    rows = [_seed_row(*measure) for measure in _measures(results)]
    return pd.DataFrame([row for row in rows if row is not None])


def _seed_row(measure: str, name: str, against: str, interval: Interval) -> dict[str, Any] | None:
    seeds = interval.over_seeds
    if seeds is None:
        return None
    return {
        "measure": measure,
        "experiment": name,
        "against": against,
        "num_seeds": len(interval.by_seed),
        "mean": float(np.mean(interval.by_seed)),
        "seed_low": seeds.low,
        "seed_high": seeds.high,
        "seeds": "; ".join(f"{value:.4g}" for value in interval.by_seed),
    }


def _measures(results: ProfileResults) -> Iterator[Measure]:
    yield from _accuracies(results)
    yield from _losses(results)
    for kind in KINDS:
        for name in results.experiments():
            if results.of(name)[0].saturation is not None:
                share = saturation_interval(results, name, kind).scaled(100)
                yield f"saturated {kind} pairs (%)", name, "", share


def _to_e0(results: ProfileResults) -> list[tuple[str, str]]:
    return [(name, "E0") for name in results.experiments() if name != "E0" and results.pairs(name, "E0")]


def _accuracies(results: ProfileResults) -> Iterator[Measure]:
    for task in results.settings.evaluation.tasks:
        for name in results.experiments():
            yield f"accuracy, {task.name} (%)", name, "", accuracy_interval(results, name, task.name)
    for pair in _to_e0(results) + quantized_pairs(results):
        yield "accuracy, all items (points)", *pair, compare_accuracy(results, *pair).difference


def _losses(results: ProfileResults) -> Iterator[Measure]:
    for pair in _to_e0(results) + quantized_pairs(results):
        yield "true answers' nll (nats)", *pair, compare_answer_nll(results, *pair)
    for domain in DOMAINS:
        for pair in _to_e0(results):
            name = f"held-out loss, {domain.replace('_', ' ')} (nats)"
            yield name, *pair, compare_heldout(results, *pair, domain)
    for pair in loss_pairs(results):
        late = late_ape(results, *pair)
        if late:
            yield f"APE from step {common_start(results)} (%)", *pair, late
    for name, other in MAX_WINDOW.items():
        gap = ape_gap(results, name)
        if gap:
            yield f"APE from step {common_start(results)} (%)", name, other, gap
