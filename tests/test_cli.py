"""The command line: exit status, one line on stderr, nothing heavy before it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pangu_hif8 import cli, stages
from pangu_hif8.errors import Preempted
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.paths import ROOT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("stage E9 --profile smoke", "unknown experiment 'E9'; valid: E0, E1"),
        ("stage E5 --profile paper9", "unknown profile 'paper9'; valid: laptop, paper, smoke"),
        ("run E5 --profile nope", "unknown profile 'nope'"),
        ("run E5 --seed x", "a whole number from 0 is needed, got 'x'"),
        ("run E5 --seed -1", "a whole number from 0 is needed, got '-1'"),
        ("run E5 --sed 1", "unrecognized arguments: --sed 1"),
        ("run E5 --see 1", "unrecognized arguments: --see 1"),
        ("train E5 --parallel pipeline", "invalid choice: 'pipeline'"),
        ("train E9", "unknown experiment 'E9'"),
        ("evaluate E5 --profile nope", "unknown profile 'nope'"),
        ("evaluate E5 --resume never", "unrecognized arguments: --resume never"),
        ("run", "the following arguments are required: experiment"),
        ("bogus", "invalid choice: 'bogus'"),
        ("", "required: COMMAND"),
        ("stage E0 --seed 2 --profile smoke", "E0 is the untouched checkpoint; it has seed 0 only"),
        ("stage E5 --profile smoke --timeout 0", "at least 1 second"),
        ("check-args --only E5,E99", "unknown experiment 'E99'"),
        ("check-args --seeds zero", "a whole number from 0 is needed"),
        ("check-args --seeds=", "no seed given"),
        ("check-args --profile big", "unknown profile 'big'"),
        ("prepare --profile big", "unknown profile 'big'"),
        ("report --profile big", "unknown profile 'big'"),
        ("status --profile big", "unknown profile 'big'"),
        ("export E8", "the following arguments are required: OUT"),
        ("export E9 out", "no run in E9"),
        ("export E8 out --profile big", "unknown profile 'big'"),
        ("export E8 out --seed x", "a whole number from 0 is needed, got 'x'"),
        ("export somewhere out --seed 1", "--profile and --seed would have no effect"),
        ("format --figure format.pdf", "a figure is written as .png or .svg, not 'format.pdf'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) == 1


def test_good_arguments_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-args", "--profile", "smoke", "--only", "E5 E8", "--seeds", "0 1"]) == 0
    assert capsys.readouterr() == ("", "")


def test_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{row.id}  {row.title}" in out for row in EXPERIMENTS.values())
    assert "profile smoke" in out


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["stage", "E9"], ["export", "E9", "out"]])
def test_nothing_heavy_is_loaded_for_it(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from pangu_hif8.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'papermill', 'matplotlib'} & set(sys.modules)))"
    )
    env = {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_module_is_executable() -> None:
    command = [sys.executable, "-m", "pangu_hif8", "check-args", "--only", "E5"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def test_ranks_and_resume_are_handed_on_and_a_preemption_is_exit_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def preempted(*experiment: str, **how: object) -> None:
        asked.append((*experiment, how))
        raise Preempted(7)

    for name in ("run_experiment", "train_experiment"):
        monkeypatch.setattr(f"pangu_hif8.run.{name}", preempted)
    assert cli.main("run E5 --profile smoke".split()) == 0
    assert cli.main("train E8 --seed 2 --parallel fsdp --resume some/step-00000020".split()) == 0
    assert asked == [
        ("E5", {"profile": "smoke", "seed": 0, "parallel": "ddp", "resume": "auto"}),
        ("E8", {"profile": "laptop", "seed": 2, "parallel": "fsdp", "resume": Path("some/step-00000020")}),
    ]
    assert capsys.readouterr().out.count("stopped after step 7 with a checkpoint; run the same command") == 2


def test_status_lists_what_waits_and_exits_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def pending(*scope: object) -> dict[str, str]:
        asked.append(scope)
        return {"E5 seed 1": "lr changed"}

    monkeypatch.setattr(stages, "pending", pending)
    arguments = ["status", "--profile", "smoke", "--only", "E5", "--seeds", "1 0 1"]
    assert cli.main(arguments) == cli.WORK_TO_DO
    assert asked == [("smoke", ["E5"], [0, 1])]
    assert "E5 seed 1: to do (lr changed)" in capsys.readouterr().out


def test_status_says_when_all_is_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stages, "pending", lambda *scope: {})
    assert cli.main(["status", "--profile", "smoke"]) == 0
    out = capsys.readouterr().out
    assert "everything is up to date" in out
    assert "smoke/report/report.html" in out


def test_an_interruption_is_exit_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*scope: object) -> dict[str, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "pending", interrupted)
    assert cli.main(["status", "--profile", "smoke"]) == 130
    assert "run the same command again" in capsys.readouterr().err


def test_lab_hands_its_options_on_and_no_other_command_takes_unknown_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert cli.main(["lab", "--no-browser", "--port", "9999"]) == 0
    assert seen[0][-3:] == ["--no-browser", "--port", "9999"]
    assert cli.main(["list", "--no-browser"]) == 2
    assert "unrecognized arguments: --no-browser" in capsys.readouterr().err
