"""Stages through real kernels, with a stand-in for training: what runs, what is kept, what is said."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from pangu_hif8 import kernel, stages
from pangu_hif8.errors import UserError
from pangu_hif8.freshness import write_stamp
from pangu_hif8.paths import ROOT, run_dir

PARAMETERS = 'profile = "none"\nseed = 0'


def write_notebook(
    path: Path, *cells: str, parameters: str | None = PARAMETERS, kernel: str = "python3"
) -> None:
    notebook = new_notebook(metadata={"kernelspec": {"name": kernel, "display_name": kernel}})
    if parameters is not None:
        notebook.cells.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    notebook.cells += [new_code_cell(cell) for cell in cells]
    nbformat.write(notebook, path)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """E5's notebook source in a directory of its own; training and evaluation count as done."""
    monkeypatch.setattr(stages, "NOTEBOOKS_DIR", tmp_path / "notebooks")
    monkeypatch.setattr(stages, "prepare", lambda profile: None)
    monkeypatch.setattr(stages, "stale_stages", lambda config, prepared: {})
    (tmp_path / "notebooks").mkdir()
    directory = run_dir("smoke", "E5", 0)
    directory.mkdir(parents=True)
    (directory / "run.json").write_text("{}")
    for name in ("train", "evaluate"):
        write_stamp(directory / f"{name}.stamp", {}, [directory / "run.json"])
    return stages.source_of("E5")


def stage(**options: Any) -> Path:
    return stages.stage_run("E5", profile="smoke", seed=0, **options)


def texts(executed: Path) -> str:
    outputs = [o for c in nbformat.read(executed, 4).cells for o in c.get("outputs", ())]
    return "".join(o.text for o in outputs if o.output_type == "stream")


def test_runs_once_and_again_only_for_a_reason(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    count = tmp_path / "count"
    write_notebook(source, f"open({str(count)!r}, 'a').write('x')", "print(profile, seed)")
    executed = stage()
    assert "E5 seed 0 | smoke 0" in capsys.readouterr().err
    assert texts(executed) == "smoke 0\n"
    assert stage() == executed
    assert count.read_text() == "x"
    assert capsys.readouterr().out == "E5 seed 0: up to date\n"
    executed.write_text(executed.read_text()[:-9])
    stage()
    assert count.read_text() == "xx"
    assert "executed.ipynb is damaged or changed" in capsys.readouterr().out
    write_notebook(source, f"open({str(count)!r}, 'a').write('y')")
    stage()
    assert count.read_text() == "xxy"
    assert "notebook changed" in capsys.readouterr().out


def test_runs_in_this_interpreter_whatever_kernel_the_metadata_names(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_notebook(
        source,
        "import sys, os; print(sys.executable, os.getcwd(), os.environ['HF_HUB_OFFLINE'])",
        kernel="foo",
    )
    monkeypatch.chdir(tmp_path)
    executed = stage()
    assert texts(executed).split() == [sys.executable, str(ROOT), "1"]
    metadata = json.loads(executed.read_text())["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert metadata["kernelspec"]["display_name"] == kernel.kernel_spec()["display_name"]
    assert metadata["language_info"]["version"] == sys.version.split()[0]
    assert str(tmp_path) not in json.dumps(metadata)


def test_a_failing_cell_leaves_no_result_and_says_why_in_one_line(source: Path) -> None:
    write_notebook(source, "1 / 1", "1 / 0", "print('never')")
    directory = run_dir("smoke", "E5", 0)
    for _ in range(2):
        with pytest.raises(UserError, match="cell `1 / 0`: ZeroDivisionError: division by zero") as caught:
            stage()
        assert len(str(caught.value).splitlines()) == 1
        assert not (directory / "executed.ipynb").exists()
        assert not (directory / "notebook.stamp").exists()
    assert "ZeroDivisionError" in (directory / "failed.ipynb").read_text()
    assert not list(directory.glob("*.tmp"))
    write_notebook(source, "1 / 1")
    stage()
    assert not (directory / "failed.ipynb").exists()


def test_a_user_error_comes_through_as_it_is(source: Path) -> None:
    write_notebook(
        source,
        "from pangu_hif8.notebook import run_from_notebook",
        "lr = 'fast'\nsteps = None\nrun_from_notebook('E5', globals())",
    )
    with pytest.raises(
        UserError, match=r"^E5 seed 0: parameters of E5: lr: Input should be a valid number"
    ) as caught:
        stage()
    failed = nbformat.read(run_dir("smoke", "E5", 0) / "failed.ipynb", 4)
    error = next(o for c in failed.cells for o in c.get("outputs", ()) if o.output_type == "error")
    assert len(error.traceback) == 1
    assert "failed.ipynb" in str(caught.value)


def test_a_notebook_that_takes_too_long_names_cell_and_limit(source: Path) -> None:
    write_notebook(source, "import time\ntime.sleep(60)")
    with pytest.raises(UserError, match="cell `import time`: the notebook ran longer than its limit of 2 s"):
        stage(timeout_s=2.0)
    assert not (run_dir("smoke", "E5", 0) / "executed.ipynb").exists()


def test_a_dead_kernel_is_an_error(source: Path) -> None:
    write_notebook(source, "import os\nos._exit(9)")
    with pytest.raises(UserError, match="the kernel died"):
        stage()


def test_a_limit_is_for_the_notebook_not_for_each_cell() -> None:
    times = iter([0.0, 1.0, 4.0, 20.0])
    clock = kernel._Clock(10.0, now=lambda: next(times))
    cell = new_code_cell("x\ny")
    assert [clock.remaining(cell) for _ in range(3)] == [9.0, 6.0, 0.01]
    assert clock.cell == "x"
    assert kernel._Clock(None).remaining(cell) is None


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (None, "needs one code cell tagged parameters, it has 0"),
        ("profile = 'smoke'", "has no parameter seed"),
    ],
)
def test_a_faulty_source_ends_before_anything_starts(
    source: Path, tmp_path: Path, parameters: str | None, words: str
) -> None:
    write_notebook(source, f"open({str(tmp_path / 'started')!r}, 'w')", parameters=parameters)
    with pytest.raises(UserError, match=words):
        stage()
    assert not (tmp_path / "started").exists()


def test_a_missing_or_damaged_source_is_an_error(source: Path) -> None:
    with pytest.raises(UserError, match="is missing"):
        stage()
    source.write_text('{"cells": [')
    with pytest.raises(UserError, match="is not a notebook"):
        stage()


def test_results_that_cannot_be_written_end_before_anything_starts(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_notebook(source, f"open({str(tmp_path / 'started')!r}, 'w')")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(tmp_path / "file"))
    with pytest.raises(UserError, match="cannot write in"):
        stage()
    assert not (tmp_path / "started").exists()


def test_two_makes_at_once_run_it_once(source: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    write_notebook(source, f"open({str(count)!r}, 'a').write('x')\nimport time; time.sleep(1)")
    code = "\n".join(
        [
            "from pathlib import Path",
            "from pangu_hif8 import stages",
            f"stages.NOTEBOOKS_DIR = Path({str(source.parent)!r})",
            "stages.prepare = lambda profile: None",
            "stages.stale_stages = lambda config, prepared: {}",
            "stages.stage_run('E5', profile='smoke', seed=0)",
        ]
    )
    other = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    mine = threading.Thread(target=stage)
    mine.start()
    mine.join()
    said = other.communicate(timeout=60)[0]
    assert other.returncode == 0
    assert count.read_text() == "x"
    assert "up to date" in said or "done in" in said


def test_the_kernel_gets_no_network_and_fixed_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", "/elsewhere")
    env = kernel.environment()
    assert env["JUPYTER_PATH"].endswith(":/elsewhere")
    assert (Path(env["JUPYTER_PATH"].split(":")[0]) / "kernels" / "python3" / "kernel.json").exists()
    assert env["TOKENIZERS_PARALLELISM"] == "false" and env["PYTHONHASHSEED"] == "0"
    assert env["HF_HUB_OFFLINE"] == "1" and "HF_HUB_OFFLINE" not in kernel.environment(offline=False)


def test_pending_names_each_stage_and_its_reason(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_notebook(source, "1")
    write_notebook(stages.source_of("E0"), "1")
    monkeypatch.setattr(stages, "report_reason", lambda profile: "not made yet")
    stage()
    monkeypatch.setattr(
        stages,
        "stale_stages",
        lambda config, prepared: {} if config.experiment == "E5" else {"train": "lr changed"},
    )
    assert stages.pending("smoke", ["E0", "E5", "E6"], [0]) == {
        "E0 seed 0": "train: lr changed",
        "E6 seed 0": "train: lr changed",
        "report": "not made yet",
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(7.6, "8 s"), (59.7, "1 min 0 s"), (192, "3 min 12 s"), (3840, "1 h 4 min")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert stages.duration(seconds) == text


def test_the_report_is_made_again_only_when_a_result_changed(
    source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages, "write_page", lambda executed, page: page.write_text("page"))
    write_notebook(
        source.with_name(f"{stages.REPORT_NOTEBOOK}.ipynb"), "print(profile)", parameters="profile = 0"
    )
    page = stages.stage_report("smoke")
    assert page.read_text() == "page"
    assert texts(page.with_name("executed.ipynb")) == "smoke\n"
    capsys.readouterr()
    stages.stage_report("smoke")
    assert capsys.readouterr().out == "report: up to date\n"
    (run_dir("smoke", "E5", 0) / "run.json").write_text('{"seed": 1}')
    assert stages.report_reason("smoke") == "results changed"
    stages.stage_report("smoke")
    page.unlink()
    assert stages.report_reason("smoke") == "report.html is missing"


def test_bars_in_a_kernel_are_text(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_notebook(source, "from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='training'): pass")
    executed = stage()
    assert "training: 100%" in texts(executed)
    assert "E5 seed 0 | training: 100%" in capsys.readouterr().err
    assert "widgets" not in json.loads(executed.read_text())["metadata"]
