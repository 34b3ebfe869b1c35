"""The page of sweeps where runs are missing, damaged or of several seeds, and how its runs are made."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from fake_beyond import RANKING, VARIANTS, heldout_difference, place, write_sensitivity, write_sweeps
from numerals import untraced

from pangu_hif8 import beyond, page_stage
from pangu_hif8.beyond import build_beyond, measure_beyond
from pangu_hif8.variant_runs import pending, wanted


def remove(base: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(place(name, base).parent)


def test_a_missing_or_damaged_run_is_named_and_the_rest_shown(sweeps_copy: Path) -> None:
    remove(sweeps_copy, "W-E8-4", "T-E8-8", "T-E8-56", "T-E8-224")
    (place("F1-E5-0.7", sweeps_copy) / "heldout.csv").write_text("domain,seq")
    earlier = sweeps_copy / "smoke" / "beyond" / "tables" / "T.csv"
    earlier.parent.mkdir()
    earlier.touch()
    found = build_beyond("smoke")
    assert "W-E8-4 (seed 0): not run" in found.missing
    assert any(text.startswith("F1-E5-0.7 (seed 0): heldout.csv") for text in found.missing)
    assert "F1-E5-0.7" not in set(found.sections["F1"].table["run"])
    window = found.sections["W"]
    assert window.measured.endswith("Without a usable run: W-E8-4.")
    assert list(window.table["run"]) == ["W-E8-1", "E8", "W-E8-64"] and window.figure is not None
    target = found.sections["T"]
    assert target.missing == "none of its settings has a usable run"
    assert target.figure is None and found.pictures["T"] is None
    assert earlier.parent == found.directory / "tables" and not earlier.exists()
    assert "T" not in set(found.sections["all"].table["sweep"])


def test_without_what_a_sweep_is_compared_with_it_says_so(sweeps_copy: Path) -> None:
    shutil.rmtree(sweeps_copy / "smoke" / "E6")
    found = build_beyond("smoke")
    assert not found.sections["F1"].missing
    for name in ("F2", "F3", "W", "T"):
        assert found.sections[name].missing == "E6 missing (not run)"
    assert set(found.sections["all"].table["sweep"]) == {"F1"}
    assert [text for text in found.missing if text.startswith("E")] == ["E6 (seed 0): not run"]


def test_without_any_sweep_every_section_says_so(sweeps_copy: Path) -> None:
    remove(sweeps_copy, *VARIANTS)
    found = build_beyond("smoke")
    assert all(section.missing for section in found.sections.values())
    assert all(picture is None for picture in found.pictures.values())


def test_without_the_sensitivity_the_sweep_has_first_and_last_ones(sweeps_copy: Path) -> None:
    (sweeps_copy / "smoke" / "beyond" / "sensitivity.json").unlink()
    section = build_beyond("smoke").sections["F3"]
    assert "The sensitivity of the blocks is not measured." in section.measured
    assert set(section.table["run"]) == {"F3-E8-0", "E8", "F3-E8-5-first", "F3-E8-5-last"}
    assert section.figure is not None and len(section.figure.axes) == 1
    assert not untraced(section.measured, section.numbers)


def test_runs_without_samples_have_no_sqnr(sweeps_copy: Path) -> None:
    for name in ("E8", "T-E8-8", "T-E8-56", "T-E8-224"):
        path = place(name, sweeps_copy) / "saturation.csv"
        table = pd.read_csv(path)
        table[["clipped_share", "flushed_share", "sqnr_db"]] = np.nan
        table.to_csv(path, index=False)
    found = build_beyond("smoke")
    section = found.sections["T"]
    assert "SQNR" not in section.measured and section.figure is not None and not section.missing
    assert found.sections["all"].table.set_index("run").loc["T-E8-8", "cost"] != 0


# ---- several seeds ---------------------------------------------------------------------------------------


def test_several_seeds_give_mean_and_interval_over_seeds(results: Path, undrawn: None) -> None:
    kept = ("W-E8-1", "F2-E8-0.001")
    write_sweeps(results, seeds=(0, 1, 2), leave_out=set(VARIANTS) - set(kept))
    found = build_beyond("smoke")
    section = found.sections["W"]
    row = section.table.set_index("run").loc["W-E8-1"]
    by_seed = [heldout_difference("W-E8-1", "E8", "same_domain", results, seed) for seed in (0, 1, 2)]
    assert row["seeds"] == 3
    assert row["same_domain_minus_E8_nats"] == pytest.approx(np.mean(by_seed))
    noted = [v for k, v in section.numbers.items() if k.startswith("W-E8-1_held") and k.endswith("_by_seed")]
    np.testing.assert_allclose(noted[0], by_seed, rtol=1e-5)
    for part in found.sections.values():
        assert not untraced(part.measured + part.finding, part.numbers)


# ---- making it -------------------------------------------------------------------------------------------


def test_the_ranking_reaches_the_runs_and_the_stage(sweeps_copy: Path) -> None:
    listed = {variant.id: variant for variant in page_stage.variants_of("beyond", "smoke")}
    assert listed["F3-E8-5-sensitive"].changes["hp_blocks"] == sorted(RANKING[:5])
    with mock.patch("pangu_hif8.variant_runs.is_current", return_value=True):
        assert pending(wanted(listed.values(), "smoke", [0])) == []
        remove(sweeps_copy, "F3-E8-5-sensitive")
        todo = pending(wanted(listed.values(), "smoke", [0]))
    assert [run.label for run in todo] == ["F3-E8-5-sensitive seed 0"]


def test_the_checkpoint_comes_first_and_the_sensitivity_before_the_sweeps(results: Path) -> None:
    calls: list[Any] = []

    def make_runs(variants: Any, profile: str, seeds: Any, *, fresh: bool) -> None:
        calls.append(([v.id for v in variants], seeds, fresh))

    def measure(profile: str, *, fresh: bool) -> None:
        calls.append(("measured", fresh))
        write_sensitivity(profile)

    with (
        mock.patch.object(beyond, "make_runs", make_runs),
        mock.patch.object(beyond, "measure_sensitivity", measure),
    ):
        measure_beyond("smoke", [1, 0, 1], fresh=True)
    assert calls[0] == ([], [0, 1], True) and calls[1] == ("measured", True)
    assert set(calls[2][0]) == set(VARIANTS) and calls[2][1:] == ([0, 1], True)
