"""The benchmark's tables: goals judged from the CSV as it is written, and the committed pair in step."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from pangu_hif8.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"
INTO = ", into a tensor that is there"


@pytest.fixture
def goals(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("speed_goals")


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("speed_table")


def csv_text(**milliseconds: float) -> str:
    """One setting's rows, by short names."""
    names = {
        "copy": "copy into a tensor that is there",
        "clone": "clone",
        "ours": "HiF8, compiled",
        "ours_into": f"HiF8, compiled{INTO}",
        "written_out": "other HiF8: written out in torch ops",
    }
    rows = [f'"{names[key]}",float32,1,{value}' for key, value in milliseconds.items()]
    return "\n".join(["what,dtype,num_threads,median_ms", *rows])


def cells(goals: ModuleType, text: str, start: str) -> list[list[str]]:
    """The cells of the rows whose goal starts so: memory, ratio, reached."""
    rows = [
        line.strip("| ").split(" | ") for line in goals.goals_table(text) if line.startswith(f"| {start}")
    ]
    return [row[1:] for row in rows]


def test_a_goal_is_judged_like_for_like(goals: ModuleType) -> None:
    text = csv_text(copy=2.0, clone=10.0, ours=19.0, ours_into=5.0, written_out=100.0)
    assert cells(goals, text, "compiled: at most 2 copies") == [
        ["there", "2.50", "0 of 1"],
        ["new", "1.90", "1 of 1"],
    ]
    faster = cells(goals, text, "compiled: 20 times faster than written out")
    assert faster == [["there", "20.0", "1 of 1"], ["new", "5.26", "0 of 1"]]


def test_a_limit_that_is_met_exactly_is_reached(goals: ModuleType) -> None:
    text = csv_text(copy=2.0, clone=10.0, ours=20.0, ours_into=4.0)
    assert [row[-1] for row in cells(goals, text, "compiled: at most 2 copies")] == ["1 of 1", "1 of 1"]


def test_what_did_not_run_is_a_dash(goals: ModuleType) -> None:
    text = csv_text(copy=2.0, clone=10.0, ours=20.0) + '\n"HiF8, eager",float32,1,'
    assert cells(goals, text, "eager") == [["there", "-", "-"], ["new", "-", "-"]]
    assert cells(goals, text, "compiled: at most 2 copies")[0] == ["there", "-", "-"]


def test_the_names_are_the_benchmark_s(goals: ModuleType, tables: ModuleType) -> None:
    timed = {candidate.name for candidate in importlib.import_module("format_speed").CANDIDATES}
    named = {name for goal in goals.GOALS for name in (*goal.what, *goal.than)}
    assert named <= timed


def test_both_files_are_written_from_the_same_times(
    tables: ModuleType, goals: ModuleType, tmp_path: Path
) -> None:
    times = {
        "copy into a tensor that is there": [0.002, 0.004, 0.003],
        "clone": [0.006],
        "HiF8, compiled": [0.009],
    }
    found = [tables.Measurement(name, "float32", 2, seconds) for name, seconds in times.items()]
    found.append(tables.Measurement("absent", "float32", 2, [], "no module"))
    text = tables.write_tables(found, 1000, 3, tmp_path, [0.0, 0.0])
    assert text == (tmp_path / "format_speed.md").read_text()
    table = (tmp_path / "format_speed.csv").read_text()
    assert goals.read_medians(table) == {
        "float32, 2 threads": {"copy into a tensor that is there": 3.0, "clone": 6.0, "HiF8, compiled": 9.0}
    }
    assert "\n".join(goals.goals_table(table)) in text
    assert "| HiF8, compiled | 3.00 |" in text and "| HiF8, compiled | 1.50 |" in text
    assert "Not run: absent (no module)." in text and "skipped: no module" in table


def test_the_committed_tables_belong_together(goals: ModuleType) -> None:
    table = (BENCHMARKS / "format_speed.csv").read_text()
    assert "\n".join(goals.goals_table(table)) in (BENCHMARKS / "format_speed.md").read_text()
