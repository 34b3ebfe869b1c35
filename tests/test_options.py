"""Changed settings on the command line, there and back: `--set`, and what is started on several processes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from pangu_hif8 import run
from pangu_hif8.audit_variants import audit_variants
from pangu_hif8.cli import build_parser, main
from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.options import changed, setting
from pangu_hif8.processes import command
from pangu_hif8.run import resolve_run


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lr=1e-4", 1e-4), ("overflow=taper", "taper"), ("hp_blocks=[0,1]", [0, 1]),
        ("reduce_amax=false", False),
        ("gradients={}", {}), ("weights={\"margin\": 1.0}", {"margin": 1.0}), ("lr=", ""), ("lr=a=b", "a=b"),
    ],
)  # fmt: skip
def test_a_value_is_json_or_a_word(text: str, value: Any) -> None:
    name, found = setting(text)
    assert (name, found) == (text.partition("=")[0], value) and type(found) is type(value)


@pytest.mark.parametrize("text", ["lr", "=1", ""])
def test_a_setting_has_a_name_and_a_sign(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a setting is NAME=VALUE"):
        setting(text)


def test_unknown_and_doubled_settings_are_refused() -> None:
    with pytest.raises(UserError, match="--set: unknown lrr; valid: lr, steps"):
        changed([("lrr", 1)])
    with pytest.raises(UserError, match="names a setting twice"):
        changed([("lr", 1), ("lr", 2)])
    assert changed([("lr", 1.0), ("steps", 2)]) == {"lr": 1.0, "steps": 2}


def test_they_reach_the_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[Any] = []

    def pretend(name: str, **how: Any) -> run.Run:
        calls.append((name, how))
        return run.Run(resolve_run("E5", "smoke"), Path("there"))

    monkeypatch.setattr(run, "run_experiment", pretend)
    line = ["run", "E5", "--profile", "smoke", "--set", "overflow=taper", "--set", "steps=3"]
    assert main(line) == 0 and capsys.readouterr().out == "there\n"
    assert calls[0][1]["overflow"] == "taper" and calls[0][1]["steps"] == 3
    for wrong in ("overflow=clip", "lr=fast", "no_such=1", "lr"):
        monkeypatch.undo()
        assert main(["run", "E5", "--profile", "smoke", "--set", wrong]) == 2
        assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("variant", audit_variants(load_profile("laptop")), ids=lambda v: v.id)
def test_what_is_started_on_several_processes_is_the_same_run(variant: Any) -> None:
    words = command(variant.base, "laptop", 2, 8, variant.changes)
    launch, own = words[: words.index("pangu_hif8") + 1], words[words.index("pangu_hif8") + 1 :]
    assert launch[-2:] == ["-m", "pangu_hif8"] and "8" in launch
    given = build_parser().parse_args(own)
    assert (given.experiment, given.profile, given.seed) == (variant.base, "laptop", 2)
    again = resolve_run(given.experiment, given.profile, given.seed, **changed(given.settings))
    assert again == variant.config("laptop", 2)


def test_without_changes_nothing_is_set() -> None:
    assert "--set" not in command("E5", "smoke", 0, 2)
