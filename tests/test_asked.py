"""Benchmarks' command lines: what can't be measured or written is refused, and nothing overwritten."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import asked
import block_time
import format_speed
import growth
import instructions
import profile_step
import results_page
import step_time
import threads

Main = Callable[[list[str]], object]
COUNTS: dict[str, tuple[Main, str]] = {
    "block_time": (block_time.main, "--rounds"),
    "block_time, sequences": (block_time.main, "--sequences"),
    "format_speed": (format_speed.main, "--rounds"),
    "format_speed, values": (format_speed.main, "--num-values"),
    "growth": (growth.main, "--rounds"),
    "profile_step": (profile_step.main, "--rounds"),
    "profile_step, sequences": (profile_step.main, "--sequences"),
    "step_time": (step_time.main, "--repeats"),
    "threads": (threads.main, "--steps"),
}
WRITING = (block_time, format_speed, growth, instructions, profile_step, results_page, step_time, threads)


@pytest.mark.parametrize("value", ["0", "-3", "two", "1.5", ""])
@pytest.mark.parametrize("name", COUNTS)
def test_a_count_that_is_none_is_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    main, option = COUNTS[name]
    with pytest.raises(SystemExit) as found:
        main([f"{option}={value}"])
    assert found.value.code == 2
    assert f"argument {option}: a whole number from 1 is needed, got {value!r}" in capsys.readouterr().err


@pytest.mark.parametrize("main", [module.main for module in WRITING], ids=[m.__name__ for m in WRITING])
def test_a_place_that_can_t_be_written_to_is_refused(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "file"
    place.write_text("somebody's")
    with pytest.raises(SystemExit) as found:
        main(["--out", str(place)])
    assert found.value.code == 2 and f"can't write to {place}: Not a directory" in capsys.readouterr().err
    assert place.read_text() == "somebody's"


def test_a_new_folder_is_not_made_before_there_is_a_table(tmp_path: Path) -> None:
    parser = step_time.argparse.ArgumentParser()
    asked.add_out(parser)
    out = tmp_path / "a" / "b"
    assert parser.parse_args(["--out", str(out)]).out == out and not out.parent.exists()
    assert parser.parse_args([]).out == ROOT / "benchmarks"


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (UserError("the disk is full"), "error: the disk is full", ""),
        (
            subprocess.CalledProcessError(-9, "x", stderr="Killed\n"),
            "Killed\nerror: a measuring process ended with status -9",
            "",
        ),
        (subprocess.CalledProcessError(1, "x"), "error: a measuring process ended with status 1", ""),
        (KeyboardInterrupt(), 130, "interrupted; tables are as they were\n"),
    ],
)
def test_what_ends_a_benchmark_is_one_line(
    raised: BaseException, status: object, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def main() -> None:
        raise raised

    with pytest.raises(SystemExit) as found:
        asked.run_main(main)
    assert found.value.code == status and capsys.readouterr().err == said


def test_a_benchmark_that_went_well_goes_on() -> None:
    asked.run_main(lambda: None)
