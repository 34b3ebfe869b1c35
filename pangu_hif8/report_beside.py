"""Two profiles side by side: verdicts next to each other, the main figures in pairs, tables of both.

As the report of one profile, a pure function of results/. It lies in results/<profile>/report/beside-<other>.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pangu_hif8 import report_text as text
from pangu_hif8 import tables
from pangu_hif8.claims import Claim, judge
from pangu_hif8.files import write_json, write_text
from pangu_hif8.plots import FIGURES, FigureSpec, save_png
from pangu_hif8.report import Report, build_report, remove_old
from pangu_hif8.report_folders import beside_dir, check_beside
from pangu_hif8.report_html import figure_html, pair_html
from pangu_hif8.report_tables import TABLES, ReportTable, for_page
from pangu_hif8.results import ProfileResults, load_profile_results

SCHEMA_VERSION = 1
MAIN = ("training_loss", "ape", "late_ape", "saturation_over_steps", "benchmarks", "answer_nll", "heldout")
MAIN_TABLES = ("benchmarks", "seeds", "ape", "runs")


@dataclass(frozen=True, repr=False)
class SideFigure:
    """A figure of both profiles: PNG and sentence by profile; a profile that lacks it is not there."""

    name: str
    sides: dict[str, tuple[Path, str]]

    @property
    def sentence(self) -> str:
        return " ".join(f"{profile}: {sentence}" for profile, (_, sentence) in self.sides.items())

    def __repr__(self) -> str:
        return f"<figure {self.name}: {' and '.join(self.sides)}>"

    def _repr_html_(self) -> str:
        return pair_html([figure_html(png, text_, name) for name, (png, text_) in self.sides.items()])


@dataclass(frozen=True)
class BesideReport:
    """A built report of two profiles; the same parts as `Report`."""

    directory: Path
    results: list[ProfileResults]
    claims: dict[str, list[Claim]]
    figures: list[SideFigure]
    tables: list[ReportTable]

    @property
    def front_page(self) -> str:
        """What was claimed, what was found at each scale, how sure that is, and the scales."""
        headlines = [f"{name}: {text.headline(found)}" for name, found in self.claims.items()]
        verdicts = tables.to_markdown(text.verdicts_table(self.claims))
        found = "\n\n".join([*headlines, text.differ_text(self.claims), verdicts])
        scales = [text.profile_scale(results) for results in self.results]
        return text.front_page(
            found, text.how_sure(*self.results), "\n\n".join([*scales, text.paper_scale()])
        )

    @property
    def findings_text(self) -> str:
        """What was measured for each claim, profile by profile."""
        return text.findings_markdown(self.claims)

    @property
    def missing_text(self) -> str:
        """The runs that this report does without, with reasons, and notices."""
        return "\n\n".join(f"**{r.profile}**\n\n{text.missing_markdown(r)}" for r in self.results)

    @property
    def rules_text(self) -> str:
        """By which rule each claim was judged."""
        return text.rules_markdown(next(iter(self.claims.values())))


def build(profile: str, beside: str = "") -> Report | BesideReport:
    """The report of one profile, or of two side by side where `beside` names another."""
    return build_beside(profile, beside) if beside else build_report(profile)


def build_beside(profile: str, beside: str) -> BesideReport:
    """Write results/<profile>/report/beside-<other>/{figures,tables,summary.json}; returns what it wrote.

    Raises UserError for an unknown profile, one without results, or the same one twice.
    """
    check_beside(profile, beside)
    both = [load_profile_results(name) for name in (profile, beside)]
    directory, claims = beside_dir(profile, beside), {found.profile: judge(found) for found in both}
    specs = [spec for spec in FIGURES if spec.name in MAIN]
    figures = [f for spec in specs if (f := _draw(spec, both, directory / "figures")).sides]
    made = _tables(both, claims, directory / "tables")
    write_json(directory / "summary.json", _summary(both, claims, figures, made))
    remove_old(directory / "figures", {png.name for f in figures for png, _ in f.sides.values()})
    remove_old(directory / "tables", {f"{t.name}.{kind}" for t in made for kind in ("csv", "md")})
    return BesideReport(directory, both, claims, figures, made)


def _draw(spec: FigureSpec, both: list[ProfileResults], directory: Path) -> SideFigure:
    sides = {}
    for results in both:
        figure = spec.draw(results)
        if figure is not None:
            png = save_png(figure, directory, f"{spec.name}-{results.profile}")
            sides[results.profile] = (png, spec.caption(results))
    return SideFigure(spec.name, sides)


def _tables(both: list[ProfileResults], claims: dict[str, list[Claim]], directory: Path) -> list[ReportTable]:
    verdicts = text.verdicts_table(claims)
    made = [_write("verdicts", "Verdicts", verdicts, verdicts, directory)]
    for name in MAIN_TABLES:
        title, make = TABLES[name]
        found = {results.profile: table for results in both if not (table := make(results)).empty}
        if found:
            shown = {profile: for_page(name, table) for profile, table in found.items()}
            made.append(_write(name, title, _stacked(found), _stacked(shown), directory))
    return made


def _stacked(by_profile: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The tables under each other, with the profile in front."""
    parts = [table.assign(profile=name) for name, table in by_profile.items()]
    joined = pd.concat([part.dropna(axis="columns", how="all") for part in parts], ignore_index=True)
    return joined[["profile", *[column for column in joined if column != "profile"]]]


def _write(name: str, title: str, table: pd.DataFrame, shown: pd.DataFrame, directory: Path) -> ReportTable:
    markdown = tables.to_markdown(shown)
    write_text(directory / f"{name}.csv", table.to_csv(index=False, lineterminator="\n", float_format="%.8g"))
    write_text(directory / f"{name}.md", markdown)
    return ReportTable(name, title, table, markdown)


def _summary(
    both: list[ProfileResults],
    claims: dict[str, list[Claim]],
    figures: list[SideFigure],
    made: list[ReportTable],
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "profiles": [results.profile for results in both],
        "inputs": {f"{r.profile}/{name}": sha for r in both for name, sha in r.input_hashes().items()},
        "missing": {r.profile: [str(missing) for missing in r.missing] for r in both},
        "verdicts": {name: {c.id: c.verdict for c in found} for name, found in claims.items()},
        "figures": {figure.name: figure.sentence for figure in figures},
        "tables": [table.name for table in made],
    }


def print_beside(profile: str, beside: str) -> None:
    """Print the verdicts of both, and where the page lies."""
    claims = {name: judge(load_profile_results(name)) for name in (profile, beside)}
    print(text.verdicts_table(claims).drop(columns="the paper").to_string(index=False), end="\n\n")
    print(f"report: {beside_dir(profile, beside) / 'report.html'}")
