"""The paper's published figures, as data (arXiv 2605.26189 and its authors' published logs).

The report sets them beside what was measured here and takes its scale of "about as close as the paper's"
from them. They are never mixed into a measured figure. `published/README.md` names the source.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8.files import read_json
from pangu_hif8.metrics import loss_ape_pct, relative_drop_pct
from pangu_hif8.paths import PROFILES_DIR

PACKAGE_DATA = PROFILES_DIR.parent / "published"

TOKENS_PER_STEP = 1024 * 1024  # global batch times sequence length
WARMUP_STEPS = 500  # the published run quantizes from step 501
RUN_OF_EXPERIMENT = {
    "E1": "bf16_lr1e-4",
    "E3": "exponential_smoothing_lr1e-4",
    "E4": "current_lr1e-4",
    "E5": "max_window_lr1e-4",
    "E6": "bf16_lr1e-5",
    "E8": "max_window_warmup_lr1e-5",
}  # the most-recent runs E2 and E7 were not published
PUBLISHED_TASK = {"mmlu_continuation": "mmlu"}  # the same items, answers scored as text and not as letters


@cache
def benchmarks() -> dict[str, Any]:
    """The published benchmark scores (percent) with their shots and metrics."""
    scores: dict[str, Any] = read_json(PACKAGE_DATA / "benchmarks.json")
    return scores


@cache
def num_items(task: str) -> int:
    """Items of a published benchmark, in the split that was scored; `benchmark_items.json` has the source."""
    return int(read_json(PACKAGE_DATA / "benchmark_items.json")[task]["num_items"])


@cache
def loss_table() -> pd.DataFrame:
    """Columns step, loss_bf16, loss_hif8_max, lr; 10,000 rows."""
    return pd.read_csv(PACKAGE_DATA / "loss_bf16_vs_hif8_max_lr1e-5.csv")


@cache
def ape_pct(after_warmup: bool = False) -> float:
    """The published runs' APE in percent, over all steps or over the quantized ones only."""
    table = loss_table()
    rows = table[table["step"] > WARMUP_STEPS] if after_warmup else table
    return loss_ape_pct(rows["loss_hif8_max"].to_numpy(), rows["loss_bf16"].to_numpy())


def accuracy(experiment: str, task: str) -> float | None:
    """A published score in percent, or None where the authors published none."""
    run = RUN_OF_EXPERIMENT.get(experiment)
    value = benchmarks()["runs"][run].get(PUBLISHED_TASK.get(task, task)) if run else None
    return None if value is None else float(value)


def drop_pct(experiment: str, baseline: str, task: str) -> float | None:
    """The published drop relative to the matched baseline, in percent; None where not published."""
    value, base = accuracy(experiment, task), accuracy(baseline, task)
    return None if value is None or not base else relative_drop_pct(base, value)


def forgetting_points(tasks: tuple[str, ...] = ("mmlu", "hellaswag", "arc_easy", "arc_challenge")) -> float:
    """Published mean gap between lr 1e-5 and lr 1e-4 without quantization (E6 - E1), accuracy points."""
    runs = benchmarks()["runs"]
    gaps = [runs["bf16_lr1e-5"][task] - runs["bf16_lr1e-4"][task] for task in tasks]
    return float(np.mean(gaps))
