"""The blocks' sensitivity: what it measures, and that a killed, damaged or foreign file is never taken."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import tiny_runs
from fake_beyond import RANKING, fake_losses, write_sensitivity
from fake_results import Dial, write_run
from scipy import stats
from tiny_runs import prepared_here, tiny_world

from pangu_hif8 import sensitivity
from pangu_hif8.config import load_profile
from pangu_hif8.corpus import TokenShards
from pangu_hif8.files import read_json, write_json
from pangu_hif8.heldout import heldout_losses
from pangu_hif8.linear import converted_linears, prepare_qat
from pangu_hif8.models import load_base
from pangu_hif8.quant_config import QuantConfig
from pangu_hif8.sensitivity import UNQUANTIZED, measure_sensitivity, ranking, read_sensitivity, table_of


@contextmanager
def tiny() -> Iterator[None]:
    """Every profile is the tiny one of three blocks."""
    with ExitStack() as stack:
        stack.enter_context(tiny_world())
        stack.enter_context(mock.patch.object(sensitivity, "load_profile", return_value=tiny_runs.profile()))
        yield


# ---- on a real model of three blocks ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished measurement's directory."""
    base = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch, tiny():
        patch.setenv("PANGU_HIF8_RESULTS", str(base))
        measure_sensitivity("tiny")
    return base / "tiny" / "beyond"


def losses_with(*, quantized: int | None) -> list[float]:
    """The held-out losses, with one block converted by hand."""
    prepared, profile = prepared_here(), tiny_runs.profile()
    model = load_base(prepared.model_dir)[0]
    if quantized is not None:
        others = [block for block in range(3) if block != quantized]
        prepare_qat(model, QuantConfig(amax_compute_algo="current"), 0, 0, others).set_mode("frozen")
        assert len(converted_linears(model)) == 3
    shards = TokenShards.open(prepared.shards_dir)
    return list(heldout_losses(model, shards, profile.evaluation.batch_size)["loss"])


def test_the_losses_are_those_of_the_base_model_with_one_block_quantized(tiny_directory: Path) -> None:
    table = pd.read_csv(tiny_directory / "sensitivity.csv")
    assert len(table) == 4 * (5 + 3)
    for block in (UNQUANTIZED, 1):
        found = table.loc[table["block"] == block, "loss"]
        wanted = losses_with(quantized=None if block == UNQUANTIZED else block)
        np.testing.assert_allclose(found, wanted, rtol=1e-8)  # nine digits in the file
    assert table.groupby("block")["loss"].mean().nunique() == 4  # each block changes something


def test_the_file_is_taken_as_it_is_without_a_model(tiny_directory: Path, results: Path) -> None:
    shutil.copytree(tiny_directory, results / "tiny" / "beyond")
    with tiny(), mock.patch("pangu_hif8.prepare.prepare", side_effect=AssertionError("prepared")):
        measure_sensitivity("tiny")
        assert sorted(ranking("tiny")) == [0, 1, 2]


def test_fresh_measures_again_what_came_with_the_repository(tiny_directory: Path, results: Path) -> None:
    copy = Path(shutil.copytree(tiny_directory, results / "tiny" / "beyond"))
    before = (copy / "sensitivity.csv").read_bytes()
    with tiny(), mock.patch.object(sensitivity, "_losses", wraps=sensitivity._losses) as measured:
        measure_sensitivity("tiny", fresh=True)  # its stamp came along: this machine has made it
        assert not measured.called
        (copy / "sensitivity.stamp").unlink()
        measure_sensitivity("tiny", fresh=True)
        assert measured.call_count == 4
    assert (copy / "sensitivity.csv").read_bytes() == before


class Killed(Exception):
    """Stands for a process that ends."""


@pytest.mark.parametrize("torn", ["", '{"key": "block 1", "rows": [[1, "same_d', "\x00\xff\n", "[1]\n"])
def test_a_killed_measurement_goes_on_where_it_stopped(
    tiny_directory: Path, results: Path, torn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    real, seen = sensitivity._losses, list[int]()

    def dying(profile: str, block: int, prepared: Any) -> Any:
        seen.append(block)
        if len(seen) == 3:
            raise Killed
        return list(real(profile, block, prepared))

    with tiny(), mock.patch.object(sensitivity, "_losses", dying):
        with pytest.raises(Killed):
            measure_sensitivity("tiny")
        assert read_sensitivity("tiny") is None
        partial = results / "tiny" / "beyond" / "sensitivity.partial.tmp"
        with partial.open("a", encoding="utf-8") as handle:
            handle.write(torn)
        measure_sensitivity("tiny")
    assert seen == [-1, 0, 1, 1, 2]
    assert "sensitivity: block 1 (3 of 4)" in capsys.readouterr().out
    made = results / "tiny" / "beyond" / "sensitivity.csv"
    assert made.read_bytes() == (tiny_directory / "sensitivity.csv").read_bytes()
    assert not partial.exists()


@pytest.mark.parametrize(("begun", "expected"), [("a", ["block 0"]), ("b", ["unquantized", "block 0"])])
def test_what_was_begun_with_other_inputs_is_dropped(results: Path, begun: str, expected: list[str]) -> None:
    rows, asked = sensitivity._file("smoke"), list[str]()

    def measure(key: str) -> list[list[int | float | str]]:
        asked.append(key)
        return fake_losses(0)

    rows._begun({"settings": begun})
    rows._append({"key": "unquantized", "rows": fake_losses(-1)})
    rows.make({"settings": "a"}, ["unquantized", "block 0"], measure)
    assert asked == expected
    assert len(pd.read_csv(rows.csv)) == 2 * len(fake_losses(0))


# ---- on a synthetic file ---------------------------------------------------------------------------------


@pytest.fixture
def directory(results: Path) -> Path:
    write_run(results, "E0", "smoke", 0, Dial())
    write_sensitivity()
    return results / "smoke" / "beyond"


def test_intervals_are_paired_and_the_ranking_follows_them(directory: Path) -> None:
    found = read_sensitivity("smoke")
    assert found is not None
    assert found.ranking == ranking("smoke") == RANKING
    table = found.losses.set_index(["block", "domain", "sequence"])["loss"]
    difference = (table[3] - table[UNQUANTIZED]).to_numpy()
    interval = found.increase(3)
    assert interval.value == pytest.approx(difference.mean())
    low, high = stats.t.interval(0.95, 31, difference.mean(), stats.sem(difference))
    assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))
    row = table_of(found).set_index("block").loc[3]
    assert row["rise_nats"] == pytest.approx(interval.value)
    assert row["second_domain_nats"] == pytest.approx(found.increase(3, "second_domain").value)


@pytest.mark.parametrize("name", ["sensitivity.csv", "sensitivity.json"])
@pytest.mark.parametrize("damage", ["cut", "missing", "empty"])
def test_a_damaged_file_is_not_taken(directory: Path, name: str, damage: str) -> None:
    path = directory / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40] if damage == "cut" else b"")
    assert read_sensitivity("smoke") is None and ranking("smoke") == []


def test_a_record_that_is_no_object_is_not_taken(directory: Path) -> None:
    for value in ([1], "text", {"inputs": 3}, {"inputs": {}}):
        write_json(directory / "sensitivity.json", value)
        assert read_sensitivity("smoke") is None


@pytest.mark.parametrize("changed", ["settings", "code", "base model", "held-out text"])
def test_a_file_of_other_settings_code_or_model_is_not_taken(directory: Path, changed: str) -> None:
    record = read_json(directory / "sensitivity.json")
    record["inputs"][changed] = "another"
    write_json(directory / "sensitivity.json", record)
    assert read_sensitivity("smoke") is None
    assert sensitivity._file("smoke").fault(
        sensitivity._inputs("smoke") | sensitivity._base_of_runs("smoke")
    ) == (f"{changed} changed")


def test_training_settings_do_not_matter(directory: Path) -> None:
    profile = load_profile("smoke")
    for section, change in (
        ("train", {"steps": 7, "bf16_warmup_steps": 2}),
        ("evaluation", {"batch_size": 7}),
    ):
        part = getattr(profile, section).model_copy(update=change)
        other = profile.model_copy(update={section: part})
        with (
            mock.patch.object(sensitivity, "load_profile", return_value=other),
            mock.patch("pangu_hif8.experiments.load_profile", return_value=other),
        ):
            assert (read_sensitivity("smoke") is None) == (section == "evaluation")
