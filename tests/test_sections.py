"""Pages of sections: what is written, what is said, and what goes when it can no longer be made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_results import Dial, write_run
from IPython.core.interactiveshell import InteractiveShell

from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.metrics import Interval
from pangu_hif8.page_facts import Facts
from pangu_hif8.plot_style import new_figure
from pangu_hif8.results import ProfileResults, load_profile_results
from pangu_hif8.sections import Page, Section, page_dir, with_intervals, write_page


@pytest.fixture
def found(results: Path) -> ProfileResults:
    write_run(results, "E0", "smoke", 0, Dial())
    return load_profile_results("smoke")


def full(_: ProfileResults) -> Section:
    table = pd.DataFrame({"run": ["a|b", "c"], "loss_nats": [0.5, None], "empty": [None, None]})
    table = table.assign(loss_nats_low=[0.25, None], loss_nats_high=[0.75, None])
    figure, axes = new_figure()
    axes[0][0].plot([1, 2], [3, 4])
    text = {"says": "the text says", "does": "the code does", "measured": "0.5 of all", "finding": "half"}
    return Section("P1", "the first?", numbers={"share": 0.5}, table=table, figure=figure, **text)


def short(_: ProfileResults) -> Section:
    return Section("P2", "the second?", measured="nothing more", numbers={})


def lost(_: ProfileResults) -> Section:
    return Section("P3", "the third?", says="something", missing="E5 was not run")


def page_of(found: ProfileResults, *builders: Any) -> Page:
    return write_page("trial", found, builders)


def test_a_page_is_written_and_read_back(found: ProfileResults) -> None:
    page = page_of(found, full, short, lost)
    names = {p.relative_to(page.directory).as_posix() for p in page.directory.rglob("*") if p.is_file()}
    assert names == {"figures/P1.png", "figures/P1.svg", "tables/P1.csv", "summary.json"}
    assert page.directory == page_dir("smoke", "trial")
    summary = json.loads((page.directory / "summary.json").read_text())
    assert summary["profile"] == "smoke" and summary["page"] == "trial"
    assert summary["sections"][0] == {
        "id": "P1", "title": "the first?", "measured": "0.5 of all", "finding": "half", "missing": "",
        "numbers": {"share": 0.5},
    }  # fmt: skip
    assert summary["sections"][2]["missing"] == "E5 was not run"
    for name, known in summary["inputs"].items():
        assert sha256_file(page.directory.parent / name) == known
    assert "E1 (seed 0): not run" in summary["missing"]


def test_the_same_page_twice_is_the_same_to_the_byte(found: ProfileResults) -> None:
    first = {p.name: sha256_file(p) for p in page_of(found, full).directory.rglob("*") if p.is_file()}
    assert first == {p.name: sha256_file(p) for p in page_of(found, full).directory.rglob("*") if p.is_file()}


def test_text_in_the_reader_s_order(found: ProfileResults) -> None:
    page = page_of(found, full, short, lost)
    assert page.text("P1") == (
        "**The text:** the text says\n\n**The published code:** the code does\n\n**Measured:** 0.5 of all\n\n"
        "| run | loss_nats |\n|---|---|\n| a\\|b | 0.5000 [0.2500, 0.7500] |\n| c |  |\n"
    )
    assert page.text("P2") == "**Measured:** nothing more\n\n"
    assert page.text("P3") == "Not measured: E5 was not run"
    lines = page.overview.splitlines()
    assert lines[2:5] == [
        "| P1 | the first? | half |",
        "| P2 | the second? | nothing more |",
        "| P3 | the third? | not measured: E5 was not run |",
    ]
    assert "- missing: E1 (seed 0): not run" in lines


def test_an_unknown_section_names_the_valid_ones(found: ProfileResults) -> None:
    page = page_of(found, full, short)
    for call in (page.text, page.show):
        with pytest.raises(UserError, match="no section 'P9'; valid: P1, P2"):
            call("P9")


def test_show_displays_words_and_picture(found: ProfileResults, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    InteractiveShell.instance()
    monkeypatch.setattr("IPython.display.display", lambda *objects: shown.extend(objects))
    page = page_of(found, full, lost)
    page.show("P1")
    page.show("P3")
    assert [type(item).__name__ for item in shown] == ["Markdown", "Image", "Markdown"]


def test_what_can_no_longer_be_made_goes(found: ProfileResults) -> None:
    page = page_of(found, full)
    (page.directory / "figures" / "old.svg").write_text("")
    (page.directory / "dose.csv").write_text("kept\n")
    page_of(found, short)
    left = {p.relative_to(page.directory).as_posix() for p in page.directory.rglob("*") if p.is_file()}
    assert left == {"summary.json", "dose.csv"}


def test_intervals_are_joined_and_other_columns_left() -> None:
    table = pd.DataFrame({"x_pct": [1.0], "x_pct_low": [0.5], "y_low": [3], "x_pct_high": [1.5]})
    assert with_intervals(table).to_dict("records") == [{"x_pct": "1.00 [0.50, 1.50]", "y_low": 3}]


# ---- numbers and words ---------------------------------------------------------------------------------


def test_words_say_whether_a_difference_can_be_told_from_zero() -> None:
    facts = Facts()
    assert facts.points("a", Interval(-2.0, -3.0, -1.0)) == "-2.00 points [-3.00, -1.00]"
    assert facts.nats("b", Interval(0.01, -0.01, 0.03)) == (
        "+0.0100 nats [-0.0100, +0.0300] (not resolvable at this scale; 0.0286 nats would have shown)"
    )
    assert facts.nats("c", Interval(0.0, 0.0, 0.0)) == "no difference"
    assert facts.nats("d", Interval(2e-5, 1e-5, 3e-5)) == "+2.0e-05 nats [+1.0e-05, +3.0e-05]"
    alone = Interval(0.5, float("-inf"), float("inf"))
    assert facts.points("e", alone).endswith("(not resolvable at this scale)")
    assert facts.numbers["a_points"] == -2 and facts.numbers["b_nats_high"] == 0.03
    assert facts.numbers["e_points_high"] is None


def test_shares_and_plain_values() -> None:
    facts = Facts()
    assert facts.share("s", Interval(0.5, 0.25, 0.75)) == "50.0% [25.0, 75.0]"
    assert facts.percent("p", Interval(0.5, 0.25, 0.75), 2) == "0.50% [0.25, 0.75]"
    assert facts.value("n", 7, "d") == "7" and facts.value("x", float("nan")) == "none"
    assert facts.numbers["s_pct"] == 50 and facts.numbers["n"] == 7 and facts.numbers["x"] is None
