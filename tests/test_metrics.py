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


def test_paired_accuracy_interval_covers() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        b = rng.random(200) < 0.6
        q = np.where(rng.random(200) < 0.1, ~b, b)
        found = metrics.paired_accuracy_difference(q, b)
        hits += found.low <= -0.02 <= found.high  # 10% flips: 0.6 becomes 0.58
    assert 0.92 <= hits / 400 <= 0.99


def test_mean_interval_is_students_t() -> None:
    x = np.random.default_rng(1).normal(size=20)
    found = metrics.mean_interval(x)
    reference = stats.ttest_1samp(x, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high))
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


def test_smallest_resolvable_effect_has_80_percent_power() -> None:
    rng, sigma, n = np.random.default_rng(2), 1.0, 400
    effect = metrics.mean_interval(rng.normal(0, sigma, n)).smallest_resolvable
    found = [metrics.mean_interval(rng.normal(effect, sigma, n)).low > 0 for _ in range(400)]
    assert 0.72 <= np.mean(found) <= 0.88


def test_record_law_holds_for_independent_steps() -> None:
    rng = np.random.default_rng(3)
    for w in (1, 4, 16):
        x = rng.random((40_000, w + 1))
        assert (x[:, -1] > x[:, :-1].max(axis=1)).mean() == pytest.approx(metrics.record_share(w), abs=0.01)
    with pytest.raises(UserError):
        metrics.record_share(0)


def test_expected_share_of_a_growing_history() -> None:
    assert metrics.expected_record_share(4, 2) == pytest.approx(
        (0 + 1 / 2 + 1 / 3 + 1 / 3) / 4
    )  # step 1 scales by itself
    assert metrics.expected_record_share(3, 2, prefilled=2) == pytest.approx(1 / 3)
    assert metrics.expected_record_share(50, 1) == pytest.approx(0.5 * 49 / 50)
    assert metrics.expected_record_share(1, 8) == 0.0


def test_scale_jitter_counts_octaves() -> None:
    assert metrics.scale_jitter([1.0, 2.0, 1.0, 2.0, 1.0]) == pytest.approx(np.std([1, -1, 1, -1], ddof=1))
    assert metrics.scale_jitter([1.0, 2.0, 4.0, 8.0]) == 0.0  # a steady drift is no jitter
    assert metrics.scale_jitter([3.0] * 9) == 0.0
    assert math.isnan(metrics.scale_jitter([1.0, math.nan, 0.0, 2.0]))
