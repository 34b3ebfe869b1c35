"""The report's tables, as data frames that go to CSV and Markdown.

Figures in percent, accuracy differences in points, losses in nats. The paper's figures stand beside ours
where it published any and where the profile has the same benchmark; elsewhere the field stays empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8 import paper
from pangu_hif8.claims import Claim
from pangu_hif8.comparisons import (
    ape_interval,
    expected_share,
    loss_pairs,
    num_steps_left_out,
    overshoot,
    quantized_pairs,
    saturation_interval,
    saturation_rows,
)
from pangu_hif8.describe import describe_run
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.late_ape import ape_gap, common_start, late_ape, switch_step
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import LAYERS
from pangu_hif8.run_files import RunResult
from pangu_hif8.sampled import experiment_kinds, sampled_experiments, sampled_rows
from pangu_hif8.tables_outcome import benchmark_table, heldout_table, seeds_table

__all__ = [
    "ape_summary",
    "benchmark_table",
    "claims_table",
    "describe_run",
    "heldout_table",
    "quantized_pairs",
    "runs_table",
    "sampled_table",
    "saturation_table",
    "seeds_table",
    "to_markdown",
]


def saturation_table(results: ProfileResults) -> pd.DataFrame:
    """One row per quantized experiment, kind and layer ("all" too): share with interval, and overshoot."""
    names = [n for n in results.experiments() if results.of(n)[0].saturation is not None]
    kinds = [(name, kind) for name in names for kind in experiment_kinds(results, name)]
    return pd.DataFrame(
        [_saturation_row(results, *pair, layer) for pair in kinds for layer in (None, *LAYERS)]
    )


def _saturation_row(results: ProfileResults, name: str, kind: str, layer: str | None) -> dict[str, Any]:
    share = saturation_interval(results, name, kind, layer).scaled(100)
    rows = saturation_rows(results, name, kind, layer)
    over, expected = overshoot(rows), expected_share(results, name)
    return {
        "experiment": name,
        "kind": kind,
        "layer": layer or "all",
        "num_pairs": len(rows),
        "saturated_pct": share.value,
        "low_pct": share.low,
        "high_pct": share.high,
        "record_law_pct": None if expected is None or kind != "input" else 100 * expected,
        "overshoot_median": float(np.median(over)) if over.size else None,
        "overshoot_p90": float(np.quantile(over, 0.9)) if over.size else None,
        "overshoot_max": float(over.max()) if over.size else None,
    }


def sampled_table(results: ProfileResults) -> pd.DataFrame:
    """One row per experiment, kind and layer: median SQNR in dB, mean shares in percent, sampled steps."""
    kinds = [(n, kind) for n in sampled_experiments(results) for kind in experiment_kinds(results, n)]
    rows = [_sampled_row(results, *pair, layer) for pair in kinds for layer in LAYERS]
    return pd.DataFrame([row for row in rows if row["num_samples"]])


def _sampled_row(results: ProfileResults, name: str, kind: str, layer: str) -> dict[str, Any]:
    rows = sampled_rows(results, name)
    rows = rows[(rows["kind"] == kind) & (rows["layer"] == layer)]
    return {
        "experiment": name,
        "kind": kind,
        "layer": layer,
        "num_samples": len(rows),
        "sqnr_db_median": rows["sqnr_db"].median(),
        "clipped_pct_mean": 100 * rows["clipped_share"].mean(),
        "flushed_pct_mean": 100 * rows["flushed_share"].mean(),
    }


def ape_summary(results: ProfileResults) -> pd.DataFrame:
    """One row per quantized experiment: APE over all steps, over the quantized ones, after every warm-up.

    `low_pct` and `high_pct` belong to the quantized steps, the `late_` columns to the steps from
    `late_from_step` on, which all quantized runs quantize.
    """
    return pd.DataFrame([_ape_row(results, *pair) for pair in loss_pairs(results)])


def _ape_row(results: ProfileResults, name: str, baseline: str) -> dict[str, Any]:
    every = ape_interval(results, name, baseline, quantized=False)
    after, late = ape_interval(results, name, baseline, quantized=True), late_ape(results, name, baseline)
    gap = ape_gap(results, name)
    return {
        "experiment": name,
        "baseline": baseline,
        "num_seeds": len(results.pairs(name, baseline)),
        "ape_all_pct": every.value,
        "quantized_from_step": switch_step(results, name),
        "ape_quantized_pct": after.value,
        "low_pct": after.low,
        "high_pct": after.high,
        "late_from_step": common_start(results),
        "ape_late_pct": late and late.value,
        "late_low_pct": late and late.low,
        "late_high_pct": late and late.high,
        "minus_max_window": gap and gap.value,
        "minus_max_window_low": gap and gap.low,
        "minus_max_window_high": gap and gap.high,
        "num_steps_left_out": num_steps_left_out(results, name, baseline),
        "paper_ape_all_pct": paper.ape_pct() if name == "E8" else None,
        "paper_ape_quantized_pct": paper.ape_pct(True) if name == "E8" else None,
    }


def claims_table(claims: list[Claim]) -> pd.DataFrame:
    """One row per claim: what the paper says, the verdict, and the sentence behind it."""
    columns = {
        "id": "claim",
        "claim": "says",
        "paper": "paper",
        "verdict": "verdict",
        "sentence": "found here",
    }
    return pd.DataFrame([{new: getattr(c, old) for old, new in columns.items()} for c in claims])


def runs_table(results: ProfileResults) -> pd.DataFrame:
    """The scale: one row per usable run with its settings, sizes and times."""
    return pd.DataFrame([_run_row(run) for _, run in sorted(results.runs.items())])


def _run_row(run: RunResult) -> dict[str, Any]:
    info, timing, quantization = run.info, run.timing, run.config.quantization
    return {
        "experiment": run.experiment,
        "run": EXPERIMENTS[run.experiment].title,
        "seed": run.seed,
        "lr": run.config.lr,
        "steps": info["num_steps"],
        "tokens_per_step": info["tokens_per_step"],
        "window": quantization.amax_history_len
        if quantization and quantization.amax_compute_algo == "max_window"
        else None,
        "warmup_steps": quantization.bf16_warmup_steps if quantization else None,
        "converted": f"{info['num_converted_linears']}/{info['num_linears']}",
        "train_seconds": timing.get("train_seconds"),
        "eval_seconds": timing.get("eval_seconds"),
    }


def to_markdown(table: pd.DataFrame, digits: int = 4) -> str:
    """A Markdown table; numbers to `digits` significant digits, empty for a value that is not there."""
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "|" + "---|" * len(table.columns)]
    for values in table.itertuples(index=False):
        lines.append("| " + " | ".join(_cell(value, digits) for value in values) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: object, digits: int) -> str:
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return ""
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    return " ".join(str(value).split()).replace("|", "\\|")
