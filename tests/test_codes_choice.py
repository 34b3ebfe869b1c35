"""Runs that keep their quantized inputs as codes: the same files to the byte, alone and on two ranks."""

from __future__ import annotations

import shutil
from typing import Any
from unittest import mock

import pytest
from test_linear import tiny_llama
from test_ranks import ACCELERATE, FOUR, TORCHRUN, launch
from tiny_runs import outputs, prepared_here, tiny_world

from pangu_hif8 import cli
from pangu_hif8.codes_choice import VARIABLE, is_chosen
from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.linear import HiF8Linear, prepare_qat
from pangu_hif8.paths import run_dir
from pangu_hif8.run import run_experiment, train_experiment
from pangu_hif8.saved_codes import CodedHiF8Linear, Codes, new_layers_keep_codes


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test chooses is forgotten after it."""
    monkeypatch.setenv(VARIABLE, "")


def trained(experiment: str, chosen: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[Any, int]:
    """A tiny run made anew: its files, and how often codes were made."""
    monkeypatch.setenv(VARIABLE, chosen)
    with tiny_world(**FOUR), mock.patch.object(Codes, "of", side_effect=Codes.of) as made:
        run = train_experiment(experiment, profile="tiny", **changes)
        found = outputs(run.directory)
        shutil.rmtree(run.directory)
    return found, made.call_count


@pytest.mark.parametrize(
    ("experiment", "changes"),
    [("E2", {}), ("E4", {}), ("E5", {"gradients": True}), ("E8", {})],
    ids=["most recent", "current", "gradients", "warm-up"],
)
def test_a_run_with_codes_leaves_the_same_bytes(
    experiment: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, none = trained(experiment, "0", monkeypatch, **changes)
    coded, made = trained(experiment, "1", monkeypatch, **changes)
    quantized_steps = 3 if experiment == "E8" else 5
    assert none == 0 and made == quantized_steps * 4 * 2  # micro-batches, inputs of one block
    assert coded == plain


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["DDP", "FSDP"])
def test_two_ranks_with_codes_leave_the_same_bytes(launcher: list[str]) -> None:
    prepared_here()
    directory, found = run_dir("tiny", "E8", 0), {}
    for options in ([], ["--inputs-as-codes"]):
        done = launch(launcher, "train", "E8", "--profile", "tiny", *options)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("wait for backward as codes") == len(options)
        found[len(options)] = outputs(directory)
        shutil.rmtree(directory)
    assert found[0] == found[1] and found[0]["run.json"]["world_size"] == 2


def test_what_is_up_to_date_stays_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with tiny_world(**FOUR):
        run_experiment("E8", profile="tiny")
        monkeypatch.setenv(VARIABLE, "1")
        capsys.readouterr()
        run_experiment("E8", profile="tiny")
    assert "training and evaluation are up to date" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["activation_checkpointing", "compile"])
def test_what_codes_do_not_go_with_is_refused_before_anything_is_made(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tiny_world(**FOUR, **{name: True}):
        assert cli.main("train E8 --profile tiny --inputs-as-codes".split()) == 2
        assert not run_dir("tiny", "E8", 0).exists()
    assert f"E8: inputs can't be kept as codes beside {name}" in capsys.readouterr().err


def test_an_unquantized_run_takes_no_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = trained("E1", "", monkeypatch)
    assert trained("E1", "1", monkeypatch) == (plain, 0)


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(UserError, match=f"{VARIABLE} must be 1 .on. or 0 .off., got 'yes'"):
        is_chosen()
    with tiny_world(), pytest.raises(UserError, match=VARIABLE):
        train_experiment("E8", profile="tiny")


def test_layers_made_afterwards_are_plain_again() -> None:
    with new_layers_keep_codes():
        inside = tiny_llama()
        prepare_qat(inside, QuantConfig(amax_compute_algo="max_window"), 1, 1)
    outside = tiny_llama()
    prepare_qat(outside, QuantConfig(amax_compute_algo="max_window"), 1, 1)
    kinds = [{type(m) for m in model.modules() if isinstance(m, HiF8Linear)} for model in (inside, outside)]
    assert kinds == [{CodedHiF8Linear}, {HiF8Linear}]
