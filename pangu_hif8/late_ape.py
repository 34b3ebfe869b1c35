"""APE after the warm-up only: over the steps that every quantized run quantizes.

A warm-up's steps have almost no error and would flatter the run that has one, and the first steps, at a small
learning rate, are not like the later ones. So runs are compared from the last switch on.
"""

from __future__ import annotations

import numpy as np

from pangu_hif8.comparisons import ape_by_seed, ape_interval, loss_pairs
from pangu_hif8.errors import UserError
from pangu_hif8.metrics import Interval, mean_interval, with_seeds
from pangu_hif8.results import ProfileResults


def switch_step(results: ProfileResults, experiment: str) -> int:
    """The first step that an experiment quantizes in all its seeds: 1 without a warm-up, 0 if never."""
    return max(int(run.info["quantized_from_step"] or 0) for run in results.of(experiment))


def common_start(results: ProfileResults) -> int:
    """The first step that every quantized experiment quantizes; 1 when none has a warm-up."""
    return max((switch_step(results, name) for name, _ in loss_pairs(results)), default=1)


def late_ape(results: ProfileResults, experiment: str, baseline: str) -> Interval | None:
    """Mean APE in percent from `common_start` on; None when all those steps were skipped."""
    try:
        return ape_interval(results, experiment, baseline, True, from_step=common_start(results))
    except UserError:
        return None


MAX_WINDOW = {"E2": "E5", "E3": "E5", "E4": "E5", "E7": "E8"}  # the run with max-window at the same rate


def ape_gap(results: ProfileResults, experiment: str) -> Interval | None:
    """APE minus that of max-window at the same learning rate, in points, paired by step, after every warm-up.

    Above 0: max-window's loss is nearer to the baseline's. None where one of the runs or of the steps lacks.
    """
    other, baselines = MAX_WINDOW.get(experiment), dict(loss_pairs(results))
    if other is None or not {experiment, other} <= baselines.keys():
        return None
    runs = [_late_by_seed(results, name, baselines[name]) for name in (experiment, other)]
    both = sorted(set.intersection(*(set(found) for found in runs)))
    steps = sorted(
        set.intersection(*(set(found[seed]) for found in runs for seed in both)) if both else set()
    )
    if not steps:
        return None
    gaps = np.array([[runs[0][s][step] - runs[1][s][step] for step in steps] for s in both])
    return with_seeds(mean_interval(gaps.mean(axis=0)), gaps.mean(axis=1))


def _late_by_seed(results: ProfileResults, experiment: str, baseline: str) -> dict[int, dict[int, float]]:
    """APE in percent by seed and step, from `common_start` on."""
    steps, series = ape_by_seed(results, experiment, baseline)
    late = (steps["step"] >= common_start(results)).to_numpy()
    numbers = [int(step) for step in steps["step"][late]]
    seeds = [run.seed for run, _ in results.pairs(experiment, baseline)]
    return {seed: dict(zip(numbers, row[late], strict=True)) for seed, row in zip(seeds, series, strict=True)}


def switches_text(results: ProfileResults) -> str:
    """From which steps runs quantize, for a sentence: "E8 from step 17, the others from step 1"."""
    found = {name: switch_step(results, name) for name, _ in loss_pairs(results)}
    late = [f"{name} from step {step}" for name, step in found.items() if step > 1]
    if not late:
        return "all from step 1"
    return ", ".join(late) + (", the others from step 1" if len(late) < len(found) else "")
