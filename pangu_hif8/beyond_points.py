"""The points of each sweep: the paper's own setting among the variants, what each gains and what it costs.

Quality is held-out loss against the unquantized run of the same learning rate, or against the paper's own
setting; a cost is what a setting gives up for it, in a unit of its own for each sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8.comparisons import (
    ape_interval,
    bounded,
    compare_heldout,
    saturation_interval,
    saturation_rows,
)
from pangu_hif8.config import ModelConfig
from pangu_hif8.metrics import Interval, mean_interval, with_seeds
from pangu_hif8.plan_workload import shape_of
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import each_once
from pangu_hif8.run_files import RunResult
from pangu_hif8.sampled import sampled_rows
from pangu_hif8.variants import Variant

NO_SPREAD = 1e6
TRAINING_TEXT, SECOND = "same_domain", "second_domain"


@dataclass(frozen=True)
class Sweep:
    """One setting that is varied.

    `reference`: the experiment with the paper's own setting, `baseline` the unquantized one at its rate;
    `setting`: the varied value of a run; `own`: how the reference's setting is called.
    """

    id: str
    title: str
    reference: str
    baseline: str
    setting: Callable[[RunResult], float]
    own: Callable[[RunResult], str]
    cost_name: str
    cost: Callable[[ProfileResults, str], float]


@dataclass(frozen=True)
class Point:
    """One setting of a sweep that has runs: an experiment's or a variant's name, and how it is called."""

    name: str
    title: str
    setting: float
    is_own: bool = False


def points_of(results: ProfileResults, sweep: Sweep, variants: Iterable[Variant]) -> list[Point]:
    """The settings of a sweep that were run, the paper's own among them, by the setting's value."""
    found = [Point(v.id, v.title, 0.0) for v in variants if v.id.startswith(f"{sweep.id}-")]
    runs = {point.name: results.of(point.name) for point in found}
    points = [replace(p, setting=sweep.setting(runs[p.name][0])) for p in found if runs[p.name]]
    reference = results.of(sweep.reference)[0]
    own = Point(sweep.reference, sweep.own(reference), sweep.setting(reference), True)
    return sorted([own, *points], key=lambda point: point.setting)


def others(points: Iterable[Point]) -> list[Point]:
    """The points that are not the paper's own."""
    return [point for point in points if not point.is_own]


# ---- settings --------------------------------------------------------------------------------------------


def lr_decay(run: RunResult) -> float:
    """Factor between the learning rates of neighbouring blocks."""
    return run.config.train.optimizer.lr_decay_per_block


def switch_step(run: RunResult) -> float:
    """The first step that quantized."""
    return float(run.info["quantized_from_step"])


def spread_or_fixed(run: RunResult) -> float:
    """An adaptive warm-up's threshold with a minus, so that they sort by falling threshold.

    Before them come no warm-up and then the fixed one, for which the number has no meaning.
    """
    assert run.config.quantization
    spread = run.config.quantization.adaptive_warmup_spread
    return -spread if spread is not None else (-NO_SPREAD if _warmup(run) else -2 * NO_SPREAD)


def _warmup(run: RunResult) -> int:
    assert run.config.quantization
    return run.config.quantization.bf16_warmup_steps


def num_hp_blocks(run: RunResult) -> float:
    """Blocks that stay in high precision."""
    return float(_num_hp(run.config.model))


def _num_hp(model: ModelConfig) -> int:
    kept = model.hp_blocks
    return model.num_first_hp_blocks + model.num_last_hp_blocks if kept is None else len(kept)


def window(run: RunResult) -> float:
    """Steps in the window."""
    assert run.config.quantization
    return float(run.config.quantization.amax_history_len)


def target(run: RunResult) -> float:
    """The value that amax is mapped to."""
    assert run.config.quantization
    return run.config.quantization.hif8_max


# ---- costs -----------------------------------------------------------------------------------------------


def learning_given_up(results: ProfileResults, name: str) -> float:
    """Held-out loss on the training text above E5's, nats: what slower layers learn less."""
    return 0.0 if name == "E5" else compare_heldout(results, name, "E5", TRAINING_TEXT).value


def unquantized_steps_pct(results: ProfileResults, name: str) -> float:
    """Share of the steps that were trained unquantized, percent, mean over seeds."""
    shares = [(switch_step(run) - 1) / run.info["num_steps"] for run in results.of(name)]
    return 100 * float(np.mean(shares))


def hp_weights_pct(results: ProfileResults, name: str) -> float:
    """Share of the linears' weights (lm_head among them) that stay in high precision, percent.

    A linear's FLOPs go with its weights, so that it is the share of the linears' FLOPs, too.
    """
    model = results.of(name)[0].config.model
    shape = shape_of(results.settings.model)
    quantized = (shape.num_blocks - _num_hp(model)) * shape.mlp_weights
    return 100 * (1 - quantized / shape.matmul_weights)


def slack(results: ProfileResults, name: str) -> Interval:
    """Octaves between an input's amax and the larger estimate used for it, over pairs, steps and seeds."""
    rows = saturation_rows(results, name, "input")
    rows = rows[rows["amax"] > 0]
    octaves = np.log2((rows["estimate"] / rows["amax"]).clip(lower=1.0))
    return _over_steps(rows.assign(octaves=octaves), "octaves")


def slack_octaves(results: ProfileResults, name: str) -> float:
    """As `slack`, the mean alone."""
    return slack(results, name).value


def noise_pct(results: ProfileResults, name: str) -> float:
    """Power of the inputs' quantization error over the signal's, percent, from the median SQNR."""
    return float(100 * 10 ** (-sqnr_db(results, name) / 10))


# ---- what else is measured -------------------------------------------------------------------------------


def sqnr_db(results: ProfileResults, name: str, kind: str = "input") -> float:
    """Median SQNR of the sampled tensors of a kind, dB; NaN without samples."""
    rows = _samples(results, name, kind)
    values = rows["sqnr_db"].to_numpy(dtype=float) if len(rows) else np.array([])
    values = values[np.isfinite(values)]
    return float(np.median(values)) if values.size else float("nan")


def flushed(results: ProfileResults, name: str, kind: str = "input") -> Interval | None:
    """Share of elements that became zero, 0 to 1, over sampled steps and seeds; None without samples."""
    rows = _samples(results, name, kind)
    return bounded(_over_steps(rows, "flushed_share")) if len(rows) else None


def _samples(results: ProfileResults, name: str, kind: str) -> pd.DataFrame:
    rows = sampled_rows(results, name)
    return each_once(rows[rows["kind"] == kind]) if len(rows) else rows


def _over_steps(rows: pd.DataFrame, column: str) -> Interval:
    """Mean of a column's means by (seed, step): tensors of one step share its batch."""
    by_step = rows.groupby(["seed", "step"])[column].mean()
    return with_seeds(mean_interval(by_step), by_step.groupby("seed").mean())


def saturated(results: ProfileResults, name: str, kind: str = "input") -> Interval:
    """Share of (tensor, step) pairs that saturate, percent."""
    return saturation_interval(results, name, kind).scaled(100)


def ape(results: ProfileResults, name: str, baseline: str) -> Interval:
    """APE over the quantized steps, percent."""
    return ape_interval(results, name, baseline, quantized=True)


def ends(name: str, interval: Interval | None) -> dict[str, Any]:
    """Columns name, name_low, name_high of a table."""
    values = (None, None, None) if interval is None else (interval.value, interval.low, interval.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
