"""The report's tables on disk: all columns as CSV, those that fit a page as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from pangu_hif8 import tables
from pangu_hif8.claims import Claim
from pangu_hif8.files import write_text
from pangu_hif8.results import ProfileResults

TABLES: dict[str, tuple[str, Callable[[ProfileResults], pd.DataFrame]]] = {
    "benchmarks": ("Benchmark accuracy, and the drop against the matched baseline", tables.benchmark_table),
    "heldout": ("Held-out loss (nats per token)", tables.heldout_table),
    "ape": ("APE against the matched baseline (percent)", tables.ape_summary),
    "saturation": ("Saturated (tensor, step) pairs", tables.saturation_table),
    "sampled": ("Quantization error on sampled steps, over tensors and steps", tables.sampled_table),
    "runs": ("What ran", tables.runs_table),
}

# Columns that fit a page; the CSV has all.
SHOWN = {
    "benchmarks": (
        "experiment",
        "run",
        "task",
        "accuracy_pct",
        "stderr_pct",
        "drop_pct",
        "paper_drop_pct",
        "difference_points",
        "mcnemar_p",
    ),
    "ape": (
        "experiment",
        "baseline",
        "num_seeds",
        "ape_all_pct",
        "ape_quantized_pct",
        "low_pct",
        "high_pct",
        "paper_ape_all_pct",
        "paper_ape_quantized_pct",
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
    columns = [c for c in SHOWN.get(name, table.columns) if c in table]
    shown = tables.to_markdown(table[columns].dropna(axis="columns", how="all"))
    write_text(directory / f"{name}.csv", table.to_csv(index=False, lineterminator="\n", float_format="%.8g"))
    write_text(directory / f"{name}.md", shown)
    return ReportTable(name, title, table, shown)
