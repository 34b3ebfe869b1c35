"""The audit's page on synthetic results: what each section says, shows and leaves out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_results import Dial, write_tree
from fake_variants import DIALS, write_audit, write_dose, write_variants
from numerals import untraced

from pangu_hif8.audit import SECTIONS, build_audit
from pangu_hif8.audit_variants import audit_variants
from pangu_hif8.config import load_profile
from pangu_hif8.dose_files import EXACT, read_dose
from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.paths import ROOT
from pangu_hif8.results import ProfileResults, load_profile_results
from pangu_hif8.run_checks import Unusable
from pangu_hif8.sections import Page, Section
from pangu_hif8.variant_runs import variant_results

LAPTOP = ROOT / "results" / "laptop" / "audit" / "summary.json"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(base))
        write_audit(base)
    return base


@pytest.fixture(scope="module")
def page(tree: Path) -> Iterator[Page]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(tree))
        yield build_audit("smoke")


@pytest.fixture(scope="module")
def found(tree: Path) -> Iterator[ProfileResults]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(tree))
        yield variant_results(audit_variants(load_profile("smoke")), "smoke")


def numbers(page: Page, section: str) -> dict[str, Any]:
    return page.sections[section].numbers


def test_every_section_is_measured_with_figure_and_table(page: Page) -> None:
    assert list(page.sections) == list(SECTIONS) == [f"A{i}" for i in range(1, 9)]
    assert page.missing == [] and page.notices == []
    for name, section in page.sections.items():
        assert section.id == name and not section.missing
        assert section.says and section.does and section.measured and section.finding
        assert len(section.table) and (page.directory / "tables" / f"{name}.csv").is_file()
        assert page.pictures[name] == page.directory / "figures" / f"{name}.png"
        assert "not there" not in section.measured.lower()


@pytest.mark.parametrize("name", SECTIONS)
def test_every_numeral_is_among_the_numbers(page: Page, name: str) -> None:
    section = page.sections[name]
    assert untraced(section.measured, section.numbers) == []
    assert untraced(section.finding, section.numbers) == []
    assert re.search(r"\d", re.sub(r"[AE]\d", "", section.measured))


def test_the_summary_holds_it_and_names_its_inputs(page: Page, tree: Path) -> None:
    summary = json.loads((page.directory / "summary.json").read_text())
    assert [s["id"] for s in summary["sections"]] == list(SECTIONS)
    assert summary["sections"][0]["numbers"] == page.sections["A1"].numbers
    run = next(name for name in summary["inputs"] if name.startswith("E1-custom"))
    assert summary["inputs"][run] == sha256_file(tree / "smoke" / run)


def test_labels_show_the_dials(page: Page) -> None:
    found = numbers(page, "A1")
    assert found["A1-E1_heldout_nats"] == pytest.approx(1.2, abs=0.01)
    assert found["A1-E6_heldout_nats"] == pytest.approx(0.2, abs=0.01)
    assert found["A1-E1_minus_A1-E6_points"] == pytest.approx(-18, abs=0.5)
    assert found["E1_minus_E6_points"] == 0
    assert found["published_gap_points"] == pytest.approx(-8.375, abs=0.01)
    assert "11.38" in page.sections["A1"].does and "11.94" in page.sections["A1"].does


def test_weights_show_the_moved_share_and_what_a_repetition_differs_by(page: Page) -> None:
    found = numbers(page, "A2")
    assert found["A2-E1-bfloat16_moved_first_pct"] == 5 and found["A2-E6-float32_moved_last_pct"] == 99
    assert (found["A2-E1-float32_moved_first_step"], found["A2-E1-float32_moved_last_step"]) == (20, 60)
    same = "A2-E1-float32 repeats E1's settings on one processor, with the same losses and answers"
    assert same in page.sections["A2"].measured


def test_a_repetition_on_another_processor_is_named(tree: Path, results: Path) -> None:
    shutil.copytree(tree, results)
    variant = next(v for v in audit_variants(load_profile("smoke")) if v.id == "A2-E1-float32")
    timing = results / "smoke" / variant.config("smoke", 0).run_name / "seed0" / "train_timing.json"
    timing.write_text(timing.read_text().replace("fake", "other 7"))
    steps = timing.with_name("steps.csv")
    change(steps, steps.read_text().splitlines()[3].split(",")[1], "3.125")
    taper = next(v for v in audit_variants(load_profile("smoke")) if v.id == "A3-E2-taper")
    other = results / "smoke" / taper.config("smoke", 0).run_name / "seed0" / "train_timing.json"
    other.write_text(timing.read_text())
    page = build_audit("smoke")
    assert "on two processors (fake; other 7): the training losses differ by" in page.sections["A2"].measured
    assert untraced(page.sections["A2"].measured, page.sections["A2"].numbers) == []
    notice = "made on another processor (other 7) than the experiments (fake)"
    assert page.notices[0].startswith(notice) and page.notices[0].endswith(": A2-E1-float32, A3-E2-taper")
    across = "Compared across processors, whose difference is in it: A3-E2-taper and E2, A3-E2-taper and E1."
    assert page.sections["A3"].measured.endswith(across)
    assert "across processors" not in page.sections["A5"].measured
    assert notice in page.overview


def test_saturation_costs_by_dose(page: Page) -> None:
    found = numbers(page, "A3")
    assert found["dose_all_saturate_least_nats"] == pytest.approx(0.375, abs=0.002)
    assert found["dose_all_taper_least_nats"] == pytest.approx(0.0015, abs=0.002)
    assert found["dose_saturate_from_factor"] == 0.9
    assert found["dose_num_items"] == 40
    assert len(page.sections["A3"].table) == 31 + 4
    assert found["dose_csv_sha256"] == sha256_file(page.directory / "dose.csv")


def test_a_dose_that_costs_at_every_factor_has_the_mildest_as_its_threshold(results: Path) -> None:
    write_tree(results, "smoke")
    write_dose(taper=0.4)
    section = build_audit("smoke").sections["A3"]
    assert section.numbers["dose_taper_from_factor"] == section.numbers["dose_saturate_from_factor"] == 0.9
    assert "tapered from a factor of 0.9 on" in section.measured


def test_the_window_s_rows_have_their_shares(page: Page) -> None:
    found, table = numbers(page, "A4"), page.sections["A4"].table
    assert found["A4-E8-micro_saturated_pct"] == pytest.approx(20, abs=1)
    assert found["A4-E8-steps_saturated_pct"] == pytest.approx(100 / 17, abs=2)
    assert found["A4-E8-published_heldout_nats"] == pytest.approx(0.01, abs=0.002)
    assert list(table["run"][:4]) == ["A4-E8-steps", "A4-E8-micro", "A4-E8-emptied", "A4-E8-published"]
    assert table["ape_pct"].notna().tolist() == [True] * 4 + [False] * 3


def test_the_warm_up_is_compared_over_steps_that_all_quantize(page: Page) -> None:
    assert numbers(page, "A5")["from_step"] == load_profile("smoke").train.bf16_warmup_steps + 1
    assert numbers(page, "A5")["A5-E8-no-warmup_ape_pct"] > numbers(page, "A5")["E8_ape_pct"]


def test_gradients_have_a_cost_and_a_share(page: Page) -> None:
    found = numbers(page, "A6")
    assert found["A6-E8-gradients_heldout_nats"] == pytest.approx(0.02, abs=0.003)
    assert found["A6-E8-gradients_gradient_saturated_pct"] == pytest.approx(100 / 17, abs=3)
    assert found["A6-E8-gradients_gradient_sqnr_db"] == pytest.approx(27, abs=0.5)


def test_independent_amaxes_obey_the_record_law(page: Page) -> None:
    table = page.sections["A8"].table
    inputs = table[table["kind"] == "input"]
    assert (abs(inputs["saturated_pct"] - inputs["law_pct"]) < 0.1 * inputs["law_pct"] + 1).all()
    assert set(table["window"]) == {1, 2, 4, 8, 16, 32}  # 60 steps are too few for 64


# ---- what is missing -----------------------------------------------------------------------------------


def test_without_variants_what_can_be_said_is_said(results: Path) -> None:
    write_tree(results, "smoke")
    page = build_audit("smoke")
    said = [name for name, section in page.sections.items() if not section.missing]
    assert said == ["A7", "A8"]
    assert page.text("A1") == "Not measured: A1-E1 missing (not run); A1-E6 missing (not run)"
    assert "dose response: not measured yet" in page.text("A3")
    assert "A4-E8-micro (seed 0): not run" in page.missing
    assert not (page.directory / "figures" / "A1.png").exists()


def test_a_section_with_some_of_its_runs_shows_them_and_names_the_others(results: Path) -> None:
    write_tree(results, "smoke")
    have = {
        "A1-E1",
        "A2-E1-bfloat16",
        "A3-E2-taper",
        "A4-E6",
        "A4-E8-micro",
        "A5-E7-warmup",
        "A6-E8-gradients",
    }
    write_variants(results, [v for v in audit_variants(load_profile("smoke")) if v.id in have], dials=DIALS)
    page = build_audit("smoke")
    lost = {
        "A1": "A1-E6",
        "A2": "A2-E1-float32, A2-E6-float32, A2-E6-bfloat16",
        "A3": "A3-E7-taper",
        "A4": "A4-E8-steps, A4-E8-emptied, A4-E8-published",
        "A5": "A5-E8-no-warmup",
        "A6": "A6-E5-gradients",
    }
    for name, runs in lost.items():
        section = page.sections[name]
        assert section.measured.endswith(f"Not there yet: {runs}."), name
        assert not section.missing and page.pictures[name] and len(section.table)
        assert untraced(section.measured, section.numbers) == [], name


def test_a_section_that_cannot_be_compared_says_why_and_costs_the_others_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(found: ProfileResults) -> Section:
        raise UserError("E7 and E6 have no step that neither skipped")

    write_audit(results)
    monkeypatch.setitem(SECTIONS, "A5", fails)
    page = build_audit("smoke")
    assert [name for name, section in page.sections.items() if section.missing] == ["A5"]
    assert page.text("A5") == "Not measured: E7 and E6 have no step that neither skipped"


@pytest.mark.parametrize("lost", ["E0", "E1", "E2", "E6", "E7", "E8"])
def test_an_experiment_that_is_missing_stops_no_section(
    found: ProfileResults, tree: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(tree))
    runs = {key: run for key, run in found.runs.items() if key[0] != lost}
    sections = [build(replace(found, runs=runs)) for build in SECTIONS.values()]
    assert [s.id for s in sections if s.missing] == (["A5"] if lost == "E6" else [])
    assert all(bool(s.missing) != bool(s.measured) for s in sections)
    assert [untraced(s.measured, s.numbers) for s in sections] == [[]] * 8


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda base: (base / "dose.csv").write_text("point\n"), "dose.csv is missing or damaged"),
        (lambda base: (base / "dose.json").write_text("{"), "dose.json is damaged"),
        (lambda base: (base / "dose.json").unlink(), "not measured yet"),
        (lambda base: change(base / "dose.json", "m" * 64, "n" * 64), "do not have the same model"),
        (lambda base: change(base / "dose.json", "i" * 64, "j" * 64), "do not have the same items"),
    ],
)
def test_a_damaged_or_foreign_dose_response_is_refused(
    tree: Path, results: Path, damage: Any, words: str
) -> None:
    for name in ("E0", "audit"):
        shutil.copytree(tree / "smoke" / name, results / "smoke" / name)
    assert read_dose(load_profile_results("smoke")).values(EXACT).size == 40
    damage(results / "smoke" / "audit")
    with pytest.raises(Unusable, match=words):
        read_dose(load_profile_results("smoke"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_several_seeds_give_intervals_over_both(results: Path) -> None:
    write_tree(results, "smoke", seeds=(0, 1, 2))
    own = [v for v in audit_variants(load_profile("smoke")) if v.id.startswith("A1")]
    write_variants(results, own, seeds=(0, 1, 2), dials={"A1-E1": Dial(heldout_shift=1.0)})
    section = build_audit("smoke").sections["A1"]
    assert len(section.numbers["A1-E1_heldout_nats_by_seed"]) == 3
    assert untraced(section.measured, section.numbers) == []


# ---- what is committed ---------------------------------------------------------------------------------


@pytest.mark.skipif(not LAPTOP.is_file(), reason="laptop's audit is not in this checkout")
def test_the_committed_page_says_nothing_that_is_not_among_its_numbers() -> None:
    for section in json.loads(LAPTOP.read_text())["sections"]:
        for text in (section["measured"], section["finding"]):
            assert untraced(text, section["numbers"]) == [], section["id"]
