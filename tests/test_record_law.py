"""Replayed amaxes: the law for independent ones, a drift that always sets records, how traces are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_results import Dial, write_tree

from pangu_hif8.metrics import record_share
from pangu_hif8.record_law import WINDOWS, Traces, replay, replayed, traces
from pangu_hif8.results import load_profile_results


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("law", ["lognormal", "exponential", "uniform"])
def test_independent_values_exceed_their_window_as_the_law_says(window: int, law: str) -> None:
    values = getattr(np.random.default_rng(window), law)(size=(2000, 50)) + 1
    share = (replay(values, window) > 1).mean()
    assert share == pytest.approx(float(record_share(window)), rel=0.1)


def test_by_hand() -> None:
    found = replay(np.array([1.0, 2.0, 4.0, 3.0, 6.0]), 2)
    assert found.tolist() == [2.0, 0.75, 1.5]
    assert replay(np.array([1.0, 2.0]), 2).size == 0


@pytest.mark.parametrize("window", [1, 8, 64])
def test_a_drift_always_exceeds_and_a_standstill_never(window: int) -> None:
    rising = replay(1 + 1e-3 * np.arange(100), window)
    assert (rising > 1).all() and rising.max() < 1.0011
    assert (replay(np.arange(100, 0, -1.0), window) < 1).all()
    assert (replay(np.full(100, 3.0), window) == 1).all()


def test_rows_keep_seed_and_step() -> None:
    amaxes = np.array([[1.0, 5.0], [2.0, 4.0], [1.5, 6.0]])
    rows = replayed([Traces(7, np.array([3, 4, 6]), amaxes)], 1)
    assert rows["seed"].tolist() == [7] * 4 and rows["step"].tolist() == [4, 4, 6, 6]
    assert rows["ratio"].tolist() == [2.0, 0.8, 0.75, 1.5]
    assert rows["saturated"].tolist() == [True, False, False, True]
    assert len(replayed([], 4)) == 0 and list(replayed([], 4).columns) == list(rows.columns)


def test_an_input_that_two_layers_read_stands_once_and_skipped_steps_are_left_out(results: Path) -> None:
    write_tree(results, "smoke", dials={"E5": Dial(skipped=(30,))})
    found = load_profile_results("smoke")
    inputs, weights = (traces(found, ["E5"], kind) for kind in ("input", "weight"))
    assert [t.amaxes.shape for t in inputs] == [(59, 12)] and [t.amaxes.shape for t in weights] == [(59, 18)]
    assert 30 not in inputs[0].steps
    run = found.of("E5")[0]
    assert run.saturation is not None
    table = run.saturation.copy()
    gap = (table["step"] == 40) & (table["block"] == 2) & (table["layer"] == "down_proj")
    table.loc[gap, "amax"] = np.nan
    changed = replace(found, runs={("E5", 0): replace(run, saturation=table)})
    parts = traces(changed, ["E5"], "input")
    assert [t.amaxes.shape for t in parts] == [(59, 11), (58, 1)]
