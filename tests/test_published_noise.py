"""What the paper's own printed differences can tell: against hand counts and scipy's own tests."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from pangu_hif8 import paper, published_noise
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.paths import ROOT
from pangu_hif8.plan_workload import _BENCHMARKS as PLANNED

TABLE = published_noise.published_noise_table()
MATCHED = TABLE[TABLE["kind"] == published_noise.MATCHED]


def row(experiment: str, other: str, benchmark: str) -> pd.Series:
    found = TABLE.query("experiment == @experiment and other == @other and benchmark == @benchmark")
    assert len(found) == 1
    return found.iloc[0]


def test_arc_challenge_is_one_question_of_1172() -> None:
    found = row("E8", "E6", "arc_challenge")
    assert (found["accuracy_pct"], found["other_accuracy_pct"]) == (36.69, 36.77)
    assert (found["num_questions"], found["num_items"]) == (-1, 1172)
    assert found["difference_questions"] == pytest.approx(-0.08 * 11.72, abs=0.005)
    assert found["p_best_case"] == 1.0
    assert not found["significant_at_best"]


def test_the_mmlu_gap_is_under_half_a_standard_error() -> None:
    found = row("E8", "E6", "mmlu")
    assert found["difference_points"] == -0.19
    assert found["num_questions"] == -27
    assert found["stderr_points"] == pytest.approx(100 * math.sqrt(0.4336 * 0.5664 / 14042))
    assert 0.4 < found["difference_in_stderr"] < 0.5


def test_every_score_is_a_whole_number_of_questions() -> None:
    """A wrong item count would show: half a question or more would be left over somewhere."""
    for name in paper.RUN_OF_EXPERIMENT:
        for task in published_noise.NAMES:
            score = paper.accuracy(name, task)
            if score is not None:
                again = 100 * published_noise.num_right(name, task) / paper.num_items(task)
                assert again == pytest.approx(score, abs=0.00501), (name, task)


def test_item_counts_agree_with_the_plan() -> None:
    assert set(published_noise.NAMES) == set(paper.benchmarks()["metric"])
    for task in published_noise.NAMES:
        assert paper.num_items(task) == PLANNED[task].num_items


def test_every_pair_and_benchmark_once() -> None:
    runs = len(paper.RUN_OF_EXPERIMENT)
    scores = {
        t: sum(paper.accuracy(e, t) is not None for e in paper.RUN_OF_EXPERIMENT)
        for t in published_noise.NAMES
    }
    assert sum(scores.values()) == 6 * runs - 1  # one score is not published
    assert len(TABLE) == sum(n * (n - 1) // 2 for n in scores.values())
    pairs = {frozenset(pair) for pair in zip(TABLE["experiment"], TABLE["other"], strict=True)}
    assert len(pairs) == runs * (runs - 1) // 2
    assert not TABLE.duplicated(["experiment", "other", "benchmark"]).any()
    kinds = TABLE.groupby(["experiment", "other"])["kind"].first()
    expected = {(e.id, e.baseline) for e in EXPERIMENTS.values() if e.baseline and e.id not in ("E2", "E7")}
    assert set(kinds[kinds == published_noise.MATCHED].index) == expected
    assert list(kinds[kinds == published_noise.RATE].index) == [("E1", "E6")]


def test_p_values_are_what_scipy_gives_for_the_counts() -> None:
    for _, found in MATCHED.iterrows():
        n, changed = found["num_items"], abs(found["num_questions"])
        right = [round(found[c] * n / 100) for c in ("accuracy_pct", "other_accuracy_pct")]
        assert right[0] - right[1] == found["num_questions"]
        fisher = stats.fisher_exact([[right[0], n - right[0]], [right[1], n - right[1]]])
        assert found["p_unpaired"] == pytest.approx(fisher.pvalue)
        assert found["p_best_case"] == pytest.approx(min(1.0, 2 * 0.5**changed))  # a coin, one side only
        pooled = sum(right) / (2 * n)
        z = abs(right[0] - right[1]) / math.sqrt(2 * n * pooled * (1 - pooled))
        assert found["p_unpaired"] >= 2 * stats.norm.sf(z) - 0.005  # exact is the more careful of the two
        assert found["p_best_case"] <= found["p_unpaired"] + 1e-12


@pytest.mark.parametrize(
    ("difference", "num"), [(6, 50), (9, 400), (27, 14042), (13, 2376), (1, 1172), (0, 99)]
)
def test_most_changed_is_the_last_that_mcnemar_finds(difference: int, num: int) -> None:
    significant = [
        m
        for m in range(max(difference, 1), min(num, 600) + 1, 2 if difference else 1)
        if (m - difference) % 2 == 0 and stats.binomtest((m - difference) // 2, m).pvalue < 0.05
    ]
    assert published_noise.most_changed(difference, num) == max(significant, default=0)


def test_six_questions_are_the_fewest() -> None:
    assert published_noise.fewest_questions() == 6
    assert stats.binomtest(5, 5).pvalue > 0.05 > stats.binomtest(6, 6).pvalue
    for _, found in MATCHED.iterrows():  # and no difference hangs on how a score was rounded
        largest = math.floor((abs(found["difference_points"]) + 0.01) / 100 * found["num_items"] + 1e-9)
        assert (largest >= 6) == found["significant_at_best"]


def test_the_text_says_what_the_table_holds() -> None:
    text = published_noise.published_noise_text()
    impossible = int((MATCHED["num_questions"].abs() < 6).sum())
    assert f"Of the {len(MATCHED)} published differences" in text
    assert f"{impossible} could not have been significant at 5%" in text
    small = MATCHED[MATCHED["difference_points"].abs() < MATCHED["stderr_points"]]
    assert f"{len(small)} are below one standard error" in text
    assert "E8 on MMLU, GSM8K, MATH, HellaSwag, ARC-Easy, ARC-Challenge" in text
    assert (MATCHED["p_unpaired"] > 0.05).all()
    assert "and 0 are significant as two independent samples" in text
    assert "ARC-Challenge -1 of 1,172 questions" in published_noise.final_run_text()


def test_a_reader_cannot_change_the_table() -> None:
    mine = published_noise.published_noise_table()
    mine["num_items"] = 0
    assert (published_noise.published_noise_table()["num_items"] > 0).all()
    assert np.isfinite(TABLE.select_dtypes("number").to_numpy()).all()


def test_it_needs_no_torch() -> None:
    program = "import sys; from pangu_hif8 import published_noise as p; p.published_noise_text(); "
    program += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
