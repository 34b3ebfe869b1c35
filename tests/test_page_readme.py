"""README's table of a page's findings."""

from __future__ import annotations

from pathlib import Path

import pytest

from pangu_hif8 import page_stage
from pangu_hif8.cli import main
from pangu_hif8.errors import UserError
from pangu_hif8.files import write_json
from pangu_hif8.page_readme import README, findings_in_readme, findings_markdown, update_readme
from pangu_hif8.paths import ROOT

SECTIONS = [
    {"id": "A1", "title": "labels?", "finding": "1 of 2", "measured": "more", "missing": "", "numbers": {}},
    {"id": "A2", "title": "weights?", "finding": "", "measured": "3 | 4", "missing": "", "numbers": {}},
    {"id": "A3", "title": "clipping?", "finding": "", "measured": "", "missing": "no runs", "numbers": {}},
]
SECONDS = {"E1/seed0": 50.0, "E1-custom-12345678/seed0": 90.0, "E2-custom-12345678/seed0": 30.0}


def test_it_says_what_was_found_or_how_to_find_out(results: Path) -> None:
    assert findings_markdown("audit", "smoke") == "`make audit PROFILE=smoke` fills this table in.\n"
    directory = results / "smoke" / "audit"
    summary = {"sections": SECTIONS, "run_seconds": SECONDS}
    write_json(directory / "summary.json", summary)
    assert findings_markdown("audit", "smoke") == (
        "|  | question | found |\n|---|---|---|\n| A1 | labels? | 1 of 2 |\n| A2 | weights? | 3 \\| 4 |\n"
        "| A3 | clipping? | not measured |\n\nIts 2 runs of its own took 2 min 0 s.\n"
    )
    (directory / "figures").mkdir()
    (directory / "figures" / "A1.png").write_bytes(b"")
    summary["sections"] = [SECTIONS[0] | {"numbers": {"dose_seconds": 61.2}}]
    write_json(directory / "summary.json", summary)
    end = (
        "took 2 min 0 s, the dose response 1 min 1 s.\n\n![Labels shifted twice against labels shifted once]"
    )
    assert findings_markdown("audit", "smoke").endswith(f"{end}(results/smoke/audit/figures/A1.png)\n")


def test_only_what_stands_between_the_markers_changes(results: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- audit:begin -->\nold\n<!-- audit:end -->\nafter\n")
    update_readme("audit", "smoke", readme)
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert findings_in_readme("audit", readme) == findings_markdown("audit", "smoke")


@pytest.mark.parametrize(
    "text", ["", "<!-- audit:begin -->", "<!-- audit:end --><!-- audit:begin -->", "<!-- audit:begin -->" * 2]
)
def test_a_readme_without_its_markers_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(UserError, match="needs one <!-- audit:begin --> and, after it, one"):
        update_readme("audit", "smoke", tmp_path / "README.md")
    assert findings_in_readme("audit", tmp_path / "README.md") is None


def test_the_command_rewrites_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []
    monkeypatch.setattr(page_stage, "stage_page", lambda *_, **__: None)
    monkeypatch.setattr("pangu_hif8.page_readme.update_readme", lambda *given: calls.append(given))
    assert main(["audit", "--profile", "smoke"]) == 0 and calls == []
    assert main(["audit", "--readme"]) == 0 and calls == [("audit", "laptop")]


def test_the_committed_table_is_the_one_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANGU_HIF8_RESULTS", str(ROOT / "results"))
    assert findings_in_readme("audit", README) == findings_markdown("audit", "laptop")
