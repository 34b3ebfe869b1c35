"""The committed tiny runs: complete, current, small, traced; forgetting plain, accuracy off its ceiling."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from pangu_hif8 import paper
from pangu_hif8.comparisons import (
    accuracy_interval,
    compare_accuracy,
    compare_answer_nll,
    late_loss_difference,
    overshoot,
    saturation_rows,
)
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.late_ape import MAX_WINDOW, ape_gap, common_start
from pangu_hif8.paths import ROOT
from pangu_hif8.results import ProfileResults, load_profile_results

TINY = ROOT / "results" / "tiny"
SEEDS = (0, 1, 2)
TRAINED = [e for e in EXPERIMENTS.values() if e.lr is not None]
NEAR_CEILING_PCT = 97

pytestmark = pytest.mark.skipif(
    not (TINY / "E8" / "seed2" / "run.json").exists(), reason="results/tiny is not in this checkout"
)


@pytest.fixture(scope="module")
def tiny() -> Iterator[ProfileResults]:
    yield from committed("tiny")


@pytest.fixture(scope="module")
def laptop() -> Iterator[ProfileResults]:
    if not (ROOT / "results/laptop/E2/seed0/run.json").exists():
        pytest.skip("results/laptop is not in this checkout")
    yield from committed("laptop")


def committed(profile: str) -> Iterator[ProfileResults]:
    """A profile's results in this checkout, not in the test's own folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(ROOT / "results"))
        yield load_profile_results(profile)


def test_all_runs_are_complete_and_current(tiny: ProfileResults) -> None:
    assert tiny.missing == []
    assert {*tiny.runs} == {("E0", 0)} | {(e.id, seed) for e in TRAINED for seed in SEEDS}
    assert not [notice for notice in tiny.notices if "version" in notice]


def test_seeds_differ_and_start_from_the_same_weights(tiny: ProfileResults) -> None:
    for e in TRAINED:
        runs = tiny.of(e.id)
        assert len({run.info["model_digest"] for run in runs}) == 1
        assert len({float(run.steps["loss"][0]) for run in runs if run.steps is not None}) == len(SEEDS)


def test_forgetting_by_learning_rate_is_plain(tiny: ProfileResults) -> None:
    for baseline in ("E0", "E6"):
        found = compare_accuracy(tiny, "E1", baseline)
        assert found.num_items == 600
        assert found.difference.high < -5
        assert compare_answer_nll(tiny, "E1", baseline).low > 0
    assert compare_accuracy(tiny, "E6", "E0").difference.low > -3
    assert late_loss_difference(tiny, "E1", "E6").high < 0  # the training loss hides it


def test_accuracy_is_off_its_ceiling(tiny: ProfileResults) -> None:
    for name in ("E0", "E6"):
        assert 80 < accuracy_interval(tiny, name, "people").value < NEAR_CEILING_PCT


def test_no_estimator_is_told_from_max_window_but_a_tenth_of_the_papers_ape_would_show(
    tiny: ProfileResults,
) -> None:
    gap = ape_gap(tiny, "E7")
    assert gap is not None
    assert len(gap.by_seed) == len(SEEDS)
    assert gap.low < 0 < gap.high
    assert gap.smallest_resolvable < paper.ape_pct(after_warmup=True) / 10


def test_activations_overshoot_far_less_than_the_real_models(
    tiny: ProfileResults, laptop: ProfileResults
) -> None:
    for name in ("E2", "E7"):
        ours, real = (overshoot(saturation_rows(found, name, "input")).max() for found in (tiny, laptop))
        assert ours - 1 < (real - 1) / 2


def late_ape(name: str, baseline: str, seed: int, start: int) -> float:
    """Mean APE in percent from `start` on, from the CSV files alone."""
    run, base = (pd.read_csv(TINY / e / f"seed{seed}" / "steps.csv")["loss"] for e in (name, baseline))
    return float((abs(run - base) / base * 100)[start - 1 :].mean())


def test_the_reports_numbers_come_from_the_files(tiny: ProfileResults) -> None:
    table = pd.read_csv(TINY / "report/tables/ape.csv").set_index("experiment")
    for e in TRAINED:
        if e.baseline is not None:
            each = [late_ape(e.id, e.baseline, seed, common_start(tiny)) for seed in SEEDS]
            assert table.loc[e.id, "ape_late_pct"] == pytest.approx(np.mean(each), rel=1e-6)
    for name, other in MAX_WINDOW.items():
        gap = table.loc[name, "ape_late_pct"] - table.loc[other, "ape_late_pct"]
        assert table.loc[name, "minus_max_window"] == pytest.approx(gap, abs=1e-7)
    accuracy = pd.read_csv(TINY / "report/tables/benchmarks.csv").set_index("experiment")["accuracy_pct"]
    for name in accuracy.index:
        seeds = [0] if name == "E0" else SEEDS
        right = [pd.read_csv(TINY / name / f"seed{seed}" / "items.csv")["acc"].mean() for seed in seeds]
        assert accuracy[name] == pytest.approx(100 * np.mean(right))


def test_every_sentence_is_of_these_results(tiny: ProfileResults) -> None:
    summary = json.loads((TINY / "report/summary.json").read_text())
    assert summary["inputs"] == tiny.input_hashes()
    assert summary["missing"] == []


def test_committed_results_are_small_and_hold_no_weights() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "results/tiny"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [f for f in files if f.suffix in (".safetensors", ".bin", ".pt", ".stamp")]
    of_the_nine = [f for f in files if "beyond" not in f.parts and "custom" not in str(f)]
    assert sum(f.stat().st_size for f in of_the_nine if f.exists()) < 6e6
