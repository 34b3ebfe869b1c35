"""A page of sections: each says what the text says, what the published code does and what was measured.

The audit and the sweeps are such pages. A section is a pure function of results files: its sentence is
filled in from its numbers, its table is data, its figure is drawn from the same. On disk a page is
results/<profile>/<page>/{figures,tables,summary.json}, where summary.json holds every number, every sentence
and the sha256 of every results file that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pangu_hif8.errors import UserError
from pangu_hif8.files import write_json, write_text
from pangu_hif8.paths import results_dir
from pangu_hif8.plot_style import save_figure
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_files import RunResult
from pangu_hif8.tables import to_markdown

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Section:
    """One question with its answer.

    `says`, `does`: what the paper's text says and what its published code does (empty where that is no
    matter). `measured` is computed; each number in it is among `numbers`. `finding` is its short form for a
    table of several sections. `missing`: why nothing was measured.
    """

    id: str
    title: str
    says: str = ""
    does: str = ""
    measured: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    figure: Figure | None = None
    missing: str = ""
    finding: str = ""

    @property
    def short(self) -> str:
        """What was found, or why nothing was, in a table's cell."""
        return f"not measured: {self.missing}" if self.missing else self.finding or self.measured


Builder = Callable[[ProfileResults], Section]


@dataclass(frozen=True)
class Page:
    """A written page: its sections, and where the picture of each lies (None without one)."""

    name: str
    profile: str
    directory: Path
    sections: dict[str, Section]
    pictures: dict[str, Path | None]
    missing: list[str]
    notices: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """A section's words and table as Markdown. Raises UserError for an unknown name."""
        section = self._section(name)
        if section.missing:
            return f"Not measured: {section.missing}"
        parts = [("The text", section.says), ("The published code", section.does)]
        words = [f"**{who}:** {what}" for who, what in parts if what]
        words += [f"**Measured:** {section.measured}"]
        table = with_intervals(section.table.dropna(axis="columns", how="all"))
        return "\n\n".join([*words, "" if table.empty else to_markdown(table)])

    def show(self, name: str) -> None:
        """Display a section in a notebook: words, picture, table."""
        from IPython.display import Image, Markdown, display

        display(Markdown(self.text(name)))
        picture = self.pictures[self._section(name).id]
        if picture:
            display(Image(filename=str(picture), width=825))

    @property
    def overview(self) -> str:
        """One row a section, what is missing, and notices, as Markdown."""
        rows = [{"": s.id, "question": s.title, "found": s.short} for s in self.sections.values()]
        notes = [f"\n- missing: {text}" for text in self.missing]
        notes += [f"\n- note: {text}" for text in self.notices]
        return to_markdown(pd.DataFrame(rows)) + "".join(notes)

    def _section(self, name: str) -> Section:
        if name not in self.sections:
            raise UserError(f"no section {name!r}; valid: {', '.join(self.sections)}")
        return self.sections[name]


def page_dir(profile: str, name: str) -> Path:
    """Where a page lies."""
    return results_dir() / profile / name


def write_page(name: str, results: ProfileResults, builders: Iterable[Builder]) -> Page:
    """Build every section from the results and write the page's files; those no longer made are removed."""
    directory = page_dir(results.profile, name)
    sections = {section.id: section for build in builders for section in [build(results)]}
    pictures = {s.id: _save_picture(s, directory / "figures") for s in sections.values()}
    for section in sections.values():
        _save_table(section, directory / "tables")
    missing = [str(m) for m in results.missing]
    write_json(directory / "summary.json", _summary(name, results, sections, missing))
    _remove_old(directory / "figures", {i for i, picture in pictures.items() if picture})
    _remove_old(directory / "tables", {s.id for s in sections.values() if not s.table.empty})
    return Page(name, results.profile, directory, sections, pictures, missing, results.notices)


def _save_picture(section: Section, directory: Path) -> Path | None:
    return None if section.figure is None else save_figure(section.figure, directory, section.id)[0]


def _save_table(section: Section, directory: Path) -> None:
    if not section.table.empty:
        text = section.table.to_csv(index=False, lineterminator="\n", float_format="%.8g")
        write_text(directory / f"{section.id}.csv", text)


def _remove_old(directory: Path, keep: set[str]) -> None:
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.is_file() and path.stem not in keep:
            path.unlink()


def _summary(
    name: str, results: ProfileResults, sections: dict[str, Section], missing: list[str]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "page": name,
        "profile": results.profile,
        "inputs": results.input_hashes(),
        "missing": missing,
        "notices": results.notices,
        "run_seconds": {run.name: _seconds(run) for _, run in sorted(results.runs.items())},
        "sections": [
            {
                "id": s.id,
                "title": s.title,
                "measured": s.measured,
                "finding": s.finding,
                "missing": s.missing,
                "numbers": s.numbers,
            }
            for s in sections.values()
        ],
    }


def _seconds(run: RunResult) -> float | None:
    """How long a run took, training and evaluation; None where it does not say."""
    known = [run.timing[name] for name in ("train_seconds", "eval_seconds") if name in run.timing]
    return round(sum(known), 1) if known else None


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """The table for people: columns x, x_low, x_high become one, "x [low, high]"."""
    names = [str(name) for name in table.columns]
    joined = [name for name in names if {f"{name}_low", f"{name}_high"} <= set(names)]
    ends = {f"{name}{end}" for name in joined for end in ("_low", "_high")}
    shown = {name: _joined(table, name) if name in joined else table[name] for name in names}
    return pd.DataFrame({name: column for name, column in shown.items() if name not in ends})


def _joined(table: pd.DataFrame, name: str) -> pd.Series:
    digits = 4 if name.endswith("_nats") else 2
    rows = table[[name, f"{name}_low", f"{name}_high"]].to_numpy(dtype=float)
    cells = [
        f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]" if value == value else ""
        for value, low, high in rows
    ]
    return pd.Series(cells, index=table.index)
