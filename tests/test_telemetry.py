"""The telemetry frame holds what the file holds, cell by cell, and is tidy in every kind of run."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_results import Dial, write_run

from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT
from pangu_hif8.telemetry import read_telemetry

COLUMNS = [
    "step", "block", "layer", "kind", "quantized", "amax", "estimate", "overshoot", "saturated",
    "clipped_share", "flushed_share", "sqnr_db",
]  # fmt: skip
NUMBERS = ("amax", "estimate", "clipped_share", "flushed_share", "sqnr_db")


def rows_of(directory: Path) -> list[dict[str, str]]:
    with (directory / "saturation.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def number(cell: str | None) -> float:
    return float(cell) if cell else float("nan")


@pytest.mark.parametrize(
    "dial", [Dial(), Dial(schema=1), Dial(skipped=(20, 33)), Dial(overrides=(("gradients", True),))]
)
def test_every_cell_is_the_files(results: Path, dial: Dial) -> None:
    directory = write_run(results, "E8", "smoke", 0, dial)
    (directory / "eval.json").unlink()  # a cluster may not have evaluated yet
    found, rows = read_telemetry(str(directory)), rows_of(directory)
    assert list(found) == COLUMNS
    assert len(found) == len(rows)
    for name in ("step", "block", "layer", "kind"):
        assert found[name].astype(str).tolist() == [row[name] for row in rows]
    for name in NUMBERS:
        np.testing.assert_array_equal(found[name], [number(row.get(name)) for row in rows])
    ratio = [number(row["amax"]) / number(row["estimate"]) for row in rows]
    np.testing.assert_array_equal(found["overshoot"], ratio)
    verdicts = [{"": pd.NA, "0": False, "1": True}[row["saturated"]] for row in rows]
    assert found["saturated"].equals(pd.Series(verdicts, dtype="boolean"))
    assert found["quantized"].tolist() == [int(row["step"]) >= 17 for row in rows]


def test_units_are_those_of_the_docstring(results: Path) -> None:
    found = read_telemetry(write_run(results, "E5", "smoke", 0, Dial(skipped=(20,))))
    assert found.dtypes.astype(str).to_dict() == {
        **dict.fromkeys(NUMBERS, "float64"),
        "step": "int64",
        "block": "int64",
        "layer": "object",
        "kind": "object",
        "quantized": "bool",
        "overshoot": "float64",
        "saturated": "boolean",
    }
    taken = found[found["step"] != 20]
    assert ((taken["overshoot"] > 1) == taken["saturated"]).all()
    assert found.loc[found["step"] == 20, [*NUMBERS, "overshoot", "saturated"]].isna().all(axis=None)
    assert set(found.loc[found["clipped_share"].notna(), "step"]) == {10, 30, 40, 50, 60}


@pytest.mark.parametrize("experiment", ["E0", "E1"])
def test_a_run_that_quantizes_nothing_gives_no_rows(results: Path, experiment: str) -> None:
    full = read_telemetry(write_run(results, "E5", "smoke", 0, Dial()))
    found = read_telemetry(write_run(results, experiment, "smoke", 0, Dial()))
    assert len(found) == 0
    assert found.dtypes.equals(full.dtypes)


def test_a_run_that_is_not_usable_is_one_clear_error(results: Path) -> None:
    directory = write_run(results, "E5", "smoke", 0, Dial())
    (directory / "saturation.csv").write_text("step,block\n1,2")
    with pytest.raises(UserError, match=r"saturation\.csv is cut short"):
        read_telemetry(directory)
    with pytest.raises(UserError, match=r"run\.json is missing"):
        read_telemetry(results / "nowhere")


def test_it_needs_no_torch() -> None:
    program = "import sys; from pangu_hif8 import telemetry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0
