"""A run's scaling telemetry as one tidy DataFrame, for a notebook; it needs no torch and no evaluation."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pangu_hif8.run_checks import SATURATION_COLUMNS
from pangu_hif8.training_files import open_training

DTYPES = {
    "step": "int64",
    "block": "int64",
    "layer": "object",
    "kind": "object",
    "quantized": "bool",
    "amax": "float64",
    "estimate": "float64",
    "overshoot": "float64",
    "saturated": "boolean",
    "clipped_share": "float64",
    "flushed_share": "float64",
    "sqnr_db": "float64",
}


def read_telemetry(run_directory: Path | str) -> pd.DataFrame:
    """What happened to every scaled tensor in every step of a run: one row per (step, tensor).

    step: optimizer step, from 1. block, layer: the decoder block's index and gate_proj, up_proj or
        down_proj. kind: input, weight, or gradient (only in runs that quantize gradients).
    quantized: whether the step quantized, False during the warm-up.
    amax: the tensor's largest magnitude in this step, in the tensor's own unit; the maximum over
        micro-batches and ranks. NaN where it was not finite, and in a skipped step (one whose loss or
        gradient was not finite).
    estimate: the amax that was mapped to the largest value in use (a margin included), same unit.
        overshoot: amax / estimate, a pure factor; above 1 the tensor saturated. saturated: True, False or
        <NA>. All three are missing where the step did not quantize or was skipped.
    clipped_share, flushed_share: shares from 0 to 1 of the tensor's elements that lay beyond the limit, and
        that became zero without being zero. sqnr_db: signal-to-quantization-noise ratio in dB, NaN for an
        all-zero tensor. These three are filled on sampled steps only; runs from before sampling have none.

    Rows are in the file's order: by step, then by tensor. A run that quantizes nothing gives an empty frame
    with the same columns. Reads run.json, steps.csv and saturation.csv, so it works from the end of training
    on, without an evaluation. Raises UserError that says what is wrong with the run.
    """
    training = open_training(run_directory)
    start = training.info["quantized_from_step"]
    empty = pd.DataFrame({name: pd.Series(dtype="float64") for name in SATURATION_COLUMNS})
    table = empty if training.saturation is None else training.saturation
    found = table.assign(quantized=table["step"] >= (start or 0), overshoot=table["amax"] / table["estimate"])
    return found[list(DTYPES)].astype(DTYPES).reset_index(drop=True)
