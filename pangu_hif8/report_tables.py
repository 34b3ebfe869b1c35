"""The report's tables on disk: all columns as CSV, those that fit a page as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pangu_hif8 import tables
from pangu_hif8.claims import Claim
from pangu_hif8.files import write_text
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import KINDS

TABLES: dict[str, tuple[str, Callable[[ProfileResults], pd.DataFrame]]] = {
    "benchmarks": (
        "Benchmark accuracy and the true answers' negative log-likelihood, against the matched baseline",
        tables.benchmark_table,
    ),
    "seeds": ("Over seeds: mean, 95% interval (Student's t), each seed", tables.seeds_table),
    "heldout": ("Held-out loss (nats per token)", tables.heldout_table),
    "ape": ("APE against the matched baseline (percent)", tables.ape_summary),
    "saturation": ("Saturated (tensor, step) pairs, inputs and weights apart", tables.saturation_table),
    "sampled": ("Quantization error on sampled steps, over tensors and steps", tables.sampled_table),
    "runs": ("What ran", tables.runs_table),
}


@dataclass(frozen=True)
class Shown:
    """A column of the page's table: a value, with an interval where `low` and `high` are given."""

    head: str
    value: str
    low: str = ""
    high: str = ""
    digits: int = 2

    def cells(self, table: pd.DataFrame) -> pd.Series:
        if not self.low:
            return table[self.value]
        rows = table[[self.value, self.low, self.high]].to_numpy(dtype=float)
        return pd.Series([self._cell(*row) for row in rows], index=table.index, dtype=object)

    def _cell(self, value: float, low: float, high: float) -> str | None:
        if not np.isfinite(value):
            return None
        ends = f" [{low:.{self.digits}f}, {high:.{self.digits}f}]" if np.isfinite([low, high]).all() else ""
        return f"{value:.{self.digits}f}{ends}"


# What fits a page; the CSV has all columns. A table that is not named here is shown whole.
SHOWN: dict[str, tuple[Shown, ...]] = {
    "benchmarks": (
        Shown("run", "experiment"),
        Shown("task", "task"),
        Shown("accuracy (%)", "accuracy_pct", "accuracy_low", "accuracy_high", 1),
        Shown("minus baseline (points)", "difference_points", "difference_low", "difference_high"),
        Shown("McNemar p", "mcnemar_p"),
        Shown("relative drop (%)", "drop_pct"),
        Shown("the paper's (%)", "paper_drop_pct"),
        Shown("answer nll (nats)", "answer_nll_nats"),
        Shown("minus baseline (nats)", "nll_minus_baseline", "nll_minus_low", "nll_minus_high", 3),
    ),
    "seeds": (
        Shown("measure", "measure"),
        Shown("run", "experiment"),
        Shown("against", "against"),
        Shown("mean over seeds", "mean", "seed_low", "seed_high", 4),
        Shown("each seed", "seeds"),
    ),
    "heldout": (
        Shown("run", "experiment"),
        Shown("text", "domain"),
        Shown("loss", "loss_nats"),
        Shown("minus E0's", "minus_E0", "minus_E0_low", "minus_E0_high", 4),
        Shown("minus the baseline's", "minus_baseline", "minus_baseline_low", "minus_baseline_high", 4),
    ),
    "ape": (
        Shown("run", "experiment"),
        Shown("baseline", "baseline"),
        Shown("seeds", "num_seeds"),
        Shown("all steps", "ape_all_pct"),
        Shown("quantized from step", "quantized_from_step"),
        Shown("quantized steps", "ape_quantized_pct", "low_pct", "high_pct", 4),
        Shown("all runs quantized from step", "late_from_step"),
        Shown("steps from there on", "ape_late_pct", "late_low_pct", "late_high_pct", 4),
        Shown("minus max-window's", "minus_max_window", "minus_max_window_low", "minus_max_window_high", 4),
        Shown("the paper's, all steps", "paper_ape_all_pct"),
        Shown("the paper's, quantized", "paper_ape_quantized_pct"),
    ),
    "saturation": (
        Shown("run", "experiment"),
        Shown("layer", "layer"),
        Shown("pairs of a kind", "num_pairs"),
        Shown("inputs saturated (%)", "saturated_pct", "low_pct", "high_pct", 1),
        Shown("record law (%)", "record_law_pct"),
        Shown("overshoot: median", "overshoot_median"),
        Shown("largest", "overshoot_max"),
        Shown("weights saturated (%)", "saturated_pct_weight", "low_pct_weight", "high_pct_weight", 1),
        Shown("overshoot, largest", "overshoot_max_weight"),
    ),
    "sampled": (
        Shown("run", "experiment"),
        Shown("tensors", "kind"),
        Shown("layer", "layer"),
        Shown("samples", "num_samples"),
        Shown("SQNR, median (dB)", "sqnr_db_median"),
        Shown("clipped, mean (%)", "clipped_pct_mean"),
        Shown("flushed to 0, mean (%)", "flushed_pct_mean"),
    ),
    "runs": (
        Shown("run", "experiment"),
        Shown("what", "run"),
        Shown("seed", "seed"),
        Shown("learning rate", "lr"),
        Shown("steps", "steps"),
        Shown("tokens a step", "tokens_per_step"),
        Shown("window", "window"),
        Shown("warm-up", "warmup_steps"),
        Shown("converted", "converted"),
        Shown("training (s)", "train_seconds"),
        Shown("evaluation (s)", "eval_seconds"),
    ),
}


@dataclass(frozen=True)
class ReportTable:
    """A table as data; its CSV and Markdown lie in tables/."""

    name: str
    title: str
    table: pd.DataFrame
    markdown: str


def write_tables(results: ProfileResults, claims: list[Claim], directory: Path) -> list[ReportTable]:
    """Write every table that has rows, the claims first."""
    made = [_write("claims", "Claims", tables.claims_table(claims), directory)]
    for name, (title, make) in TABLES.items():
        table = make(results)
        if not table.empty:
            made.append(_write(name, title, table, directory))
    return made


def _write(name: str, title: str, table: pd.DataFrame, directory: Path) -> ReportTable:
    shown = tables.to_markdown(for_page(name, table).dropna(axis="columns", how="all"))
    write_text(directory / f"{name}.csv", table.to_csv(index=False, lineterminator="\n", float_format="%.8g"))
    write_text(directory / f"{name}.md", shown)
    return ReportTable(name, title, table, shown)


def for_page(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The columns of a table that fit a page, named for people, values joined with their intervals."""
    if name not in SHOWN:
        return table
    if name == "saturation":
        table = _kinds_beside(table)
    return pd.concat([column.cells(table).rename(column.head) for column in SHOWN[name]], axis="columns")


def _kinds_beside(table: pd.DataFrame) -> pd.DataFrame:
    """Inputs and weights of an experiment's layer in one row."""
    inputs, weights = (table[table["kind"] == kind] for kind in KINDS)
    return inputs.merge(weights, on=["experiment", "layer"], suffixes=("", "_weight"), validate="1:1")
