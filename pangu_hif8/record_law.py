"""How often a maximum over the last w steps is exceeded, replayed from recorded amaxes.

What an estimator would have been does not matter here: the amaxes that a run recorded are walked through once
more with windows of any length. For steps that are independent and alike the share is 1/(w + 1), whatever
their law: the newest of w + 1 values is as likely the largest as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pangu_hif8.metrics import Floats
from pangu_hif8.results import ProfileResults, recorded_rows
from pangu_hif8.run_checks import each_once
from pangu_hif8.run_files import RunResult

WINDOWS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Traces:
    """Amaxes [num_steps, num_tensors] that one run recorded, in order, all in the same `steps`."""

    seed: int
    steps: NDArray[np.int64]
    amaxes: Floats


def replay(amaxes: Floats, window: int) -> Floats:
    """amax over the largest of the `window` before it; above 1 it saturates.

    [num_steps, ...] in order -> [num_steps - window, ...]; empty where no step has that many before it.
    """
    if len(amaxes) <= window:
        return np.empty((0, *amaxes.shape[1:]))
    before = np.lib.stride_tricks.sliding_window_view(amaxes[:-1], window, axis=0).max(axis=-1)
    return np.asarray(amaxes[window:] / before, dtype=np.float64)


def traces(results: ProfileResults, experiments: Iterable[str], kind: str) -> list[Traces]:
    """Recorded amaxes above zero of one kind.

    gate_proj and up_proj read one tensor; as an input it stands once.
    """
    runs = [run for name in experiments for run in results.of(name) if run.saturation is not None]
    return [found for run in runs for found in _of_run(run, kind)]


def _of_run(run: RunResult, kind: str) -> Iterator[Traces]:
    """The tensors that all recorded in the same steps together, any other by itself."""
    rows = recorded_rows(run)
    rows = rows[(rows["kind"] == kind) & (rows["amax"] > 0)]
    table = each_once(rows).pivot(index="step", columns=["block", "layer"], values="amax")
    gaps = table.isna().any()
    parts = [table.loc[:, ~gaps], *(table.loc[:, [name]].dropna() for name in table.columns[gaps])]
    for part in parts:
        if part.size:
            yield Traces(run.seed, part.index.to_numpy(dtype=np.int64), part.to_numpy(dtype=np.float64))


def replayed(found: Iterable[Traces], window: int) -> pd.DataFrame:
    """Columns seed, step, ratio, saturated: every step of every tensor that has `window` before it."""
    parts = [_replayed(trace, window) for trace in found]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=COLUMNS)


COLUMNS = ["seed", "step", "ratio", "saturated"]


def _replayed(trace: Traces, window: int) -> pd.DataFrame:
    ratio = replay(trace.amaxes, window)
    steps = np.repeat(trace.steps[len(trace.steps) - len(ratio) :], trace.amaxes.shape[1])
    flat = ratio.ravel()
    return pd.DataFrame(
        {"seed": np.full(flat.size, trace.seed), "step": steps, "ratio": flat, "saturated": flat > 1}
    )
