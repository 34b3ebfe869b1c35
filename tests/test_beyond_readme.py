"""README's words on the sweeps equal the committed pages, and are rewritten only between their markers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pangu_hif8.beyond_readme import BEGIN, END, NOTHING, beyond_text, update_readme
from pangu_hif8.errors import UserError
from pangu_hif8.files import write_json
from pangu_hif8.paths import ROOT


def write_summary(results: Path, profile: str) -> None:
    """A page with one sweep that found something, one that was not measured, and the table over all."""
    parts = [
        {"id": "all", "title": "Every setting", "finding": "", "measured": "3 lower.", "missing": ""},
        {"id": "W", "title": "Window", "finding": "Of 4, 1 lower.", "measured": "Long.", "missing": ""},
        {"id": "T", "title": "Target", "finding": "", "measured": "", "missing": "not run"},
    ]
    write_json(results / profile / "beyond" / "summary.json", {"sections": parts})


def test_the_readme_says_what_is_committed() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{BEGIN}\n{beyond_text()}{END}" in text


def test_committed_pages_are_told_with_a_picture_where_there_is_one(tmp_path: Path) -> None:
    assert beyond_text(tmp_path) == NOTHING
    write_summary(tmp_path, "smoke")  # never committed
    assert beyond_text(tmp_path) == NOTHING
    write_summary(tmp_path, "laptop")
    text = beyond_text(tmp_path)
    assert "laptop (SmolLM2-135M" in text and "| W | Window | Of 4, 1 lower. |" in text
    assert "3 lower." in text and "Target" not in text and "![" not in text
    picture = tmp_path / "laptop" / "beyond" / "figures" / "all.png"
    picture.parent.mkdir()
    picture.touch()
    assert "(results/laptop/beyond/figures/all.png)" in beyond_text(tmp_path)


def test_only_the_block_is_rewritten(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    update_readme(readme, tmp_path)
    assert readme.read_text(encoding="utf-8") == f"before\n{BEGIN}\n{NOTHING}{END}\nafter\n"


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_readme_without_the_markers_is_refused(tmp_path: Path, text: str) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="needs one"):
        update_readme(readme, tmp_path)
