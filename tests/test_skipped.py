"""Steps that a run skipped leave every comparison by step, and the report says how many."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from fake_results import Dial, write_tree

from pangu_hif8 import captions, comparisons, plots, report_text, tables
from pangu_hif8.claims import CLAIMS, judge_one
from pangu_hif8.judgement import REPRODUCED
from pangu_hif8.results import ProfileResults, load_profile_results, quantized_rows, recorded_rows

DIALS = {
    "E8": Dial(skipped=(20, 33)),
    "E6": Dial(skipped=(7, 50)),
    "E2": Dial(skipped=(30, 31)),
    "E3": Dial(skipped=(41,)),
    "E5": Dial(skipped=(8, 9)),
}


@pytest.fixture
def found(results: Path) -> ProfileResults:
    write_tree(results, dials=DIALS)
    return load_profile_results("smoke")


def losses(results: Path, name: str) -> list[float]:
    with (results / "smoke" / name / "seed0" / "steps.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    return [float(row["loss"]) if row["skipped"] == "0" else float("nan") for row in rows]


def test_ape_is_over_the_steps_that_both_took(found: ProfileResults, results: Path) -> None:
    q, b = losses(results, "E8"), losses(results, "E6")
    both = [(x, y) for x, y in zip(q, b, strict=True) if x == x and y == y]
    assert len(both) == 56
    expected = 100 * np.mean([abs(x - y) / y for x, y in both])
    assert comparisons.ape_interval(found, "E8", "E6", quantized=False).value == pytest.approx(
        expected, rel=1e-12
    )
    assert set(range(1, 61)) - set(comparisons.ape_table(found, "E8", "E6")["step"]) == {7, 20, 33, 50}
    summary = tables.ape_summary(found).set_index("experiment")["num_steps_left_out"]
    assert summary.to_dict() == {"E2": 2, "E3": 1, "E4": 0, "E5": 2, "E7": 2, "E8": 4}


def test_the_last_quarter_is_over_the_steps_that_both_took(found: ProfileResults, results: Path) -> None:
    e1, e6 = losses(results, "E1"), losses(results, "E6")
    late = [x - y for x, y in list(zip(e1, e6, strict=True))[45:] if y == y]
    assert len(late) == 14
    assert comparisons.late_loss_difference(found, "E1", "E6").value == pytest.approx(
        np.mean(late), rel=1e-12
    )
    assert comparisons.mean_loss(found, "E6") == pytest.approx(np.nanmean(e6[45:]), rel=1e-12)


def test_a_step_that_one_seed_skipped_leaves_all_seeds(results: Path) -> None:
    write_tree(results, seeds=(0, 1))
    tree = write_tree(results, dials={"E8": Dial(skipped=(40,))})
    found = load_profile_results("smoke")
    assert (tree / "E8" / "seed1").is_dir()
    assert comparisons.num_steps_left_out(found, "E8", "E6") == 1
    assert 40 not in set(comparisons.ape_table(found, "E8", "E6")["step"])


def test_scales_are_judged_as_if_the_step_had_not_been(found: ProfileResults) -> None:
    """A skipped step enters no history, so estimates still are the past's and verdicts stay."""
    for name in ("C4", "C6", "C7"):
        assert judge_one(found, CLAIMS[name]).verdict == REPRODUCED, name
    assert judge_one(found, CLAIMS["C10"]).parts[0].verdict == REPRODUCED
    run = found.of("E8")[0]
    rows = quantized_rows(run)
    assert rows is not None
    assert not set(rows["step"]) & {20, 33}
    assert rows["saturated"].isin((0, 1)).all()
    assert len(recorded_rows(run)) == 58 * 36
    assert comparisons.expected_share(found, "E2") == pytest.approx(0.5)


def test_the_report_says_how_many(found: ProfileResults) -> None:
    assert found.missing == []
    notice = "E2/seed0 2, E3/seed0 1, E5/seed0 2, E6/seed0 2, E8/seed0 2"
    assert [note for note in found.notices if notice in note and "not finite" in note]
    assert notice in report_text.missing_markdown(found)
    assert captions.ape(found).endswith("skipped them: E2 2, E3 1, E5 2, E7 2, E8 4.")
    assert "4 steps that a run skipped are left out" in judge_one(found, CLAIMS["C2"]).sentence
    for spec in plots.FIGURES:
        assert spec.draw(found) is not None
        assert "nan" not in spec.caption(found)


def test_a_clean_profile_says_nothing_of_it(results: Path) -> None:
    write_tree(results)
    found = load_profile_results("smoke")
    assert found.notices == []
    assert "skipped" not in captions.ape(found)
    assert "skipped" not in judge_one(found, CLAIMS["C2"]).sentence


def test_pairs_without_a_common_step_are_left_out(results: Path) -> None:
    first, second = tuple(range(1, 31)), tuple(range(31, 61))
    write_tree(results, dials={"E2": Dial(skipped=first), "E1": Dial(skipped=second)})
    found = load_profile_results("smoke")
    assert found.missing == []
    assert comparisons.loss_pairs(found) == [
        (n, b) for n, b in comparisons.quantized_pairs(found) if n != "E2"
    ]
    assert "E2" not in set(tables.ape_summary(found)["experiment"])
    assert plots.plot_ape(found) is not None
    claim = judge_one(found, CLAIMS["C3"])
    assert claim.verdict == "not available: E2 and E1 have no step that neither skipped"
    assert "E1 " not in captions.training_loss(found)  # it skipped the whole last quarter


def test_a_runs_own_page_shows_them(results: Path) -> None:
    write_tree(results, dials=DIALS)
    directory = results / "smoke" / "E8" / "seed0"
    figure = plots.plot_run_loss(directory)
    crosses = [line for line in figure.axes[0].lines if str(line.get_label()).startswith("skipped")]
    assert [list(line.get_xdata()) for line in crosses] == [[20, 33]]
    text = tables.describe_run(directory)
    assert "not finite: 2 of the steps." in text
    assert "nan" not in text
    assert plots.plot_run_saturation(directory) is not None
