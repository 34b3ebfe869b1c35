"""Both schemas of what training leaves: read alike, and refused with a reason when a file is at odds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_results import Dial, write_run

from pangu_hif8.errors import UserError
from pangu_hif8.results import quantized_rows, recorded_rows
from pangu_hif8.run_checks import SAMPLED_COLUMNS, Unusable
from pangu_hif8.run_files import open_run
from pangu_hif8.training_files import open_training, read_training, stated_config

SKIPPED = (20, 33)  # the fake run has no finite loss in step 20, and a finite loss in step 33
WARMUP, SAMPLED, UNSAMPLED = 10, 40, 41
Change = Callable[[pd.DataFrame], pd.DataFrame | None]


@pytest.fixture
def run(results: Path) -> Path:
    return write_run(results, "E8", "smoke", 0, Dial(skipped=SKIPPED))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite(path: Path, change: Change) -> None:
    table = pd.read_csv(path)
    changed = change(table)
    (table if changed is None else changed).to_csv(path, index=False)


def refusal(directory: Path) -> str:
    with pytest.raises(Unusable) as refused:
        read_training(directory, stated_config(directory))
    with pytest.raises(UserError):
        open_run(directory)
    return str(refused.value)


def put(step: int, column: str, value: object) -> Change:
    """Change a column in the first row of a step."""

    def change(table: pd.DataFrame) -> None:
        table[column] = table[column].astype(object)
        table.loc[(table["step"] == step).idxmax(), column] = value

    return change


def both(*changes: Change) -> Change:
    def change(table: pd.DataFrame) -> None:
        for one in changes:
            one(table)

    return change


def test_a_run_that_skipped_steps_is_usable(run: Path) -> None:
    found = open_run(run)
    assert found.num_skipped == len(SKIPPED)
    assert found.steps is not None
    assert found.saturation is not None
    assert list(found.steps.query("skipped == 1")["step"]) == list(SKIPPED)
    assert found.steps["loss"].isna().sum() == 1
    sampled = found.saturation.query("clipped_share.notna()")["step"].unique()
    assert list(sampled) == [30, 40, 50, 60]  # 10 is warm-up, 20 skipped


def test_both_schemas_give_the_same_frames(results: Path) -> None:
    old = open_training(write_run(results / "old", "E8", "smoke", 0, Dial(schema=1)))
    new = open_training(write_run(results / "new", "E8", "smoke", 0, Dial()))
    assert old.steps is not None
    assert old.saturation is not None
    assert new.saturation is not None
    pd.testing.assert_frame_equal(old.steps, new.steps)
    assert (old.steps["skipped"] == 0).all()
    assert old.saturation[SAMPLED_COLUMNS].isna().all(axis=None)
    pd.testing.assert_frame_equal(
        old.saturation.drop(columns=SAMPLED_COLUMNS), new.saturation.drop(columns=SAMPLED_COLUMNS)
    )


def test_schema_1_knows_no_skipped_steps(results: Path) -> None:
    directory = write_run(results, "E8", "smoke", 0, Dial(schema=1))
    rewrite(directory / "steps.csv", put(40, "loss", ""))
    assert "step 40" in refusal(directory)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put(40, "loss", np.nan), "no finite loss and gradient norm, and not skipped (step 40)"),
        (put(40, "loss", "inf"), "not skipped (step 40)"),
        (put(40, "grad_norm", np.nan), "not skipped (step 40)"),
        (put(20, "skipped", 0), "not skipped (step 20)"),
        (put(33, "skipped", 0), "not skipped (step 33)"),
        (put(40, "skipped", 1), "skipped, though loss and gradient norm are finite (step 40)"),
        (put(33, "grad_norm", 1.0), "skipped, though loss and gradient norm are finite (step 33)"),
        (put(40, "skipped", 2), "skipped is neither 0 nor 1 (step 40)"),
        (both(put(40, "skipped", 1), put(40, "loss", np.nan)), "saturation of a step"),
        (put(40, "saturated_share", np.nan), "without its saturated_share (step 40)"),
        (put(40, "saturated_share", 1.5), "without its saturated_share (step 40)"),
        (put(40, "max_overshoot", np.nan), "without its max_overshoot (step 40)"),
        (put(WARMUP, "saturated_share", 0.5), "did not quantize, or was skipped (step 10)"),
        (put(33, "max_overshoot", 1.5), "did not quantize, or was skipped (step 33)"),
        (put(40, "quantized", 0), "disagree on the step from which it quantizes"),
        (put(40, "quantized", 2), "disagree on the step from which it quantizes"),
        (put(40, "loss", "much"), "column loss is not numeric"),
        (put(40, "lr", np.nan), "column lr has a value that is missing"),
        (lambda table: table.drop(columns="skipped"), "no column skipped"),
        (lambda table: table[:-1], "59 of 60 steps"),
    ],
)
def test_steps_that_contradict_themselves(run: Path, change: Change, reason: str) -> None:
    if "saturation of a step" in reason:
        edit(run / "run.json", num_skipped_steps=3)
    rewrite(run / "steps.csv", change)
    assert reason in refusal(run)


def test_the_tables_agree_with_each_other(run: Path) -> None:
    rewrite(run / "steps.csv", put(40, "saturated_share", 0.987))
    assert refusal(run) == "steps.csv and saturation.csv disagree on saturated_share (step 40)"


def rename(column: str, value: object) -> Change:
    """Give one tensor another name in every step."""

    def change(table: pd.DataFrame) -> None:
        table[column] = table[column].astype(object)
        first = table.iloc[0]
        same = (table[["block", "layer", "kind"]] == first[["block", "layer", "kind"]]).all(axis=1)
        table.loc[same, column] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put(33, "amax", 1.0), "an amax of a skipped step (step 33, block 1 gate_proj input)"),
        (put(40, "estimate", np.nan), "no estimate in a quantized step (step 40"),
        (put(WARMUP, "estimate", 1.0), "an estimate that was not used (step 10"),
        (put(33, "estimate", 1.0), "an estimate that was not used (step 33"),
        (put(40, "saturated", np.nan), "lacks the saturation of a quantized step (step 40"),
        (put(40, "saturated", 0.5), "saturated is no 0 or 1"),
        (put(33, "saturated", 0), "saturation of a quantized step (step 33"),
        (put(SAMPLED, "clipped_share", 1.5), "clipped_share is no share"),
        (put(SAMPLED, "flushed_share", -0.1), "flushed_share is no share"),
        (put(SAMPLED, "flushed_share", np.nan), "one of two sampled shares is missing"),
        (put(UNSAMPLED, "sqnr_db", 30.0), "sqnr_db on a step that was not sampled (step 41"),
        (put(SAMPLED, "sqnr_db", "loud"), "column sqnr_db is not numeric"),
        (
            both(put(UNSAMPLED, "clipped_share", 0.0), put(UNSAMPLED, "flushed_share", 0.0)),
            "only some tensors were sampled (step 41",
        ),
        (
            both(put(WARMUP, "clipped_share", 0.0), put(WARMUP, "flushed_share", 0.0)),
            "sampled errors of a step without any (step 10",
        ),
        (put(40, "kind", "gradient"), "a layer or kind that is not quantized"),
        (put(40, "layer", "q_proj"), "a layer or kind that is not quantized"),
        (put(40, "step", 61), "a step or block that is not there"),
        (put(40, "block", 99), "37 of 36 tensors"),
        (rename("block", 3.5), "a step or block that is not there"),
        (rename("kind", "weight"), "or one twice"),
        (lambda table: table[:-1], "of 2160 rows"),
        (lambda table: pd.concat([table[1:], table[1:2]]), "or one twice"),
        (lambda table: table.drop(columns="sqnr_db"), "no column sqnr_db"),
    ],
)
def test_saturation_that_contradicts_itself(run: Path, change: Change, reason: str) -> None:
    rewrite(run / "saturation.csv", change)
    assert reason in refusal(run)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_skipped_steps": 1}, "steps.csv skips 2 steps, run.json says 1"),
        ({"num_skipped_steps": None}, "num_skipped_steps is None"),
        ({"num_skipped_steps": 61}, "num_skipped_steps is 61"),
        ({"num_skipped_steps": True}, "num_skipped_steps is True"),
        ({"world_size": 0}, "world_size is 0"),
        ({"world_size": "2"}, "world_size is '2'"),
        ({"resumed_from": None}, "no list of steps"),
        ({"resumed_from": [61]}, "no list of steps"),
        ({"resumed_from": [-1]}, "no list of steps"),
        ({"quantized_from_step": None}, "labelled HiF8"),
        ({"quantized_from_step": 18}, "labelled HiF8"),
        ({"schema_version": 3}, "this report reads 1 and 2"),
        ({"schema_version": 1}, "not skipped (step 20)"),
    ],
)
def test_a_record_that_contradicts_itself(run: Path, changes: dict[str, Any], reason: str) -> None:
    edit(run / "run.json", **changes)
    assert reason in refusal(run)


def test_a_resumed_run_is_usable(run: Path) -> None:
    for steps in ([], [0], [20, 40], [40, 20, 60]):
        edit(run / "run.json", resumed_from=steps, world_size=8)
        assert open_run(run).info["resumed_from"] == steps


@pytest.mark.parametrize("first", [1, 17])
def test_a_run_that_skipped_everything_tells_nothing(results: Path, first: int) -> None:
    directory = write_run(results, "E8", "smoke", 0, Dial(skipped=tuple(range(first, 61))))
    assert "every step that would tell something was skipped" in refusal(directory)


def test_an_amax_that_was_not_finite_is_an_empty_cell(run: Path) -> None:
    """The engine counts it and keeps it out of the history; with current scaling no estimate is left."""
    rewrite(run / "saturation.csv", both(put(5, "amax", ""), put(40, "amax", ""), put(40, "estimate", "")))
    found = open_run(run)
    assert found.saturation is not None
    assert len(recorded_rows(found)) == 58 * 36 - 2
    rows = quantized_rows(found)
    assert rows is not None
    assert rows["saturated"].notna().all()


def test_infinite_sqnr_and_a_tensor_that_no_pass_reached_are_no_faults(run: Path) -> None:
    def change(table: pd.DataFrame) -> None:
        rows = table.index[table["step"] == SAMPLED]
        table.loc[rows[0], "sqnr_db"] = np.inf
        table.loc[rows[1], "sqnr_db"] = np.nan
        table.loc[rows[2], ["amax", *SAMPLED_COLUMNS]] = [0.0, np.nan, np.nan, np.nan]

    rewrite(run / "saturation.csv", change)
    found = open_training(run).saturation
    assert found is not None
    assert np.isinf(found["sqnr_db"]).sum() == 1


def test_gradients_have_their_rows_exactly_where_they_are_quantized(results: Path) -> None:
    plain = write_run(results / "plain", "E5", "smoke", 0, Dial())
    with_gradients = write_run(results / "full", "E5", "smoke", 0, Dial(overrides=(("gradients", True),)))
    found = open_run(with_gradients).saturation
    assert found is not None
    assert list(found.groupby("kind").size()) == [60 * 18] * 3
    (plain / "saturation.csv").write_bytes((with_gradients / "saturation.csv").read_bytes())
    assert "kind that is not quantized" in refusal(plain)
    rewrite(with_gradients / "saturation.csv", lambda table: table[table["kind"] != "gradient"])
    assert "2160 of 3240 rows" in refusal(with_gradients)


def test_a_warmup_that_ends_by_itself_may_end_at_any_step(results: Path) -> None:
    overrides = (("adaptive_warmup_spread", 0.5),)
    directory = write_run(results, "E8", "smoke", 0, Dial(switch=12, overrides=overrides))
    assert open_run(directory).info["quantized_from_step"] == 12
    for never in (None, 0, 61):
        edit(directory / "run.json", quantized_from_step=never)
        assert "labelled HiF8" in refusal(directory)


def test_training_can_be_read_before_evaluation(run: Path) -> None:
    for name in ("eval.json", "items.csv", "heldout.csv"):
        (run / name).unlink()
    assert open_training(run).steps is not None
    with pytest.raises(UserError, match=r"eval\.json is missing; run the experiment again"):
        open_run(run)
