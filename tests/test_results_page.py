"""The page of all benchmarks: every goal of the tables with its verdict, what was missed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import results_page as results

STEPS = "size,what,than,ratio,low,high,goal,reached"
BLOCK = "step,than,ratio,low,high,goal,reached,inputs_bytes,kept_bytes,peak_bytes"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    steps = [
        "smoke,max_window,off,1.19,1.16,1.22,1.1,no",
        "smoke,off,off,1,1,1,,",
        'laptop,"max_window, telemetry on",off,1.05,0.99,1.2,1.15,"yes, within noise"',
    ]
    block = [
        "plain,plain,1,1,1,,,400,1000,2000",
        '"max_window, inputs kept as codes",max_window,1.01,1.0,1.02,1.03,yes,100,700,1800',
    ]
    (tmp_path / "step_time.csv").write_text("\n".join([STEPS, *steps]) + "\n")
    (tmp_path / "block_time.csv").write_text("\n".join([BLOCK, *block]) + "\n")
    return tmp_path


def test_every_goal_is_there_with_its_verdict(tables: Path) -> None:
    rows = results.ratio_rows(tables)
    assert [(r.place, r.reached) for r in rows] == [
        ("smoke", "no"),
        ("laptop", "yes, within noise"),
        ("block", "yes"),
    ]
    text = results.page(tables, rows)
    assert "| smoke model | max_window | off | 1.190 | 1.160 to 1.220 | 1.1 | no |" in text
    assert "0.2500 of float32's bytes, at most 0.3: yes" in text
    assert "leaves 0.70, of the step's peak 0.90" in text


def test_what_was_missed_or_not_shown_is_said_with_the_reason(tables: Path) -> None:
    found = list(results.missed(results.ratio_rows(tables)))
    assert found[0] == "- smoke model: max_window, over off: missed, 1.190 [1.160, 1.220] for 1.1"
    assert found[1].startswith("- laptop model: max_window, telemetry on, over off: not shown, 1.050")
    assert found[2] == "" and found[3].startswith("The smoke model: ") and len(found) == 4


def test_what_was_not_measured_is_said_so(tmp_path: Path) -> None:
    text = results.page(tmp_path, results.ratio_rows(tmp_path))
    assert "Memory of a block: not measured." in text and "Nothing has been measured on a GPU yet" in text
    (tmp_path / "gpu.csv").write_text("part,what,than,ratio,low,high,goal,reached\n")
    assert "[gpu.md](gpu.md)" in results.page(tmp_path, [])


def test_both_files_are_written(tables: Path) -> None:
    results.main(["--out", str(tables)])
    assert (tables / "results.md").exists() and (tables / "ratios.png").exists()


def test_the_committed_page_is_that_of_the_committed_tables() -> None:
    directory = ROOT / "benchmarks"
    assert (directory / "results.md").read_text() == results.page(directory, results.ratio_rows(directory))


def test_what_the_committed_page_shows_is_there() -> None:
    directory = ROOT / "benchmarks"
    names = re.findall(r"\]\(([\w./]+)", (directory / "results.md").read_text())
    assert names and all((directory / name).exists() for name in names)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("step_time", "size,what\nsmoke,max_window\n"),
        ("step_time", f"{STEPS}\nsmoke,max_window,off,many,1,1,1.1,no\n"),
        ("step_time", f"{STEPS}\nhuge,max_window,off,1,1,1,1.1,no\n"),
        ("step_time", f"{STEPS}\nsmoke,max_window"),
        ("block_time", f"{BLOCK}\nplain,plain,1,1,1,,,400,1000,2000\n"),
        ("format_speed", "dtype,what\nfloat32,copy\n"),
        ("threads", "processes,threads\n1,1\n"),
    ],
)
def test_a_damaged_table_is_named_and_the_page_stays(tables: Path, name: str, text: str) -> None:
    (tables / "results.md").write_text("the page before")
    (tables / f"{name}.csv").write_text(text)
    with pytest.raises(UserError, match=rf"{name}\.csv is damaged .*; remove it, or measure it again"):
        results.main(["--out", str(tables)])
    assert (tables / "results.md").read_text() == "the page before"


def test_bytes_that_are_no_text_are_a_damaged_table(tables: Path) -> None:
    (tables / "block_time.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"block_time\.csv is damaged"):
        results.main(["--out", str(tables)])
