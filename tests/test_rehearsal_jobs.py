"""The rehearsal's commands: where they run, what is left when they fail, and that a kill leaves none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "tools"))

from rehearsal import jobs, steps
from rehearsal.jobs import Place


def test_commands_see_the_scratch_folder_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", "-- REHEARSAL=x")
    place = Place(tmp_path)
    show = "import os, json; print(json.dumps(dict(os.environ)))"
    seen = json.loads(jobs.succeed(place, [sys.executable, "-c", show], PANGU_HIF8_RESULTS="other"))
    assert "MAKEFLAGS" not in seen
    assert seen["PANGU_HIF8_CACHE"].startswith(str(tmp_path)) and seen["PANGU_HIF8_RESULTS"] == "other"
    assert seen["HF_HUB_OFFLINE"] == "1" and seen["https_proxy"] == jobs.NOWHERE
    assert seen["PANGU_HIF8_PROCESSES"] == "2"


def test_a_command_that_fails_is_one_line_and_all_of_it_in_the_log(tmp_path: Path) -> None:
    program = "import sys; print('before'); sys.exit('the last word')"
    with pytest.raises(UserError, match="ended with status 1: the last word") as error:
        jobs.succeed(Place(tmp_path), [sys.executable, "-c", program])
    assert "\n" not in str(error.value)
    assert "before" in (tmp_path / "rehearsal.log").read_text()


FAMILY = """
import os, subprocess, sys, time
os.environ["RANK"] = "1"
command = [sys.executable, "-c", "import time; time.sleep(60)", "pangu_hif8"]
child = subprocess.Popen(command, start_new_session=True)
time.sleep(60)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """A process with a child in a session of its own, as torchrun starts ranks."""
    with jobs.started(Place(tmp_path), [sys.executable, "-c", FAMILY]) as started:
        jobs.wait_until(lambda: jobs.rank(started.pid, 1) is not None, started, "the child")
        child = jobs.rank(started.pid, 1)
        assert child is not None
        yield started, child


def test_nothing_outlives_a_kill_of_all(job: tuple[subprocess.Popen[bytes], Any]) -> None:
    started, child = job
    steps._everything(started)
    assert started.wait(10) == -9
    assert not jobs.alive([child])


def test_a_stage_that_goes_on_without_its_rank_is_found(
    job: tuple[subprocess.Popen[bytes], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PATIENCE_S", 0.5)
    with pytest.raises(UserError, match="the stage still waits"):
        steps._second_rank(job[0])
    assert jobs.rank(job[0].pid, 1) is None


def test_a_run_that_ends_too_early_is_told(tmp_path: Path) -> None:
    with jobs.started(Place(tmp_path), [sys.executable, "-c", "raise SystemExit(3)"]) as started:
        with pytest.raises(UserError, match="ended with status 3 before it was there"):
            jobs.wait_until(lambda: False, started, "it was there")
