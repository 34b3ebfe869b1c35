"""The report: figures, tables, verdicts and a summary, as a pure function of results/<profile>.

It needs no torch and nothing but what is committed. A run that is missing, incomplete or stale is listed
with its reason and appears in no figure; a figure or table of an earlier report that can no longer be made is
removed. `summary.json` holds the sha256 of every file that was used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pangu_hif8 import paper, tables
from pangu_hif8.claims import Claim, judge
from pangu_hif8.errors import UserError
from pangu_hif8.files import write_json, write_text
from pangu_hif8.paths import ROOT, report_dir
from pangu_hif8.plots import FIGURES, FigureSpec, save_figure
from pangu_hif8.report_html import write_html
from pangu_hif8.report_tables import ReportTable, write_tables
from pangu_hif8.results import ProfileResults, load_profile_results

__all__ = ["Report", "build_report", "print_summary", "readme_table", "update_readme", "write_html"]
SCHEMA_VERSION = 1
BEGIN, END = "<!-- claims:begin -->", "<!-- claims:end -->"


@dataclass(frozen=True)
class ReportFigureFile:
    """A figure on disk and the sentence computed for it."""

    name: str
    png: Path
    svg: Path
    sentence: str


@dataclass(frozen=True)
class Report:
    """A built report. The Markdown properties are what the notebook shows."""

    profile: str
    directory: Path
    results: ProfileResults
    claims: list[Claim]
    figures: list[ReportFigureFile]
    tables: list[ReportTable]

    @property
    def front_page(self) -> str:
        """What was claimed, what was found, at which scale, how sure, and what is missing."""
        return "\n\n".join(
            [_headline(self.claims), claims_markdown(self.claims), _scale(self.results), HOW_SURE]
        )

    @property
    def missing_text(self) -> str:
        """The runs that this report does without, with reasons, and notices."""
        return missing_markdown(self.results)

    @property
    def rules_text(self) -> str:
        """By which rule each claim was judged."""
        rows = [{"claim": c.id, "reproduced when": c.rule} for c in self.claims]
        return tables.to_markdown(pd.DataFrame(rows))


HOW_SURE = (
    "**How sure.** Every comparison is paired: same starting weights, same tokens in the same order, same "
    "items. Brackets are 95% intervals: over items for accuracy (Agresti-Min), over sequences for held-out "
    "loss, over steps, taken as independent, for saturation and APE. They hold for these runs; how much "
    "another seed would differ is only seen where several seeds were run. A verdict is given only when the "
    "whole interval lies on one side of its threshold; what can be counted exactly (an estimate that equals "
    "the step before's amax, a tensor that saturates inside its window) is judged by the count."
)


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
    _remove_old(directory / "figures", {p.name for f in figures for p in (f.png, f.svg)})
    _remove_old(directory / "tables", {f"{t.name}.{kind}" for t in made for kind in ("csv", "md")})
    return Report(profile, directory, results, claims, figures, made)


def _draw(spec: FigureSpec, results: ProfileResults, directory: Path) -> ReportFigureFile | None:
    figure = spec.draw(results)
    if figure is None:
        return None
    png, svg = save_figure(figure, directory, spec.name)
    return ReportFigureFile(spec.name, png, svg, spec.caption(results))


def _remove_old(directory: Path, keep: set[str]) -> None:
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


def claims_markdown(claims: list[Claim]) -> str:
    """The claims table in Markdown."""
    return tables.to_markdown(tables.claims_table(claims))


def _headline(claims: list[Claim]) -> str:
    kinds: dict[str, list[str]] = {}
    for claim in claims:
        kinds.setdefault(claim.verdict.split(":")[0], []).append(claim.id)
    found = "; ".join(f"{kind}: {', '.join(ids)}" for kind, ids in kinds.items())
    return f"**Of the paper's {len(claims)} claims** {found}."


def _scale(results: ProfileResults) -> str:
    train, profile = results.settings.train, results.settings
    items = ", ".join(f"{task.num_items or 'all'} {task.name}" for task in profile.evaluation.tasks)
    seeds = sorted({seed for name, seed in results.runs if name != "E0"})
    return (
        f"**Scale.** {profile.title}: {train.steps} steps of {results.tokens_per_step} tokens, window "
        f"{train.amax_history_len}, warm-up {train.bf16_warmup_steps} steps, seeds "
        f"{', '.join(map(str, seeds)) or 'none'}; items: {items}. "
        f"The paper: 1 billion parameters, 10,000 steps of {paper.TOKENS_PER_STEP:,} tokens, window 64, "
        f"warm-up {paper.WARMUP_STEPS} steps."
    )


def missing_markdown(results: ProfileResults) -> str:
    """Missing runs and notices as a list; says so when nothing is missing."""
    lines = [f"- missing: {missing}" for missing in results.missing]
    lines += [f"- note: {notice}" for notice in results.notices]
    return "\n".join(lines) or "All runs of this profile are complete and current."


def print_summary(profile: str) -> None:
    """Print the benchmark table, the claims with verdicts, what is missing, and where the report lies."""
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


def readme_table(profile: str) -> str:
    """The claims table for README.md, computed from results/<profile>; Markdown, ends with a line end."""
    results = load_profile_results(profile)
    claims = judge(results)
    note = "" if not results.missing else f"\n{missing_markdown(results)}\n"
    return f"{_headline(claims)}\n\n{claims_markdown(claims)}\n{_scale(results)}\n{note}"


def update_readme(profile: str = "laptop", readme: Path = ROOT / "README.md") -> None:
    """Rewrite the table between README's markers. Raises UserError when they are not there once each."""
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{readme} needs one {BEGIN} and, after it, one {END}")
    block = f"{BEGIN}\n{readme_table(profile)}{END}"
    write_text(readme, re.sub(f"{BEGIN}.*{END}", lambda _: block, text, flags=re.DOTALL))


def table_in_readme(readme: Path = ROOT / "README.md") -> str | None:
    """What stands between README's markers, or None without them."""
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    found = re.search(f"{BEGIN}\n(.*){END}", text, flags=re.DOTALL)
    return found.group(1) if found else None
