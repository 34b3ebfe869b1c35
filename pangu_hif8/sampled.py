"""What quantization did to single elements, on the steps on which a run sampled it.

A sample is one tensor in one step: the share of its elements beyond the limit, the share that became zero,
and its signal-to-quantization-noise ratio. Runs from before there was sampling have none.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pangu_hif8.results import ProfileResults, quantized_rows
from pangu_hif8.training_files import quantized_kinds


def sampled_rows(results: ProfileResults, experiment: str) -> pd.DataFrame:
    """The samples of all seeds of an experiment, by (tensor, step), with a column seed; maybe none."""
    tables = [(run.seed, quantized_rows(run)) for run in results.of(experiment)]
    parts = [
        table[table["clipped_share"].notna()].assign(seed=seed) for seed, table in tables if table is not None
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def sampled_experiments(results: ProfileResults) -> list[str]:
    """Experiments that have samples."""
    return [name for name in results.experiments() if len(sampled_rows(results, name))]


def experiment_kinds(results: ProfileResults, experiment: str) -> tuple[str, ...]:
    """The kinds of tensor that an experiment quantizes."""
    return quantized_kinds(results.of(experiment)[0].info)


def sqnr_by_block(results: ProfileResults) -> pd.DataFrame:
    """Columns experiment, kind, layer, block, sqnr_db: the median over sampled steps and seeds.

    Samples without a finite SQNR (all zero, or nothing rounded) are left out; empty when there are none.
    """
    columns = ["experiment", "kind", "layer", "block"]
    tables = [sampled_rows(results, name).assign(experiment=name) for name in sampled_experiments(results)]
    if not tables:
        return pd.DataFrame(columns=[*columns, "sqnr_db"])
    rows = pd.concat(tables, ignore_index=True)
    finite = rows[np.isfinite(rows["sqnr_db"])]
    return finite.groupby(columns, sort=False)["sqnr_db"].median().reset_index()
