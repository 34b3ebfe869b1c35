"""The page of sweeps on synthetic results: its numbers against the files, its words against its numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_beyond import RANKING, VARIANTS, at, heldout_difference, place
from numerals import untraced

from pangu_hif8.beyond import SWEEPS, build_beyond
from pangu_hif8.beyond_spread import spread_trace
from pangu_hif8.files import read_json, sha256_file
from pangu_hif8.run_files import open_run
from pangu_hif8.sections import Page

IDS = ["all", "F1", "F2", "F3", "W", "T"]


@pytest.fixture(scope="module")
def page(finished_sweeps: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    with at(shutil.copytree(finished_sweeps, tmp_path_factory.mktemp("page") / "results")):
        return build_beyond("smoke")


# ---- the whole page --------------------------------------------------------------------------------------


def test_every_section_has_words_a_table_and_a_picture(page: Page) -> None:
    assert list(page.sections) == IDS
    for name, section in page.sections.items():
        assert not section.missing and section.measured and len(section.table)
        picture = page.pictures[name]
        assert picture is not None and picture.stat().st_size > 10_000
        assert section.says or name == "all"
        assert name in page.overview and section.title in page.overview


@pytest.mark.parametrize("name", IDS)
def test_every_numeral_is_among_the_numbers(page: Page, name: str) -> None:
    section = page.sections[name]
    for text in (section.measured, section.finding, section.says.replace("HiF8", "")):
        assert not untraced(text, section.numbers), text


def test_the_table_over_all_has_one_row_a_setting(page: Page) -> None:
    table = page.sections["all"].table
    references = {sweep.id: sweep.reference for sweep in SWEEPS}
    wanted_rows = {(name.split("-")[0], name) for name in VARIANTS} | set(references.items())
    assert set(zip(table["sweep"], table["run"], strict=True)) == wanted_rows
    assert table["cost"].notna().all() and (table["cost is"].str.len() > 5).all()
    own = table["run"].isin(references.values())
    assert set(table.loc[own, "training text against E5, E8"]) == {"(itself)"}
    assert set(table.loc[~own, "training text against E5, E8"]) <= {
        "lower",
        "higher",
        "not resolvable at this scale",
    }


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.id)
def test_quality_is_the_difference_of_the_files(page: Page, finished_sweeps: Path, sweep: Any) -> None:
    table = page.sections[sweep.id].table.set_index("run")
    for name, row in table.iterrows():
        for column, domain in (("training_text", "same_domain"), ("second_domain", "second_domain")):
            value = heldout_difference(str(name), sweep.baseline, domain, finished_sweeps)
            assert row[f"{column}_minus_{sweep.baseline}_nats"] == pytest.approx(value, abs=1e-9)
    domain = "second_domain" if sweep.id == "F1" else "same_domain"
    for name in table.index.drop(sweep.reference):
        value = heldout_difference(str(name), sweep.reference, domain, finished_sweeps)
        assert table.loc[name, f"{domain}_minus_{sweep.reference}_nats"] == pytest.approx(value, abs=1e-9)
        low, high = (
            table.loc[name, f"{domain}_minus_{sweep.reference}_nats_{end}"] for end in ("low", "high")
        )
        expected = "lower" if high < 0 else "higher" if low > 0 else "not resolvable at this scale"
        assert table.loc[name, f"against {sweep.reference}"] == expected


def test_the_summary_names_every_file_and_the_sensitivity(page: Page, finished_sweeps: Path) -> None:
    summary = read_json(page.directory / "summary.json")
    for name in VARIANTS:
        place_ = place(name, finished_sweeps).relative_to(finished_sweeps / "smoke").as_posix()
        assert summary["inputs"][f"{place_}/heldout.csv"] == sha256_file(
            finished_sweeps / "smoke" / place_ / "heldout.csv"
        )
    assert summary["inputs"]["beyond/sensitivity.csv"] == sha256_file(page.directory / "sensitivity.csv")
    assert summary["missing"] == []


# ---- what each sweep has of its own ----------------------------------------------------------------------


def test_costs(page: Page, finished_sweeps: Path) -> None:
    f1, f2 = (page.sections[name].table.set_index("run") for name in ("F1", "F2"))
    cost = heldout_difference("F1-E5-0.7", "E5", "same_domain", finished_sweeps)
    assert f1.loc["F1-E5-0.7", "cost_nats"] == pytest.approx(cost) and f1.loc["E5", "cost_nats"] == 0
    step = read_json(place("F2-E8-0.001", finished_sweeps) / "run.json")["quantized_from_step"]
    assert f2.loc["F2-E8-0.001", "quantized_from_step"] == step != 17
    assert f2.loc["F2-E8-0.001", "cost_pct"] == pytest.approx(100 * (step - 1) / 60)
    assert f2.loc["F2-E8-none", "cost_pct"] == 0 and f2.loc["E8", "quantized_from_step"] == 17
    f3 = page.sections["F3"].table.set_index("run")
    mlp, attention, head = 3 * 64 * 176, 2 * 64 * (64 + 32), 2048 * 64
    for name, kept in (("F3-E8-0", 0), ("E8", 2), ("F3-E8-5-first", 5), ("F3-E8-5-sensitive", 5)):
        share = 1 - (8 - kept) * mlp / (8 * (mlp + attention) + head)
        assert f3.loc[name, "cost_pct"] == pytest.approx(100 * share)


def test_window_shares_and_slack_are_those_of_the_files(page: Page, finished_sweeps: Path) -> None:
    table = page.sections["W"].table.set_index("run")
    assert list(table.index) == ["W-E8-1", "W-E8-4", "E8", "W-E8-64"]
    for name in table.index:
        rows = pd.read_csv(place(name, finished_sweeps) / "saturation.csv")
        rows = rows[(rows["kind"] == "input") & (rows["layer"] != "up_proj") & rows["saturated"].notna()]
        assert table.loc[name, "saturated_pct"] == pytest.approx(100 * rows["saturated"].mean())
        octaves = np.log2(np.maximum(rows["estimate"] / rows["amax"], 1))
        assert table.loc[name, "slack_octaves"] == pytest.approx(octaves.mean())
    shares = table["saturated_pct"].to_list()
    assert shares == sorted(shares, reverse=True)
    assert table["slack_octaves"].is_monotonic_increasing


def test_target_shows_the_samples(page: Page, finished_sweeps: Path) -> None:
    table = page.sections["T"].table.set_index("run")
    rows = pd.read_csv(place("T-E8-56", finished_sweeps) / "saturation.csv")
    rows = rows[(rows["kind"] == "input") & (rows["layer"] != "up_proj") & rows["sqnr_db"].notna()]
    assert table.loc["T-E8-56", "sqnr_db"] == pytest.approx(rows["sqnr_db"].median())
    assert table.loc["T-E8-56", "flushed_to_zero_pct"] == pytest.approx(100 * rows["flushed_share"].mean())
    noise = 100 * 10 ** (-rows["sqnr_db"].median() / 10)
    assert table.loc["T-E8-56", "noise_power_pct"] == pytest.approx(noise)


def test_the_sensitivity_is_told_and_drawn(page: Page) -> None:
    section = page.sections["F3"]
    assert section.numbers["ranking"] == RANKING
    assert "block 3 raises the held-out loss most" in section.measured
    assert section.figure is not None and len(section.figure.axes) == 2


def test_the_spread_is_that_of_the_scaling_state(page: Page, finished_sweeps: Path) -> None:
    """`ScalingState.spread` on the amaxes of the file, each of a block's five slots once."""
    from pangu_hif8.quant_config import QuantConfig
    from pangu_hif8.scaling import ScalingState
    from pangu_hif8.slots import block_slots

    rows = pd.read_csv(place("E8", finished_sweeps) / "saturation.csv")
    amax = rows.set_index(["step", "block", "layer", "kind"])["amax"]
    names = [name for block in range(1, 7) for name in block_slots(block, ("input", "weight"))]
    state = ScalingState(names, QuantConfig(amax_compute_algo="max_window", amax_history_len=16))
    trace = spread_trace(open_run(place("E8", finished_sweeps)))
    assert list(trace.index) == list(range(16, 61))
    rel = 1e-3  # float32 there: 1e-7 of an amax, over a spread of some 4e-4
    for step in range(1, 21):
        for slot, name in enumerate(names):
            block, layers, kind = name.split(".")
            state.history[(20 - step) % 16, slot] = amax[step, int(block), layers.split(",")[0], kind]
        if step >= 16:
            assert trace.loc[step, "all"] == pytest.approx(float(state.spread().median()), rel=rel)
    assert f"{trace['all'].iloc[0]:.2g} in the median tensor" in page.sections["F2"].measured
