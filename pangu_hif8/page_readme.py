"""The findings of a page as a table in README.md, between markers that name the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json, write_text
from pangu_hif8.paths import ROOT
from pangu_hif8.sections import page_dir
from pangu_hif8.tables import to_markdown
from pangu_hif8.wall_time import duration

README = ROOT / "README.md"


def findings_markdown(page: str, profile: str) -> str:
    """One row a section of results/<profile>/<page>/summary.json; Markdown, ends with a line end."""
    path = page_dir(profile, page) / "summary.json"
    if not path.is_file():
        return f"`make {page} PROFILE={profile}` fills this table in.\n"
    summary = read_json(path)
    rows = [{"": s["id"], "question": s["title"], "found": _found(s)} for s in summary["sections"]]
    return f"{to_markdown(pd.DataFrame(rows))}\n{_time(summary)}{_picture(path.parent)}"


def _time(summary: dict[str, Any]) -> str:
    """What the page's own runs and measurements took."""
    seconds = [s for name, s in summary["run_seconds"].items() if "-custom-" in name and s]
    dose = [s["numbers"].get("dose_seconds") for s in summary["sections"]]
    measured = [value for value in dose if value]
    if not seconds:
        return ""
    text = f"Its {len(seconds)} runs of its own took {duration(sum(seconds))}"
    return f"{text}{f', the dose response {duration(sum(measured))}' if measured else ''}.\n"


def _picture(directory: Path) -> str:
    """The first section's picture, by its place under results/."""
    picture = directory / "figures" / "A1.png"
    if not picture.is_file():
        return ""
    place = picture.relative_to(directory.parent.parent).as_posix()
    return f"\n![Labels shifted twice against labels shifted once](results/{place})\n"


def _found(section: dict[str, Any]) -> str:
    if section["missing"]:
        return "not measured"
    return str(section["finding"] or section["measured"])


def update_readme(page: str, profile: str, readme: Path = README) -> None:
    """Rewrite the table between README's markers. Raises UserError when they are not there once each."""
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    begin, end = _markers(page)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UserError(f"{readme} needs one {begin} and, after it, one {end}")
    block = f"{begin}\n{findings_markdown(page, profile)}{end}"
    write_text(readme, re.sub(f"{begin}.*{end}", lambda _: block, text, flags=re.DOTALL))


def findings_in_readme(page: str, readme: Path = README) -> str | None:
    """What stands between README's markers, or None without them."""
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    begin, end = _markers(page)
    found = re.search(f"{begin}\n(.*){end}", text, flags=re.DOTALL)
    return found.group(1) if found else None


def _markers(page: str) -> tuple[str, str]:
    return f"<!-- {page}:begin -->", f"<!-- {page}:end -->"
