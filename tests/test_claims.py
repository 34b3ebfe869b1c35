"""Verdicts in constructed cases where the answer is known, each claim in each direction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from fake_results import Dial, write_tree

from pangu_hif8 import judgement
from pangu_hif8.claims import CLAIMS, Claim, judge, judge_one
from pangu_hif8.judgement import NOT_REPRODUCED, NOT_RESOLVABLE, REPRODUCED, combine
from pangu_hif8.metrics import Interval
from pangu_hif8.results import ProfileResults, load_profile_results

FORGETS = Dial(turned_wrong=0.2, second_shift=0.1)
CHURN = Dial(turned_wrong=0.03, turned_right=0.03)  # as many items lost as won: no effect, but noise


class Judged(dict[str, Claim]):
    def __init__(self, found: ProfileResults) -> None:
        self.found = found

    def __missing__(self, name: str) -> Claim:
        return self.setdefault(name, judge_one(self.found, CLAIMS[name]))


def claims(
    results: Path, profile: str = "smoke", seeds: tuple[int, ...] = (0,), **dials: Dial
) -> dict[str, Claim]:
    """Claims by id, each judged when asked for."""
    write_tree(results, profile, seeds, dials)
    return Judged(load_profile_results(profile))


def parts(claim: Claim) -> list[str]:
    return [part.verdict for part in claim.parts]


def test_intervals_become_verdicts() -> None:
    inside, below, above = Interval(0, -1, 1), Interval(-3, -4, -2), Interval(3, 2, 4)
    assert [judgement.at_least(i, 1.5) for i in (above, inside, below)] == [
        REPRODUCED,
        NOT_REPRODUCED,
        NOT_REPRODUCED,
    ]
    assert judgement.at_least(inside, 0.5) == NOT_RESOLVABLE
    assert [judgement.at_most(i, 1.5) for i in (below, inside, above)] == [
        REPRODUCED,
        REPRODUCED,
        NOT_REPRODUCED,
    ]
    assert judgement.at_most(inside, 0.5) == NOT_RESOLVABLE
    assert [judgement.is_lower(i, 2.0) for i in (below, inside, above)] == [
        REPRODUCED,
        NOT_REPRODUCED,
        NOT_REPRODUCED,
    ]
    assert judgement.is_lower(inside, 0.5) == NOT_RESOLVABLE


def test_halves_combine() -> None:
    assert combine([REPRODUCED, REPRODUCED]) == REPRODUCED
    assert combine([REPRODUCED, NOT_RESOLVABLE]) == NOT_RESOLVABLE
    assert combine([NOT_RESOLVABLE, NOT_REPRODUCED, REPRODUCED]) == NOT_REPRODUCED
    assert combine([]) == NOT_RESOLVABLE


def test_c1_equal_runs_need_enough_items(results: Path) -> None:
    found = claims(results, E8=CHURN)["C1"]
    assert parts(found) == [NOT_RESOLVABLE, REPRODUCED]  # too few items to rule out one point
    assert found.verdict == NOT_RESOLVABLE
    assert found.parts[0].numbers["accuracy_difference_points_low"] < -1


def test_c1_is_reproduced_when_the_interval_is_inside(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pangu_hif8 import claims_outcome

    monkeypatch.setattr(claims_outcome, "ACCURACY_MARGIN_POINTS", 2.0)
    assert claims(results)["C1"].verdict == REPRODUCED


def test_c1_a_real_drop_is_not_lossless(results: Path) -> None:
    found = claims(results, E8=Dial(turned_wrong=0.2))["C1"]
    assert parts(found) == [NOT_REPRODUCED, REPRODUCED]
    assert found.verdict == NOT_REPRODUCED


def test_c1_held_out_loss_counts(results: Path) -> None:
    assert parts(claims(results, E8=Dial(second_shift=0.05))["C1"])[1] == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("ape", "verdict"), [(0.05, REPRODUCED), (2.0, NOT_REPRODUCED), (0.235, NOT_RESOLVABLE)]
)
def test_c2(results: Path, ape: float, verdict: str) -> None:
    found = claims(results, E8=Dial(ape_pct=ape))["C2"]
    assert found.verdict == verdict
    assert found.parts[0].numbers["ape_quantized_pct"] == pytest.approx(ape, rel=0.15)
    assert found.parts[0].numbers["ape_all_pct"] < found.parts[0].numbers["ape_quantized_pct"]


def test_c3_hidden_failures(results: Path) -> None:
    bad = Dial(turned_wrong=0.4)
    found = claims(results, E1=FORGETS, E2=bad, E7=bad, E3=FORGETS, E4=FORGETS, E5=FORGETS)["C3"]
    assert parts(found) == [REPRODUCED, REPRODUCED]


def test_c3_a_failure_that_training_shows_is_not_hidden(results: Path) -> None:
    bad = Dial(turned_wrong=0.4, ape_pct=3.0)
    assert parts(claims(results, E1=FORGETS, E2=bad, E7=bad)["C3"]) == [NOT_REPRODUCED, REPRODUCED]


def test_c3_without_a_failure_nothing_hides(results: Path) -> None:
    assert parts(claims(results)["C3"])[1] == NOT_REPRODUCED  # equal accuracy rules out half the paper's drop


def test_c4_most_recent_saturates_half_of_the_time(results: Path) -> None:
    found = claims(results)["C4"]
    assert found.verdict == REPRODUCED
    assert found.parts[0].numbers["share"] == pytest.approx(0.5, abs=0.05)
    assert found.parts[0].numbers["record_law_share"] == pytest.approx(0.5)


def test_c4_rare_saturation_is_not(results: Path) -> None:
    assert parts(claims(results, E7=Dial(force_saturated=0.02))["C4"]) == [
        REPRODUCED,
        NOT_REPRODUCED,
        REPRODUCED,
    ]


def test_c4_an_estimate_from_elsewhere_is_not_one_step_late(results: Path) -> None:
    tree = write_tree(results)
    path = tree / "E2/seed0/saturation.csv"
    table = pd.read_csv(path)
    table["estimate"] *= 1.001
    table.to_csv(path, index=False)
    found = Judged(load_profile_results("smoke"))["C4"]
    assert parts(found) == [REPRODUCED, REPRODUCED, NOT_REPRODUCED]


def test_c5_fails_needs_harm(results: Path) -> None:
    assert parts(claims(results, E3=CHURN)["C5"]) == [REPRODUCED, NOT_RESOLVABLE]


def test_c5_harm_in_held_out_loss(results: Path) -> None:
    assert claims(results, E3=Dial(heldout_shift=0.1))["C5"].verdict == REPRODUCED


def test_c5_harm_in_accuracy(results: Path) -> None:
    assert claims(results, E3=Dial(turned_wrong=0.2))["C5"].verdict == REPRODUCED


def test_c5_no_saturation_at_turns(results: Path) -> None:
    assert parts(claims(results, E3=Dial(force_saturated=0.0))["C5"])[0] == NOT_REPRODUCED


def test_c6_window_holds(results: Path) -> None:
    found = claims(results)["C6"]
    assert found.verdict == REPRODUCED
    assert found.parts[0].numbers["num_broken"] == 0


def test_c6_saturation_inside_the_window_breaks_it(results: Path) -> None:
    found = claims(results, E5=Dial(force_saturated=0.02))["C6"]
    assert parts(found)[0] == NOT_REPRODUCED
    assert found.parts[0].numbers["num_broken"] > 0


def test_c6_too_much_saturation_or_harm(results: Path) -> None:
    found = claims(results, E8=Dial(force_saturated=0.6, heldout_shift=0.1))["C6"]
    assert [parts(found)[i] for i in (3, 5)] == [NOT_REPRODUCED, NOT_REPRODUCED]


def test_c7_current_scaling(results: Path) -> None:
    found = claims(results)["C7"]
    assert found.verdict == REPRODUCED
    assert found.parts[1].numbers["jitter_current"] > 2 * found.parts[1].numbers["jitter_window"]


def test_c7_broken(results: Path) -> None:
    found = claims(results, E4=Dial(force_saturated=0.001, spikes=0.01))["C7"]
    assert parts(found) == [NOT_REPRODUCED, NOT_REPRODUCED]


def test_c8_forgetting(results: Path) -> None:
    assert claims(results, E1=FORGETS)["C8"].verdict == REPRODUCED


def test_c8_no_forgetting(results: Path) -> None:
    found = claims(results, E1=Dial(second_shift=-0.05))["C8"]
    assert parts(found) == [NOT_REPRODUCED, NOT_REPRODUCED]


def test_c8_needs_both_comparisons(results: Path) -> None:
    """A low rate that forgets as much leaves nothing to lay to the high one."""
    assert parts(claims(results, E1=FORGETS, E6=FORGETS)["C8"]) == [NOT_REPRODUCED, NOT_REPRODUCED]


def test_c9_both_halves(results: Path) -> None:
    found = claims(results, "laptop", E5=Dial(turned_wrong=0.1))["C9"]
    assert found.verdict == REPRODUCED
    assert "on ARC" in found.sentence
    tasks = load_profile_results("laptop").settings.evaluation.tasks
    arc = [task.num_items for task in tasks if task.name.startswith("arc")]
    assert found.parts[0].numbers["arc_num_items"] == sum(arc)


def test_c9_a_loss_that_is_too_small_to_see(results: Path) -> None:
    found = claims(results, "laptop", E5=CHURN)["C9"]
    assert parts(found) == [NOT_RESOLVABLE, REPRODUCED]


def test_c10_is_never_more_than_half_shown(results: Path) -> None:
    found = claims(results)["C10"]
    assert parts(found) == [REPRODUCED, NOT_RESOLVABLE]
    assert "no run of the eight isolates" in found.sentence


def test_c10_a_history_that_was_not_filled(results: Path) -> None:
    tree = write_tree(results)
    path = tree / "E8/seed0/saturation.csv"
    table = pd.read_csv(path)
    first = table["step"] == table.loc[table["estimate"].notna(), "step"].min()
    table.loc[first, "estimate"] = table.loc[first, "amax"]  # a cold start scales by the tensor itself
    table.to_csv(path, index=False)
    found = Judged(load_profile_results("smoke"))["C10"]
    assert found.verdict == NOT_REPRODUCED


def test_a_missing_run_makes_its_claims_unavailable(results: Path) -> None:
    tree = write_tree(results)
    shutil.rmtree(tree / "E5")
    found = Judged(load_profile_results("smoke"))
    for row in CLAIMS.values():
        available = not found[row.id].verdict.startswith("not available")
        assert available == ("E5" not in row.needs)
    assert found["C9"].verdict == "not available: E5 missing"
    assert "not run" in found["C9"].sentence


def test_nothing_at_all_is_unavailable_throughout(results: Path) -> None:
    (results / "smoke").mkdir(parents=True)
    assert all(c.verdict.startswith("not available") for c in judge(load_profile_results("smoke")))


def test_runs_without_a_common_seed_are_not_compared(results: Path) -> None:
    tree = write_tree(results, seeds=(0, 1))
    shutil.rmtree(tree / "E8/seed0")
    shutil.rmtree(tree / "E6/seed1")
    found = Judged(load_profile_results("smoke"))
    assert found["C1"].verdict == "not available: E8 and E6 have no seed in common"


def test_seeds_are_averaged_and_items_count_once(results: Path) -> None:
    found = claims(results, seeds=(0, 1, 2), E8=Dial(turned_wrong=0.2))["C1"]
    numbers = found.parts[0].numbers
    tasks = load_profile_results("smoke").settings.evaluation.tasks
    assert numbers["accuracy_num_items"] == sum(task.num_items for task in tasks)
    assert numbers["accuracy_num_seeds"] == 3
    assert numbers["accuracy_difference_points"] == pytest.approx(-20)
    assert "accuracy_mcnemar" not in numbers
    assert found.verdict == NOT_REPRODUCED


@pytest.mark.parametrize("profile", ["smoke", "laptop"])
def test_claims_are_plain_json(results: Path, profile: str) -> None:
    write_tree(results, profile)
    for claim in judge(load_profile_results(profile)):
        json.dumps(claim.as_dict(), allow_nan=False)
        assert "nan" not in claim.sentence.lower()
        assert claim.sentence.endswith(".")
        assert claim.rule
