"""The report's measures: against published figures, by hand, and against scipy or brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pangu_hif8 import metrics, paper
from pangu_hif8.errors import UserError

TABLE = paper.loss_table()


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (slice(None), 0.1148),
        (slice(-1000, None), 0.1205),
        (slice(0, 500), 0.0140),
        (slice(500, 600), 0.1280),
    ],
)
def test_ape_gives_the_published_figures(rows: slice, expected: float) -> None:
    found = metrics.loss_ape_pct(TABLE["loss_hif8_max"][rows], TABLE["loss_bf16"][rows])
    assert found == pytest.approx(expected, abs=5e-5)


def test_the_published_table_is_whole() -> None:
    assert list(TABLE["step"]) == list(range(1, 10_001))
    assert paper.drop_pct("E8", "E6", "mmlu") == pytest.approx(0.43, abs=0.01)
    assert paper.drop_pct("E8", "E6", "arc_challenge") == pytest.approx(0.22, abs=0.01)
    assert paper.drop_pct("E5", "E1", "arc_challenge") == pytest.approx(3.30, abs=0.01)
    assert paper.accuracy("E2", "mmlu") is None
    assert paper.accuracy("E8", "mmlu_continuation") == paper.accuracy("E8", "mmlu") == 43.17
    assert paper.accuracy("E3", "minerva_math") is None


def test_ape_is_an_absolute_share_of_the_baseline() -> None:
    assert metrics.loss_ape_pct([1.1, 1.8], [1.0, 2.0]) == pytest.approx(10.0)
    assert list(metrics.ape_series_pct([1.1, 2.0], [1.0, 2.0])) == pytest.approx([10.0, 0.0])


@pytest.mark.parametrize(
    ("q", "b"),
    [([1.0, 2.0], [1.0]), ([], []), ([math.nan], [1.0]), ([1.0], [math.inf]), ([1.0], [0.0]), ([1.0], [-1.0]),
     ([[1.0]], [[1.0]])],
)  # fmt: skip
def test_ape_refuses_what_it_cannot_compare(q: list[float], b: list[float]) -> None:
    with pytest.raises(UserError):
        metrics.loss_ape_pct(q, b)


def test_relative_drop() -> None:
    assert metrics.relative_drop_pct(50.0, 49.0) == pytest.approx(2.0)
    assert metrics.relative_drop_pct(50.0, 51.0) == pytest.approx(-2.0)
    for bad in ((0.0, 1.0), (math.nan, 1.0), (1.0, math.inf)):
        with pytest.raises(UserError):
            metrics.relative_drop_pct(*bad)


def test_mcnemar_counts_only_changed_items() -> None:
    found = metrics.mcnemar_exact([1, 0, 0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 0, 1])
    assert (found.num_worse, found.num_better) == (5, 1)
    assert found.p_value == pytest.approx(2 * (1 + 6) / 2**6)  # two tails of a fair coin thrown six times
    assert metrics.mcnemar_exact([1, 0], [1, 0]).p_value == 1.0
    with pytest.raises(UserError):
        metrics.mcnemar_exact([0.5], [1.0])


def test_paired_accuracy_is_agresti_min() -> None:
    """The interval by the 2005 paper's formula, written out with its four cells."""
    b10, b01, same = 12, 5, 83
    q = np.array([0] * b10 + [1] * b01 + [1] * same)
    b = np.array([1] * b10 + [0] * b01 + [1] * same)
    n, worse, better = 102, b10 + 0.5, b01 + 0.5
    centre = (better - worse) / n
    half = 1.959964 * math.sqrt((better + worse) - (better - worse) ** 2 / n) / n
    found = metrics.paired_accuracy_difference(q, b)
    assert found.value == pytest.approx(-0.07)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), abs=1e-6)


def test_paired_accuracy_keeps_a_width_without_any_change() -> None:
    found = metrics.paired_accuracy_difference([1] * 100, [1] * 100)
    assert found.value == 0
    assert found.low < 0 < found.high
    assert found.high == pytest.approx(1.96 / 102, rel=0.01)  # one pseudo-change among 102


def weighted_agresti_min(q: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """The same interval another way: each cell (q, b) of the 2 by 2 table gets half an item, then Wald's."""
    d = np.r_[q - b, 0.0, -1.0, 1.0, 0.0]
    weights = np.r_[np.ones(q.size), np.full(4, 0.5)]
    mean = np.average(d, weights=weights)
    error = math.sqrt(np.average((d - mean) ** 2, weights=weights) / weights.sum())
    return stats.norm.interval(0.95, loc=mean, scale=error)


def test_paired_accuracy_equals_the_weighted_form() -> None:
    rng = np.random.default_rng(7)
    for _ in range(100):
        n, seeds = rng.integers(2, 300), rng.integers(1, 4)
        b = (rng.random((seeds, n)) < rng.random()).mean(axis=0)  # 0 or 1, or an item's mean over seeds
        q = np.where(rng.random(n) < rng.random(), b, (rng.random((seeds, n)) < 0.5).mean(axis=0))
        low, high = weighted_agresti_min(q, b)
        found = metrics.paired_accuracy_difference(q, b)
        assert (found.low, found.high) == pytest.approx((max(low, -1), min(high, 1)), abs=1e-12)
        turned = metrics.paired_accuracy_difference(b, q)  # the other way round it is the mirror image
        assert (turned.low, turned.high) == pytest.approx((-found.high, -found.low), abs=1e-12)


def interval_of_counts(worse: int, better: int, n: int) -> metrics.Interval:
    same = [1] * (n - worse - better)
    return metrics.paired_accuracy_difference(
        [0] * worse + [1] * better + same, [1] * worse + [0] * better + same
    )


@pytest.mark.parametrize("n", [30, 100, 400, 1500])
@pytest.mark.parametrize("discordant", [0.02, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("worse_share", [0.5, 0.7, 0.95])
def test_paired_accuracy_interval_covers(n: int, discordant: float, worse_share: float) -> None:
    """95% are promised; the true difference lies inside in at least 93% of 4,000 draws everywhere."""
    shares = [discordant * worse_share, discordant * (1 - worse_share), 1 - discordant]
    draws = np.random.default_rng(n).multinomial(n, shares, size=4000)
    counts, times = np.unique(draws[:, :2], axis=0, return_counts=True)
    found = [interval_of_counts(int(w), int(b), n) for w, b in counts]
    inside = [i.low <= shares[1] - shares[0] <= i.high for i in found]
    assert np.average(inside, weights=times) >= 0.93


def test_mean_interval_is_students_t() -> None:
    x = np.random.default_rng(1).normal(size=20)
    found = metrics.mean_interval(x)
    reference = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
    same = metrics.mean_interval([0.5] * 4)
    assert (same.low, same.high, same.smallest_resolvable) == (0.5, 0.5, 0.0)
    alone = metrics.mean_interval([2.0])
    assert (alone.value, alone.low, alone.high) == (2.0, -math.inf, math.inf)
    for bad in ([], [math.nan]):
        with pytest.raises(UserError):
            metrics.mean_interval(bad)


def test_loss_difference_is_paired() -> None:
    """Sequences differ by far more than the two runs do; pairing takes that out."""
    level = np.array([1.0, 5.0, 9.0, 3.0])
    found = metrics.paired_loss_difference(level + np.array([0.011, 0.009, 0.010, 0.010]), level)
    assert found.value == pytest.approx(0.010)
    assert 0.008 < found.low < found.high < 0.012


@pytest.mark.parametrize(("count", "num"), [(0, 20), (7, 20), (20, 20), (300, 1000)])
def test_proportion_is_wilson(count: int, num: int) -> None:
    reference = stats.binomtest(count, num).proportion_ci(method="wilson")
    found = metrics.proportion_interval(count / num, num)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=1e-9)
    with pytest.raises(UserError):
        metrics.proportion_interval(0.5, 0)


def test_a_share_between_two_counts_takes_both_ends() -> None:
    """The mean over seeds of 7 and 8 of 20 right answers."""
    found = metrics.proportion_interval(7.5 / 20, 20)
    ends = [stats.binomtest(k, 20).proportion_ci(method="wilson") for k in (7, 8)]
    assert (found.value, found.low, found.high) == pytest.approx((0.375, ends[0].low, ends[1].high))


def test_smallest_resolvable_effect_has_80_percent_power() -> None:
    """Of many values the t test is nearly normal; tests/test_seeds.py has it of few."""
    rng, sigma, n = np.random.default_rng(2), 1.0, 400
    effect = metrics.mean_interval(rng.normal(0, sigma, n)).smallest_resolvable
    found = [metrics.mean_interval(rng.normal(effect, sigma, n)).low > 0 for _ in range(400)]
    assert 0.72 <= np.mean(found) <= 0.88
    normal = metrics.Interval(0.0, -1.0, 1.0).smallest_resolvable
    assert normal == pytest.approx((stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) / stats.norm.ppf(0.975))


def test_a_cut_interval_resolves_no_more_than_before() -> None:
    wide = metrics.mean_interval([0.0, 0.0, 1.0])
    cut = wide.cut(0.0, 1.0)
    assert (cut.low, cut.high) == (0.0, 1.0)
    assert wide.low < 0
    assert cut.smallest_resolvable == wide.smallest_resolvable
    tight = metrics.Interval(0.5, -0.5, 1.5)
    assert tight.cut(0.0, 1.0).smallest_resolvable == tight.smallest_resolvable


def test_record_law_holds_for_independent_steps() -> None:
    rng = np.random.default_rng(3)
    for w in (1, 4, 16):
        x = rng.random((40_000, w + 1))
        assert (x[:, -1] > x[:, :-1].max(axis=1)).mean() == pytest.approx(metrics.record_share(w), abs=0.01)
    with pytest.raises(UserError):
        metrics.record_share(0)


def test_expected_share_of_a_growing_history() -> None:
    assert metrics.expected_record_share(4, 2) == pytest.approx((1 / 2 + 1 / 3 + 1 / 3) / 3)  # step 1 is cold
    assert metrics.expected_record_share(3, 2, prefilled=2) == pytest.approx(1 / 3)
    assert metrics.expected_record_share(50, 1) == pytest.approx(0.5)
    assert np.isnan(metrics.expected_record_share(1, 8))


def test_scale_jitter_counts_octaves() -> None:
    assert metrics.scale_jitter([1.0, 2.0, 1.0, 2.0, 1.0]) == pytest.approx(np.std([1, -1, 1, -1], ddof=1))
    assert metrics.scale_jitter([1.0, 2.0, 4.0, 8.0]) == 0.0  # a steady drift is no jitter
    assert metrics.scale_jitter([3.0] * 9) == 0.0
    assert math.isnan(metrics.scale_jitter([1.0, math.nan, 0.0, 2.0]))
