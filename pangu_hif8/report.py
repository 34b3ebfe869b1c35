"""The report: figures, tables, verdicts and a summary, as a pure function of results/<profile>.

It needs no torch and nothing but what is committed. A run that is missing, incomplete or stale is listed
with its reason and appears in no figure; a figure or table of an earlier report that can no longer be made is
removed. `summary.json` holds the sha256 of every file that was used. Two profiles side by side:
report_beside.py; the words: report_text.py; README's tables: report_readme.py.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pangu_hif8 import report_text as text
from pangu_hif8 import tables
from pangu_hif8.claims import Claim, judge
from pangu_hif8.files import write_json
from pangu_hif8.paths import report_dir
from pangu_hif8.plots import FIGURES, FigureSpec, save_figure
from pangu_hif8.report_html import figure_html
from pangu_hif8.report_tables import ReportTable, write_tables
from pangu_hif8.results import ProfileResults, load_profile_results

__all__ = ["Report", "build_report", "print_summary"]
SCHEMA_VERSION = 1


@dataclass(frozen=True, repr=False)
class ReportFigureFile:
    """A figure on disk and the sentence computed for it; a notebook shows both."""

    name: str
    png: Path
    svg: Path
    sentence: str

    def __repr__(self) -> str:  # a notebook keeps it, so it names no folder of this machine
        return f"<figure {self.name}>"

    def _repr_html_(self) -> str:
        return figure_html(self.png, self.sentence)


@dataclass(frozen=True)
class Report:
    """A built report. The Markdown properties are what the notebook shows, in this order."""

    profile: str
    directory: Path
    results: ProfileResults
    claims: list[Claim]
    figures: list[ReportFigureFile]
    tables: list[ReportTable]

    @property
    def front_page(self) -> str:
        """What was claimed, what was found, how sure that is, and at which scale."""
        verdicts = tables.to_markdown(text.verdicts_table({self.profile: self.claims}))
        found = f"{text.headline(self.claims)}\n\n{verdicts}"
        return text.front_page(found, text.how_sure(self.results), text.scale(self.results))

    @property
    def findings_text(self) -> str:
        """What was measured for each claim."""
        return text.findings_markdown({self.profile: self.claims})

    @property
    def missing_text(self) -> str:
        """The runs that this report does without, with reasons, and notices."""
        return text.missing_markdown(self.results)

    @property
    def rules_text(self) -> str:
        """By which rule each claim was judged."""
        return text.rules_markdown(self.claims)


def build_report(profile: str) -> Report:
    """Write results/<profile>/report/{figures,tables,claims.json,summary.json}; returns what it wrote.

    Raises UserError for an unknown profile, one without a results directory, or one that can't be written.
    """
    results = load_profile_results(profile)
    directory, claims = report_dir(profile), judge(results)
    figures = [f for spec in FIGURES if (f := _draw(spec, results, directory / "figures"))]
    made = write_tables(results, claims, directory / "tables")
    write_json(directory / "claims.json", [claim.as_dict() for claim in claims])
    write_json(directory / "summary.json", _summary(results, claims, figures, made))
    remove_old(directory / "figures", {p.name for f in figures for p in (f.png, f.svg)})
    remove_old(directory / "tables", {f"{t.name}.{kind}" for t in made for kind in ("csv", "md")})
    return Report(profile, directory, results, claims, figures, made)


def _draw(spec: FigureSpec, results: ProfileResults, directory: Path) -> ReportFigureFile | None:
    figure = spec.draw(results)
    if figure is None:
        return None
    png, svg = save_figure(figure, directory, spec.name)
    return ReportFigureFile(spec.name, png, svg, spec.caption(results))


def remove_old(directory: Path, keep: set[str]) -> None:
    """Delete the files of an earlier report that are not in `keep`."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.is_file() and path.name not in keep:
            path.unlink()


def _summary(
    results: ProfileResults, claims: list[Claim], figures: list[ReportFigureFile], made: list[ReportTable]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "profile": results.profile,
        "inputs": results.input_hashes(),
        "runs": [run.name for _, run in sorted(results.runs.items())],
        "missing": [str(missing) for missing in results.missing],
        "notices": results.notices,
        "verdicts": {claim.id: claim.verdict for claim in claims},
        "figures": {figure.name: figure.sentence for figure in figures},
        "tables": [table.name for table in made],
    }


def print_summary(profile: str) -> bool:
    """Print the benchmark table, the claims with verdicts, what is missing, and where the report lies.

    False when a run is left out because its files are damaged, which stderr says with what to do.
    """
    results = load_profile_results(profile)
    columns = ["experiment", "run", "task", "accuracy_pct", "stderr_pct", "drop_pct", "paper_drop_pct"]
    table = tables.benchmark_table(results)
    if not table.empty:
        table = table[columns].astype({"drop_pct": float, "paper_drop_pct": float})
        print(table.to_string(index=False, na_rep="", float_format="{:.2f}".format), end="\n\n")
    for claim in judge(results):
        print(f"{claim.id:<4} {claim.verdict:<28} {claim.claim}")
    for missing in results.missing:
        print(f"missing: {missing}")
    for notice in results.notices:
        print(f"note: {notice}")
    page = report_dir(profile) / "report.html"
    print(f"\nreport: {page if page.is_file() else report_dir(profile)}")
    damaged = [f"{m.experiment} seed {m.seed}" for m in results.missing if "damaged" in m.reason]
    if damaged:
        remedy = f"restore the files, or make them again: make reproduce PROFILE={profile}"
        print(f"error: damaged, and left out: {', '.join(damaged)}; {remedy}", file=sys.stderr)
    return not damaged
