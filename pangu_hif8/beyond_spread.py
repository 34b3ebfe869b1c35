"""When an amax history has settled: its relative spread by step, from the amaxes that a run recorded.

The adaptive warm-up looks at the median over all scaled tensors (`ScalingState.spread`). Three of a block's
five are weights, whose amaxes drift with the learning rate, so the median follows them; the inputs' amaxes
jump with each batch.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pangu_hif8.results import recorded_rows
from pangu_hif8.run_checks import each_once
from pangu_hif8.run_files import RunResult

ALL, KINDS = "all", ("input", "weight")


def spread_trace(run: RunResult) -> pd.DataFrame:
    """Median over tensors of (largest - smallest) / mean of the window, by step from the first full window.

    Columns all, input, weight; index step, the step at whose end the window is looked at. gate_proj and
    up_proj have one input: it counts once, as it does for the warm-up.
    """
    assert run.config.quantization
    amax = each_once(recorded_rows(run)).pivot(
        index="step", columns=["kind", "block", "layer"], values="amax"
    )
    window = amax.rolling(run.config.quantization.amax_history_len)
    spread = ((window.max() - window.min()) / window.mean()).dropna()
    of_kind = {kind: spread.columns.get_level_values("kind") == kind for kind in KINDS}
    values = {ALL: spread.to_numpy()} | {kind: spread.to_numpy()[:, own] for kind, own in of_kind.items()}
    medians = {name: np.quantile(part, 0.5, axis=1, method="lower") for name, part in values.items()}
    return pd.DataFrame(medians, index=spread.index)  # of two middle ones the lower, as torch's median
