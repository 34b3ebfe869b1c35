"""README's words on the sweeps: what the committed pages found, a line a sweep, and one picture.

They stand between markers and come from results/<profile>/beyond/summary.json of the repository itself; a
test keeps them equal.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json, write_text
from pangu_hif8.paths import ROOT
from pangu_hif8.tables import to_markdown

BEGIN, END = "<!-- beyond:begin -->", "<!-- beyond:end -->"
COMMITTED = ("laptop", "tiny")  # profiles whose results belong to the repository
NOTHING = "No page of these sweeps is in the repository; the command makes one.\n"


def beyond_text(results: Path = ROOT / "results") -> str:
    """What README says of the committed pages; Markdown, ends with a line end."""
    found = [(name, results / name / "beyond" / "summary.json") for name in COMMITTED]
    parts = [_page(name, read_json(path), results) for name, path in found if path.is_file()]
    return "\n".join(parts) or NOTHING


def _page(profile: str, summary: dict[str, Any], results: Path) -> str:
    rows = [
        {"": part["id"], "sweep": part["title"], "found": part["finding"] or part["measured"]}
        for part in summary["sections"]
        if not part["missing"]
    ]
    folder = f"results/{profile}/beyond"
    drawn = (results / profile / "beyond" / "figures" / "all.png").is_file()
    picture = f"\n![Every setting against the experiment that it changes]({folder}/figures/all.png)\n"
    words = f"At the scale of {load_profile(profile).title}:\n\n{to_markdown(pd.DataFrame(rows))}"
    return words + (picture if drawn else "")


def update_readme(readme: Path = ROOT / "README.md", results: Path = ROOT / "results") -> None:
    """Rewrite what stands between README's markers. Raises UserError when they are not there once each."""
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{readme} needs one {BEGIN} and, after it, one {END}")
    block = f"{BEGIN}\n{beyond_text(results)}{END}"
    write_text(readme, re.sub(f"{BEGIN}.*{END}", lambda _: block, text, flags=re.DOTALL))
