"""A8: a window guarantees nothing against a new maximum; how often there is one, by the window's length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pangu_hif8.audit_parts import cells, rate_of
from pangu_hif8.comparisons import share_interval
from pangu_hif8.metrics import Interval, record_share
from pangu_hif8.page_facts import Facts
from pangu_hif8.page_plots import PALETTE, draw_series
from pangu_hif8.plot_style import legend_below, new_figure, style
from pangu_hif8.record_law import WINDOWS, Traces, replayed, traces
from pangu_hif8.results import ProfileResults
from pangu_hif8.sections import Section

TITLE = "The record law: how often is the maximum of the last w steps exceeded?"
SAYS = "A maximum over the window guarantees that nothing saturates."
DOES = "The same estimator: the maximum of what was recorded before the step, never of the step itself."
GROUPS = {"E1": ("E2", "E3", "E4", "E5"), "E6": ("E7", "E8")}  # by learning rate, named by the baseline
MIN_STEPS = 5  # steps that an interval needs at least


def build_records(results: ProfileResults) -> Section:
    """Saturation by window length, from recorded amaxes; inputs and weights apart."""
    table = law_table(results)
    if table.empty:
        missing = "no quantized run has recorded enough steps"
        return Section("A8", TITLE, SAYS, DOES, missing=missing)
    facts = Facts()
    measured = [_text(table, facts, kind) for kind in ("input", "weight")]
    return Section(
        id="A8",
        title=TITLE,
        says=SAYS,
        does=DOES,
        measured=" ".join([*measured, _basis(facts)]),
        numbers=facts.numbers,
        table=table,
        figure=_figure(results, table),
        finding=measured[0],
    )


def law_table(results: ProfileResults) -> pd.DataFrame:
    """One row a kind, learning rate and window: replayed share, the law's, sizes beyond the maximum.

    The interval is over steps and seeds: tensors of one step share its batch.
    """
    rows = []
    for kind in ("input", "weight"):
        for base, names in GROUPS.items():
            found = traces(results, names, kind)
            rows += [_row(found, window, kind, rate_of(results, base)) for window in WINDOWS]
    return pd.DataFrame([row for row in rows if row is not None])


def _row(found: list[Traces], window: int, kind: str, rate: str) -> dict[str, Any] | None:
    rows = replayed(found, window)
    if rows["step"].nunique() < MIN_STEPS:
        return None
    over = 100 * (rows.loc[rows["saturated"], "ratio"].to_numpy() - 1)
    sizes = np.percentile(over, [50, 95]) if over.size else [np.nan, np.nan]
    return {
        "kind": kind,
        "rate": rate,
        "window": window,
        **cells("saturated_pct", share_interval(rows).scaled(100)),
        "law_pct": 100 * float(record_share(window)),
        "num_steps": int(rows["step"].nunique()),
        "overshoot_median_pct": float(sizes[0]),
        "overshoot_95th_pct": float(sizes[1]),
    }


def _text(table: pd.DataFrame, facts: Facts, kind: str) -> str:
    parts = []
    for rate, rows in table[table["kind"] == kind].groupby("rate", sort=False):
        first, last = rows.iloc[0], rows.iloc[-1]
        ends = " and ".join(_share(facts, row, f"{kind}_{rate}") for row in (first, last))
        size = facts.value(f"{kind}_{rate}_overshoot_pct", last["overshoot_median_pct"], ".2g", "%")
        parts.append(f"at {rate} {ends}; the longest is exceeded by {size} (median)")
    return f"{kind.capitalize()}s exceed the maximum of their window {'; '.join(parts)}."


def _share(facts: Facts, row: pd.Series, name: str) -> str:
    window = int(row["window"])
    low, high = (facts.value(f"{name}_w{window}_{e}", row[f"saturated_pct_{e}"], ".1f") for e in _ENDS)
    share = facts.value(f"{name}_w{window}_pct", row["saturated_pct"], ".1f", "%")
    length = facts.value(f"{name}_w{window}_window", window, "d")
    law = facts.value(f"{name}_w{window}_law_pct", row["law_pct"], ".1f", "%")
    return f"in {share} [{low}, {high}] of (tensor, step) pairs with a window of {length} (law: {law})"


_ENDS = ("low", "high")


def _basis(facts: Facts) -> str:
    least = facts.value("fewest_steps", MIN_STEPS, "d")
    return (
        "Replayed from the amaxes that this profile's quantized runs recorded; intervals are over steps, and "
        f"a window is left out where fewer than {least} steps have that many before them. The law is for "
        "steps that are independent and alike. A weight's amax drifts: its steps hang together, so that the "
        "law need not hold, and the interval over steps is too narrow."
    )


def _figure(results: ProfileResults, table: pd.DataFrame) -> Figure:
    with style():
        figure, axes = new_figure(1, 2, 3.6)
        for kind, color in (("input", PALETTE[0]), ("weight", PALETTE[2])):
            for base, line, marker in (("E1", "-", "o"), ("E6", "--", "s")):
                rate = rate_of(results, base)
                rows = table[(table["kind"] == kind) & (table["rate"] == rate)]
                look = {"color": color, "ls": line, "marker": marker, "label": f"{kind}s, {rate}"}
                _lines(axes[0], rows, look)
        windows = np.array(sorted(table["window"].unique()))
        axes[0][0].plot(windows, 100 * record_share(windows), color="black", lw=2, label="law 1/(w+1)")
        axes[0][0].set(xlabel="window w (steps)", ylabel="steps beyond their window (%)", title="How often")
        axes[0][1].set(xlabel="window w (steps)", ylabel="median excess (%)", title="By how much")
        axes[0][1].set_yscale("log")
        for panel in axes[0]:
            panel.set_xscale("log", base=2)
            panel.set_xticks(windows, [str(w) for w in windows])
        legend_below(figure, axes[0][0], columns=3)
        figure.suptitle("How often an amax exceeds the maximum of its window")
    return figure


def _lines(axes: Any, rows: pd.DataFrame, look: dict[str, Any]) -> None:
    ends = rows[["saturated_pct", "saturated_pct_low", "saturated_pct_high"]].to_numpy()
    draw_series(axes[0], list(rows["window"]), [Interval(*row) for row in ends], **look)
    axes[1].plot(rows["window"], rows["overshoot_median_pct"], ms=4, **look)
