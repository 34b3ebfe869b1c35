"""A7: which of the published differences the published benchmarks can tell from chance."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from pangu_hif8.metrics import Z_LEVEL
from pangu_hif8.page_facts import Facts
from pangu_hif8.page_plots import PALETTE
from pangu_hif8.plot_style import legend_below, new_figure, style
from pangu_hif8.published_noise import (
    MATCHED,
    NAMES,
    RATE,
    SIGNIFICANCE,
    fewest_questions,
    final_run_text,
    published_noise_table,
    published_noise_text,
)
from pangu_hif8.results import ProfileResults
from pangu_hif8.sections import Section

SAYS = "The final configuration is near-lossless; the other estimators and the high rate lose accuracy."
DOES = "One run of each configuration, one score a benchmark, no answers and no intervals."
FINAL = "E8"
COLUMNS = ["experiment", "other", "benchmark", "num_items", "difference_points", "num_questions"]
COLUMNS += ["difference_in_stderr", "p_unpaired", "most_changed_questions", "significant_at_best"]


def build_published(results: ProfileResults) -> Section:
    """The published scores alone; nothing measured here goes in."""
    table = published_noise_table()
    shown = table[table["kind"].isin((MATCHED, RATE))]
    return Section(
        id="A7",
        title="The published differences: larger than their noise?",
        says=SAYS,
        does=DOES,
        measured=f"{published_noise_text()} {final_run_text(FINAL)}",
        numbers=_numbers(table),
        table=shown[COLUMNS].reset_index(drop=True),
        figure=_figure(shown),
        finding=_finding(table),
    )


def _numbers(table: pd.DataFrame) -> dict[str, Any]:
    """Every number of the two sentences."""
    matched, rate = (table[table["kind"] == kind] for kind in (MATCHED, RATE))
    facts = Facts()
    facts.value("num_matched", len(matched), "d")
    facts.value("num_rate", len(rate), "d")
    facts.value("num_never_significant", int((~matched["significant_at_best"]).sum()), "d")
    facts.value("num_below_one_stderr", int(matched["below_one_stderr"].sum()), "d")
    facts.value("fewest_questions", fewest_questions(), "d")
    facts.value("significance_pct", 100 * SIGNIFICANCE, "g")
    for name, rows in (("matched", matched), ("rate", rate)):
        facts.value(f"num_significant_{name}", int((rows["p_unpaired"] < SIGNIFICANCE).sum()), "d")
    final = matched[matched["experiment"] == FINAL]
    columns = ("num_questions", "num_items", "difference_in_stderr", "most_changed_questions")
    for row in final.to_dict("records"):
        facts.numbers |= {f"{FINAL}_{row['benchmark']}_{column}": row[column] for column in columns}
    return facts.numbers


def _finding(table: pd.DataFrame) -> str:
    matched = table[table["kind"] == MATCHED]
    never = int((~matched["significant_at_best"]).sum())
    single = int((matched["p_unpaired"] < SIGNIFICANCE).sum())
    return (
        f"Of {len(matched)} published differences between a quantized run and its baseline, {never} could "
        f"not be significant in any case, and {single} are as independent samples."
    )


def _figure(shown: pd.DataFrame) -> Figure:
    pairs = list(dict.fromkeys(zip(shown["experiment"], shown["other"], strict=True)))
    with style():
        figure, axes = new_figure(1, 2, 3.6, sharey=True, width_ratios=[1, 1])
        for panel, kind in zip(axes[0], (MATCHED, RATE), strict=True):
            rows = shown[shown["kind"] == kind]
            for index, pair in enumerate(p for p in pairs if _kind_of(shown, p) == kind):
                _dots(panel, rows[rows["experiment"] == pair[0]], pair, index, kind)
            panel.axvspan(
                -Z_LEVEL, Z_LEVEL, color="0.9", lw=0, zorder=0, label="95% of the noise of one score"
            )
            panel.axvline(0, color="0.3", lw=0.8)
            panel.set_yticks(range(len(NAMES)), list(NAMES.values()))
            panel.set_ylim(len(NAMES) - 0.5, -0.5)
            panel.set(xlabel="difference (standard errors)", title=kind)
        legend_below(figure, axes[0], columns=3)
        figure.suptitle("Published differences (hollow: never significant, however paired)")
    return figure


def _kind_of(shown: pd.DataFrame, pair: tuple[str, str]) -> str:
    rows = shown[(shown["experiment"] == pair[0]) & (shown["other"] == pair[1])]
    return str(rows["kind"].iloc[0])


def _dots(panel: Any, rows: pd.DataFrame, pair: tuple[str, str], index: int, kind: str) -> None:
    color = PALETTE[index] if kind == MATCHED else (0.35, 0.35, 0.35)
    places = [
        list(NAMES).index(task) + 0.15 * (index - 1.5) * (kind == MATCHED) for task in rows["benchmark"]
    ]
    signed = rows["difference_in_stderr"].where(rows["difference_points"] >= 0, -rows["difference_in_stderr"])
    faces = [color if best else "white" for best in rows["significant_at_best"]]
    panel.scatter(signed, places, c=faces, edgecolors=[color], s=26, zorder=3)
    panel.scatter([], [], color=color, s=26, label=f"{pair[0]} minus {pair[1]}")
