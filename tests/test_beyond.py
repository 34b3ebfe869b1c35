"""The page of sweeps on synthetic results: its numbers against the files, its words against its numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from fake_beyond import RANKING, write_sensitivity, write_sweeps
from numerals import untraced

from pangu_hif8 import beyond, page_stage
from pangu_hif8.beyond import SWEEPS, build_beyond, measure_beyond
from pangu_hif8.beyond_spread import spread_trace
from pangu_hif8.beyond_variants import beyond_variants
from pangu_hif8.config import load_profile
from pangu_hif8.files import read_json, sha256_file
from pangu_hif8.run import directory_of
from pangu_hif8.run_files import open_run
from pangu_hif8.sections import Page
from pangu_hif8.variant_runs import pending, wanted

IDS = ["all", "F1", "F2", "F3", "W", "T"]
VARIANTS = {v.id: v for v in beyond_variants(load_profile("smoke"), RANKING)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run and the sensitivity, one seed."""
    base = tmp_path_factory.mktemp("sweeps") / "results"
    with at(base):
        write_sweeps(base)
    return base


@pytest.fixture(scope="module")
def page(tree: Path) -> Page:
    with at(tree):
        return build_beyond("smoke")


class at:
    """Results lie in this directory."""

    def __init__(self, base: Path) -> None:
        self.patch, self.base = pytest.MonkeyPatch(), base

    def __enter__(self) -> None:
        self.patch.setenv("PANGU_HIF8_RESULTS", str(self.base))

    def __exit__(self, *error: object) -> None:
        self.patch.undo()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and not saved, which takes most of a page's time."""
    monkeypatch.setattr("pangu_hif8.sections.save_figure", lambda figure, place, name: (place / name, place))


@pytest.fixture
def copy(tree: Path, results: Path, undrawn: None) -> Path:
    """The same results, to be changed."""
    return Path(shutil.copytree(tree, results))


def heldout_difference(name: str, other: str, domain: str, base: Path, seed: int = 0) -> float:
    """Mean difference of two runs' held-out losses, read from the files."""
    return losses(name, domain, base, seed) - losses(other, domain, base, seed)


def losses(name: str, domain: str, base: Path, seed: int) -> float:
    table = pd.read_csv(place(name, base, seed) / "heldout.csv")
    return float(table.loc[table["domain"] == domain, "loss"].mean())


def place(name: str, base: Path, seed: int = 0) -> Path:
    with at(base):
        found = directory_of(VARIANTS[name].config("smoke", seed)) if name in VARIANTS else None
    return found or base / "smoke" / name / f"seed{seed}"


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
def test_quality_is_the_difference_of_the_files(page: Page, tree: Path, sweep: Any) -> None:
    table = page.sections[sweep.id].table.set_index("run")
    for name, row in table.iterrows():
        for column, domain in (("training_text", "same_domain"), ("second_domain", "second_domain")):
            value = heldout_difference(str(name), sweep.baseline, domain, tree)
            assert row[f"{column}_minus_{sweep.baseline}_nats"] == pytest.approx(value, abs=1e-9)
    domain = "second_domain" if sweep.id == "F1" else "same_domain"
    for name in table.index.drop(sweep.reference):
        value = heldout_difference(str(name), sweep.reference, domain, tree)
        assert table.loc[name, f"{domain}_minus_{sweep.reference}_nats"] == pytest.approx(value, abs=1e-9)
        low, high = (
            table.loc[name, f"{domain}_minus_{sweep.reference}_nats_{end}"] for end in ("low", "high")
        )
        expected = "lower" if high < 0 else "higher" if low > 0 else "not resolvable at this scale"
        assert table.loc[name, f"against {sweep.reference}"] == expected


def test_the_summary_names_every_file_and_the_sensitivity(page: Page, tree: Path) -> None:
    summary = read_json(page.directory / "summary.json")
    for name in VARIANTS:
        place_ = place(name, tree).relative_to(tree / "smoke").as_posix()
        assert summary["inputs"][f"{place_}/heldout.csv"] == sha256_file(
            tree / "smoke" / place_ / "heldout.csv"
        )
    assert summary["inputs"]["beyond/sensitivity.csv"] == sha256_file(page.directory / "sensitivity.csv")
    assert summary["missing"] == []


# ---- what each sweep has of its own ----------------------------------------------------------------------


def test_costs(page: Page, tree: Path) -> None:
    f1, f2 = (page.sections[name].table.set_index("run") for name in ("F1", "F2"))
    cost = heldout_difference("F1-E5-0.7", "E5", "same_domain", tree)
    assert f1.loc["F1-E5-0.7", "cost_nats"] == pytest.approx(cost) and f1.loc["E5", "cost_nats"] == 0
    step = read_json(place("F2-E8-0.001", tree) / "run.json")["quantized_from_step"]
    assert f2.loc["F2-E8-0.001", "quantized_from_step"] == step != 17
    assert f2.loc["F2-E8-0.001", "cost_pct"] == pytest.approx(100 * (step - 1) / 60)
    assert f2.loc["F2-E8-none", "cost_pct"] == 0 and f2.loc["E8", "quantized_from_step"] == 17
    f3 = page.sections["F3"].table.set_index("run")
    mlp, attention, head = 3 * 64 * 176, 2 * 64 * (64 + 32), 2048 * 64
    for name, kept in (("F3-E8-0", 0), ("E8", 2), ("F3-E8-5-first", 5), ("F3-E8-5-sensitive", 5)):
        share = 1 - (8 - kept) * mlp / (8 * (mlp + attention) + head)
        assert f3.loc[name, "cost_pct"] == pytest.approx(100 * share)


def test_window_shares_and_slack_are_those_of_the_files(page: Page, tree: Path) -> None:
    table = page.sections["W"].table.set_index("run")
    assert list(table.index) == ["W-E8-1", "W-E8-4", "E8", "W-E8-64"]
    for name in table.index:
        rows = pd.read_csv(place(name, tree) / "saturation.csv")
        rows = rows[(rows["kind"] == "input") & (rows["layer"] != "up_proj") & rows["saturated"].notna()]
        assert table.loc[name, "saturated_pct"] == pytest.approx(100 * rows["saturated"].mean())
        octaves = np.log2(np.maximum(rows["estimate"] / rows["amax"], 1))
        assert table.loc[name, "slack_octaves"] == pytest.approx(octaves.mean())
    shares = table["saturated_pct"].to_list()
    assert shares == sorted(shares, reverse=True)
    assert table["slack_octaves"].is_monotonic_increasing


def test_target_shows_the_samples(page: Page, tree: Path) -> None:
    table = page.sections["T"].table.set_index("run")
    rows = pd.read_csv(place("T-E8-56", tree) / "saturation.csv")
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


# ---- what is not there -----------------------------------------------------------------------------------


def remove(base: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(place(name, base).parent)


def test_a_missing_or_damaged_run_is_named_and_the_rest_shown(copy: Path) -> None:
    remove(copy, "W-E8-4", "T-E8-8", "T-E8-56", "T-E8-224")
    (place("F1-E5-0.7", copy) / "heldout.csv").write_text("domain,seq")
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
    assert not (found.directory / "tables" / "T.csv").exists()
    assert "T" not in set(found.sections["all"].table["sweep"])


def test_without_what_a_sweep_is_compared_with_it_says_so(copy: Path) -> None:
    shutil.rmtree(copy / "smoke" / "E6")
    found = build_beyond("smoke")
    assert not found.sections["F1"].missing
    for name in ("F2", "F3", "W", "T"):
        assert found.sections[name].missing == "E6 missing (not run)"
    assert set(found.sections["all"].table["sweep"]) == {"F1"}
    assert [text for text in found.missing if text.startswith("E")] == ["E6 (seed 0): not run"]


def test_without_any_sweep_every_section_says_so(copy: Path) -> None:
    remove(copy, *VARIANTS)
    found = build_beyond("smoke")
    assert all(section.missing for section in found.sections.values())
    assert all(picture is None for picture in found.pictures.values())


def test_without_the_sensitivity_the_sweep_has_first_and_last_ones(copy: Path) -> None:
    (copy / "smoke" / "beyond" / "sensitivity.json").unlink()
    section = build_beyond("smoke").sections["F3"]
    assert "The sensitivity of the blocks is not measured." in section.measured
    assert set(section.table["run"]) == {"F3-E8-0", "E8", "F3-E8-5-first", "F3-E8-5-last"}
    assert section.figure is not None and len(section.figure.axes) == 1
    assert not untraced(section.measured, section.numbers)


def test_runs_without_samples_have_no_sqnr(copy: Path) -> None:
    for name in ("E8", "T-E8-8", "T-E8-56", "T-E8-224"):
        path = place(name, copy) / "saturation.csv"
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


def test_the_ranking_reaches_the_runs_and_the_stage(copy: Path) -> None:
    listed = {variant.id: variant for variant in page_stage.variants_of("beyond", "smoke")}
    assert listed["F3-E8-5-sensitive"].changes["hp_blocks"] == sorted(RANKING[:5])
    with mock.patch("pangu_hif8.variant_runs.is_current", return_value=True):
        assert pending(wanted(listed.values(), "smoke", [0])) == []
        remove(copy, "F3-E8-5-sensitive")
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


def test_the_spread_is_that_of_the_scaling_state(page: Page, tree: Path) -> None:
    """`ScalingState.spread` on the amaxes of the file, each of a block's five slots once."""
    from pangu_hif8.quant_config import QuantConfig
    from pangu_hif8.scaling import ScalingState
    from pangu_hif8.slots import block_slots

    rows = pd.read_csv(place("E8", tree) / "saturation.csv")
    amax = rows.set_index(["step", "block", "layer", "kind"])["amax"]
    names = [name for block in range(1, 7) for name in block_slots(block, ("input", "weight"))]
    state = ScalingState(names, QuantConfig(amax_compute_algo="max_window", amax_history_len=16))
    trace = spread_trace(open_run(place("E8", tree)))
    assert list(trace.index) == list(range(16, 61))
    rel = 1e-3  # float32 there: 1e-7 of an amax, over a spread of some 4e-4
    for step in range(1, 21):
        for slot, name in enumerate(names):
            block, layers, kind = name.split(".")
            state.history[(20 - step) % 16, slot] = amax[step, int(block), layers.split(",")[0], kind]
        if step >= 16:
            assert trace.loc[step, "all"] == pytest.approx(float(state.spread().median()), rel=rel)
    assert f"{trace['all'].iloc[0]:.2g} in the median tensor" in page.sections["F2"].measured
