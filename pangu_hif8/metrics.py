"""The measures of the report: plain functions of arrays, no files and no torch.

Every comparison is paired (same items, same sequences, same step), because both sides see the same data.
The formulas are scipy's: the exact McNemar test and Wilson's interval by `binomtest`, Student's t by
`t.interval`, power by the noncentral t. One is our own, since scipy has no interval for a difference of
paired shares: that of Agresti and Min (Simple improved confidence intervals for comparing matched
proportions, Statistics in Medicine 24, 2005: half a pseudo-count in each of the four cells), which keeps a
width when no item changed. The level is 95%, the power behind "smallest resolvable" 80%.
APE is the paper's measure: mean over steps of abs(loss_q - loss_bf16) / loss_bf16, in percent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, stats

from pangu_hif8.errors import UserError

LEVEL = 0.95
POWER = 0.80
Z_LEVEL = float(stats.norm.ppf(0.5 + LEVEL / 2))
Z_POWER = float(stats.norm.ppf(POWER))
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval, all in the unit of the estimate.

    Of several seeds, `low` to `high` is the hull of `over_rows` (items, sequences or steps of these runs) and
    `over_seeds` (Student's t over `by_seed`, one value a seed). `resolvable` is None where the normal law
    behind the interval gives the smallest resolvable effect.
    """

    value: float
    low: float
    high: float
    resolvable: float | None = None
    over_rows: Interval | None = None
    over_seeds: Interval | None = None
    by_seed: tuple[float, ...] = ()

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    @property
    def smallest_resolvable(self) -> float:
        """The true effect that would be told from zero with 80% power at this precision.

        Of several seeds the larger of the two that rows and seeds would need.
        """
        if self.resolvable is not None:
            return self.resolvable
        return self.half_width * (Z_LEVEL + Z_POWER) / Z_LEVEL

    def scaled(self, factor: float) -> Interval:
        """The same in another unit (`factor` > 0)."""
        return Interval(
            self.value * factor,
            self.low * factor,
            self.high * factor,
            None if self.resolvable is None else self.resolvable * factor,
            self.over_rows and self.over_rows.scaled(factor),
            self.over_seeds and self.over_seeds.scaled(factor),
            tuple(value * factor for value in self.by_seed),
        )

    def cut(self, low: float, high: float) -> Interval:
        """The same with its ends inside low..high, for a share; what it could resolve stays."""
        return replace(
            self,
            low=max(self.low, low),
            high=min(self.high, high),
            resolvable=self.smallest_resolvable,
            over_rows=self.over_rows and self.over_rows.cut(low, high),
            over_seeds=self.over_seeds and self.over_seeds.cut(low, high),
        )


@dataclass(frozen=True)
class McNemar:
    """Items that only one side answers rightly, and the exact two-sided p-value of their split."""

    num_worse: int
    num_better: int
    p_value: float


def _paired(a: ArrayLike, b: ArrayLike, what: str) -> tuple[Floats, Floats]:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise UserError(f"{what}: the two series have shapes {x.shape} and {y.shape}; they must be equal")
    if x.size == 0:
        raise UserError(f"{what}: the series are empty")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise UserError(f"{what}: a value is not finite")
    return x, y


def ape_series_pct(loss_q: ArrayLike, loss_bf16: ArrayLike) -> Floats:
    """Absolute percentage error of each step, in percent. Both [num_steps]; the baseline must be above 0."""
    q, b = _paired(loss_q, loss_bf16, "APE")
    if (b <= 0).any():
        raise UserError("APE: a baseline loss is zero or negative, so there is nothing to divide by")
    return np.abs(q - b) / b * 100.0


def loss_ape_pct(loss_q: ArrayLike, loss_bf16: ArrayLike) -> float:
    """Mean absolute percentage error over steps, in percent (the paper's APE).

    Raises UserError for unequal lengths, a value that is not finite, or a baseline that is not positive.
    """
    return float(ape_series_pct(loss_q, loss_bf16).mean())


def relative_drop_pct(baseline: float, value: float) -> float:
    """(baseline - value) / baseline in percent: positive when `value` is lower. Baseline must be above 0."""
    if not (np.isfinite(baseline) and np.isfinite(value)) or baseline <= 0:
        raise UserError(f"relative drop: needs finite values and a baseline above 0, got {baseline}, {value}")
    return (baseline - value) / baseline * 100.0


def mean_interval(values: ArrayLike) -> Interval:
    """Mean with Student's t interval. One value alone has an unbounded interval."""
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0 or not np.isfinite(x).all():
        raise UserError("mean: no values, or a value is not finite")
    mean = float(x.mean())
    if x.size == 1:
        return Interval(mean, -np.inf, np.inf)
    error, df = float(stats.sem(x)), x.size - 1
    if error == 0:  # scipy gives nan for a scale of 0
        return Interval(mean, mean, mean, 0.0)
    low, high = stats.t.interval(LEVEL, df, loc=mean, scale=error)
    return Interval(mean, float(low), float(high), _detectable(df) * error)


@cache
def _detectable(df: int) -> float:
    """The true mean, in standard errors, that a two-sided t test with `df` finds with 80% power."""
    critical = float(stats.t.ppf(0.5 + LEVEL / 2, df))
    return float(optimize.brentq(lambda d: stats.nct.sf(critical, df, d) - POWER, critical, 2 * critical))


def with_seeds(interval: Interval, by_seed: Iterable[float]) -> Interval:
    """The hull of an interval over rows and Student's t interval over the seeds' own values.

    So a verdict needs both. With fewer than two seeds `interval` stays as it is.
    """
    values = tuple(float(value) for value in by_seed)
    if len(values) < 2:
        return interval
    seeds = mean_interval(values)
    return Interval(
        interval.value,
        min(interval.low, seeds.low),
        max(interval.high, seeds.high),
        max(interval.smallest_resolvable, seeds.smallest_resolvable),
        interval,
        seeds,
        values,
    )


def paired_loss_difference(loss_q: ArrayLike, loss_b: ArrayLike) -> Interval:
    """Mean of loss_q - loss_b over sequences [num_sequences], nats, with Student's t interval."""
    q, b = _paired(loss_q, loss_b, "loss difference")
    return mean_interval(q - b)


def paired_accuracy_difference(correct_q: ArrayLike, correct_b: ArrayLike) -> Interval:
    """Mean of correct_q - correct_b over items [num_items], as a share, with the Agresti-Min interval.

    Entries are 0 or 1, or an item's mean over seeds; then each item still counts once.
    """
    q, b = _paired(correct_q, correct_b, "accuracy difference")
    if min(q.min(), b.min()) < 0 or max(q.max(), b.max()) > 1:
        raise UserError("accuracy difference: entries must lie between 0 and 1")
    d, n = q - b, q.size + 2
    centre = float(d.sum() / n)
    half = Z_LEVEL * float(np.sqrt(((np.square(d).sum() + 1) / n - centre**2) / n))
    return Interval(float(d.mean()), max(centre - half, -1.0), min(centre + half, 1.0))


def mcnemar_exact(correct_q: ArrayLike, correct_b: ArrayLike) -> McNemar:
    """Exact McNemar test of two 0/1 series [num_items] on the same items."""
    q, b = _paired(correct_q, correct_b, "McNemar")
    if not (np.isin(q, (0, 1)).all() and np.isin(b, (0, 1)).all()):
        raise UserError("McNemar: entries must be 0 or 1")
    worse, better = int(((b == 1) & (q == 0)).sum()), int(((b == 0) & (q == 1)).sum())
    p_value = 1.0 if worse + better == 0 else float(stats.binomtest(worse, worse + better).pvalue)
    return McNemar(worse, better, p_value)


def proportion_interval(share: float, num: int) -> Interval:
    """A share of `num` items with its Wilson interval.

    A mean over seeds need not be a whole number of items: then from the count below to the count above.
    """
    if num < 1 or not 0 <= share <= 1:
        raise UserError(f"proportion: needs a share between 0 and 1 of at least one item, got {share}, {num}")
    count = round(share * num, 6)
    low = _wilson(int(np.floor(count)), num)[0]
    high = _wilson(int(np.ceil(count)), num)[1]
    return Interval(share, min(low, share), max(high, share))


def _wilson(count: int, num: int) -> tuple[float, float]:
    found = stats.binomtest(count, num).proportion_ci(LEVEL, method="wilson")
    return float(found.low), float(found.high)


def record_share(history_len: ArrayLike) -> Floats:
    """Chance 1/(w+1) that a step exceeds the maximum of its last w, for independent steps alike."""
    w = np.asarray(history_len, dtype=np.float64)
    if not np.isfinite(w).all() or (w < 1).any():
        raise UserError("record law: a history length must be 1 or more")
    return np.asarray(1.0 / (w + 1.0))


def expected_record_share(num_steps: int, window: int, prefilled: int = 0) -> float:
    """Mean of the record law over steps whose history grows from `prefilled` to `window` entries.

    A first step without history is left out, since the law says nothing of it: it is scaled by the amaxes of
    an unquantized pass over its own batch, which the quantized pass may exceed. NaN when no step is left.
    """
    lengths = np.minimum(np.arange(num_steps) + prefilled, window)
    known = lengths[lengths >= 1]
    return float(record_share(known).mean()) if known.size else float("nan")


def scale_jitter(estimates: ArrayLike) -> float:
    """Standard deviation of log2(estimate_t / estimate_(t-1)) over steps [num_steps]: 1 is a factor of 2.

    NaN when there are fewer than three positive estimates.
    """
    x = np.asarray(estimates, dtype=np.float64)
    x = x[np.isfinite(x) & (x > 0)]
    return float(np.diff(np.log2(x)).std(ddof=1)) if x.size >= 3 else float("nan")
