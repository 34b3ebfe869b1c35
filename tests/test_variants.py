"""Variants as data, the runs that a list of them needs, and how those are read beside the experiments."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_results import write_run, write_tree
from fake_training import Dial
from fake_variants import write_variants

from pangu_hif8 import variant_runs
from pangu_hif8.audit_variants import audit_variants
from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.run import directory_of
from pangu_hif8.variant_runs import is_current, make_runs, pending, variant_results, wanted
from pangu_hif8.variants import Variant, checked, chosen, experiments_for

TAPER = Variant("X-taper", "no clipping", "E2", "E1", {"overflow": "taper"})
OTHER = Variant("X-target", "another target", "E2", "X-taper", {"hif8_max": 56.0})
BOTH = checked([TAPER, OTHER])


@pytest.mark.parametrize("profile", ["smoke", "laptop", "paper"])
def test_the_audit_s_settings_fit_every_profile_and_differ_from_their_base(profile: str) -> None:
    variants = audit_variants(load_profile(profile))
    configs = {v.id: v.config(profile, 0) for v in variants}
    assert len(variants) == 17 and all(config.custom for config in configs.values())
    watched = {"A2-E1-float32", "A2-E6-float32"}  # their base, with the moved share recorded
    for v in variants:
        if not v.id.startswith("A4"):  # the paper's profile has as many micro-batches as the published code
            base = Variant("_", "", v.base, v.base).config(profile, 0)
            assert (configs[v.id].train_hash() == base.train_hash()) == (v.id in watched), v.id


def test_the_published_window_differs_in_all_three_ways() -> None:
    published = next(v for v in audit_variants(load_profile("laptop")) if v.id == "A4-E8-published")
    settings = published.config("laptop", 0).quantization
    assert settings is not None
    found = (settings.history_unit, settings.warmup_history, settings.reduce_amax)
    assert found == ("micro_batch", "emptied", False)
    assert published.config("laptop", 0).train.micro_batch_size == 1


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([TAPER, TAPER], "the name X-taper is given twice"),
        ([Variant("E5", "", "E2", "E1")], "the name E5 is given twice"),
        ([OTHER], "X-target names X-taper, which is no experiment and no earlier variant"),
        ([Variant("Y", "", "E9", "E1")], "Y names E9"),
    ],
)
def test_a_wrong_list_is_refused(rows: list[Variant], words: str) -> None:
    with pytest.raises(UserError, match=words):
        checked(rows)


def test_which_experiments_are_needed_and_which_variants_are_meant() -> None:
    assert list(experiments_for(BOTH)) == ["E1", "E2"]
    assert chosen(BOTH, "") == BOTH and chosen(BOTH, "X-ta X-taper") == BOTH
    assert chosen(BOTH, "X-target") == (OTHER,)
    with pytest.raises(UserError, match="nothing is called Z; valid: X-taper, X-target"):
        chosen(BOTH, "X-taper, Z")


def test_a_setting_without_effect_is_refused() -> None:
    with pytest.raises(UserError, match="E1 does not quantize"):
        Variant("Y", "", "E1", "E1", {"overflow": "taper"}).config("smoke", 0)


# ---- which runs are made -------------------------------------------------------------------------------


def labels(runs: Any) -> list[str]:
    return [run.label for run in runs]


def test_wanted_runs_in_order_the_untouched_checkpoint_once() -> None:
    runs = wanted(BOTH, "smoke", (0, 1))
    assert labels(runs) == [
        "E0 seed 0", "E1 seed 0", "E1 seed 1", "E2 seed 0", "E2 seed 1",
        "X-taper seed 0", "X-taper seed 1", "X-target seed 0", "X-target seed 1",
    ]  # fmt: skip
    assert runs[5].changes == {"overflow": "taper"} and runs[5].config.run_name.startswith("E2-custom-")


@pytest.fixture
def tree(results: Path) -> Path:
    """E0 to E2 and both variants, as if they had come with the repository: without stamps."""
    for name in ("E0", "E1", "E2"):
        write_run(results, name, "smoke", 0, Dial())
    write_variants(results, BOTH)
    return results / "smoke"


def place(variant: Variant) -> Path:
    return directory_of(variant.config("smoke", 0))


def test_nothing_is_pending_where_all_is_there(tree: Path) -> None:
    runs = wanted(BOTH, "smoke", (0,))
    assert pending(runs) == []
    assert labels(pending(runs, fresh=True)) == labels(runs)
    (place(TAPER) / "evaluate.stamp").write_text("{}")
    assert "X-taper seed 0" not in labels(pending(runs, fresh=True))


@pytest.mark.parametrize(
    "damage",
    [
        lambda where: shutil.rmtree(where),
        lambda where: (where / "steps.csv").write_text("step,loss\n"),
        lambda where: (where / "eval.json").unlink(),
        lambda where: set_json(where / "run.json", train_code="older"),
        lambda where: set_json(where / "eval.json", eval_code="older"),
        lambda where: set_json(where / "run.json", status="running"),
    ],
    ids=["absent", "cut short", "not evaluated", "other training", "other evaluation", "unfinished"],
)
def test_a_run_that_can_t_be_used_is_pending(tree: Path, damage: Any) -> None:
    damage(place(TAPER))
    assert labels(pending(wanted(BOTH, "smoke", (0,)))) == ["X-taper seed 0"]


def set_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_the_untouched_checkpoint_is_judged_by_its_evaluation_alone(tree: Path) -> None:
    set_json(tree / "E0/seed0/run.json", train_code="older")
    assert pending(wanted(BOTH, "smoke", (0,))) == []


def test_only_what_is_pending_is_made_and_what_is_left_is_said(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Any] = []
    clock = iter([0.0, 90.0, 90.0, 150.0, 150.0, 151.0])
    monkeypatch.setattr(variant_runs.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(variant_runs, "run_experiment", lambda name, **how: made.append((name, how)))
    for where in (tree / "E1", place(TAPER), place(OTHER)):
        shutil.rmtree(where)
    assert make_runs(BOTH, "smoke", (0,)) == 3
    assert made == [
        ("E1", {"profile": "smoke", "seed": 0}),
        ("E2", {"profile": "smoke", "seed": 0, "overflow": "taper"}),
        ("E2", {"profile": "smoke", "seed": 0, "hif8_max": 56.0}),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "E1 seed 0 (1 of 3)",
        "X-taper seed 0 (2 of 3; 3 min 0 s left)",
        "X-target seed 0 (3 of 3; 1 min 15 s left)",
    ]


# ---- how they are read ---------------------------------------------------------------------------------


def test_variants_stand_beside_the_experiments_under_their_names(results: Path) -> None:
    write_tree(results, "smoke", seeds=(0, 2))
    write_variants(results, BOTH, seeds=(0, 2))
    found = variant_results(BOTH, "smoke")
    assert [run.seed for run in found.of("X-taper")] == [0, 2]
    assert len(found.pairs("X-target", "X-taper")) == 2
    assert all(is_current(run) for run in found.runs.values())
    assert found.missing == [] and found.notices == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda where: shutil.rmtree(where), "not run"),
        (lambda where: (where / "items.csv").write_text("task\n"), "items.csv"),
        (
            lambda where: set_json(where / "run.json", model_digest="other"),
            "not comparable with E0/seed0 (model",
        ),
        (lambda where: set_json(where / "run.json", train_code="older"), "another version of the code"),
        (lambda where: set_json(where / "run.json", seed=4), "belongs to another run"),
    ],
)
def test_a_variant_that_can_t_be_used_is_listed_with_the_reason(tree: Path, damage: Any, words: str) -> None:
    damage(place(TAPER))
    found = variant_results(BOTH, "smoke")
    assert not found.of("X-taper") and found.of("X-target")
    reason = next(str(m) for m in found.missing if m.experiment == "X-taper")
    assert reason.startswith("X-taper (seed 0): ") and words in reason


def test_only_a_processor_that_no_experiment_ran_on_is_noticed(tree: Path) -> None:
    set_json(place(TAPER) / "train_timing.json", machine="slow")
    assert variant_results(BOTH, "smoke").notices == [
        "made on another processor (slow) than the experiments (fake), so that differences from them include "
        "the processors': X-taper"
    ]
    set_json(tree / "E1/seed0/train_timing.json", machine="slow")
    assert not any("another processor" in text for text in variant_results(BOTH, "smoke").notices)
    (place(OTHER) / "train_timing.json").unlink()
    assert not any("another processor" in text for text in variant_results(BOTH, "smoke").notices)
