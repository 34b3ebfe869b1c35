"""One run's directory, read with suspicion: a run is used whole or not at all.

A result may be missing, cut short, damaged, from other settings, or somebody else's. Each of these ends as
`Unusable` with a reason for people; the report lists it and draws nothing from that run. Only files that
carry the results are required; timings and the executed notebook may be absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8.experiments import RunConfig
from pangu_hif8.files import digest, sha256_file
from pangu_hif8.run_checks import (
    DOMAINS,
    HELDOUT_COLUMNS,
    ITEM_COLUMNS,
    Unusable,
    check_summary,
    load_object,
    load_table,
    refusing_damage,
)
from pangu_hif8.training_files import read_training, refusing_to_user, stated_config

IDENTITY = ("model_digest", "data_digest", "items_digest", "eval_settings", "item_ids")


@dataclass(frozen=True)
class RunResult:
    """A complete and current run. Frames have the columns of run_checks, in both schemas; E0 has no steps."""

    experiment: str
    seed: int
    config: RunConfig
    info: dict[str, Any]
    steps: pd.DataFrame | None
    saturation: pd.DataFrame | None
    summary: dict[str, Any]
    items: pd.DataFrame
    heldout: pd.DataFrame
    timing: dict[str, Any]
    files: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.config.run_name}/seed{self.seed}"

    @property
    def num_skipped(self) -> int:
        """Steps whose loss or gradient was not finite, so that nothing was updated."""
        return 0 if self.steps is None else int(self.steps["skipped"].sum())

    def identity(self) -> dict[str, str]:
        """What must be equal between runs that are compared: start, data, items, evaluation settings."""
        settings = {k: self.summary.get(k) for k in ("batch_size", "add_bos_token")}
        ids = [self.items[["task", "item_id"]].astype(str).values.tolist(), _sequence_ids(self.heldout)]
        values = [
            self.info.get("model_digest"),
            self.info.get("data_digest"),
            self.summary.get("items_digest"),
        ]
        return dict(zip(IDENTITY, [*map(str, values), digest(settings), digest(ids)], strict=True))


def _sequence_ids(heldout: pd.DataFrame) -> list[list[str]]:
    rows: list[list[str]] = heldout[["domain", "sequence"]].astype(str).values.tolist()
    return rows


def read_run(directory: Path, expected: RunConfig) -> RunResult:
    """Read and check one run directory against the configuration it ought to have. Raises Unusable."""
    with refusing_damage():
        return _read_run(directory, expected)


def open_run(directory: Path | str) -> RunResult:
    """Read one run by itself, judged by the settings that it states. Raises UserError that says the fault."""
    where = Path(directory)
    with refusing_to_user(where):
        return read_run(where, stated_config(where))


def _read_run(directory: Path, expected: RunConfig) -> RunResult:
    training = read_training(directory, expected)
    summary = load_object(directory / "eval.json")
    check_summary(summary, expected)
    items = _checked_items(directory / "items.csv", summary)
    heldout = _checked_heldout(directory / "heldout.csv", summary)
    return RunResult(
        experiment=expected.experiment,
        seed=expected.seed,
        config=expected,
        info=training.info,
        steps=training.steps,
        saturation=training.saturation,
        summary=summary,
        items=items,
        heldout=heldout,
        timing=_timing(directory),
        files=_hashes(directory, expected),
    )


def _checked_items(path: Path, summary: dict[str, Any]) -> pd.DataFrame:
    metrics = {task["metric"] for task in summary["tasks"].values()}
    columns = [*ITEM_COLUMNS, *sorted(metrics.difference(ITEM_COLUMNS))]
    items = load_table(path, columns, text=("task", "item_id"), empty={"acc", "acc_norm", *metrics})
    if items.duplicated(["task", "item_id"]).any():
        raise Unusable("items.csv has an item twice")
    if set(items["task"]) != set(summary["tasks"]):
        raise Unusable("items.csv and eval.json have different tasks")
    for name, task in summary["tasks"].items():
        scores = items.loc[items["task"] == name, task["metric"]]
        if len(scores) != task["num_items"] or not scores.isin((0, 1)).all():
            raise Unusable(f"items.csv: {name} has {len(scores)} items, or one without a score")
        if abs(scores.mean() - task["value"]) > 1e-6:
            raise Unusable(f"items.csv and eval.json disagree on {name}")
    items["correct"] = _correct(items, summary)
    return items.sort_values(["task", "item_id"], ignore_index=True)


def _correct(items: pd.DataFrame, summary: dict[str, Any]) -> pd.Series:
    correct = pd.Series(np.nan, index=items.index)
    for name, task in summary["tasks"].items():
        correct = correct.where(items["task"] != name, items[task["metric"]])
    return correct


def _checked_heldout(path: Path, summary: dict[str, Any]) -> pd.DataFrame:
    table = load_table(path, HELDOUT_COLUMNS, text=("domain",))
    if set(table["domain"]) != set(DOMAINS) or table.duplicated(["domain", "sequence"]).any():
        raise Unusable("heldout.csv lacks a domain or has a sequence twice")
    for domain, rows in table.groupby("domain"):
        known = summary["heldout"][domain]
        loss = float(np.average(rows["loss"], weights=rows["num_tokens"]))
        if len(rows) != known["num_sequences"] or abs(loss - known["loss"]) > 1e-3 * abs(loss):
            raise Unusable(f"heldout.csv and eval.json disagree on {domain}")
    return table.sort_values(["domain", "sequence"], ignore_index=True)


def _timing(directory: Path) -> dict[str, Any]:
    """Wall times where they are there and readable; nothing depends on them."""
    found: dict[str, Any] = {}
    for name in ("train_timing.json", "eval_timing.json"):
        try:
            found |= load_object(directory / name)
        except (Unusable, OSError):
            continue
    return found


def _hashes(directory: Path, expected: RunConfig) -> dict[str, str]:
    names = ["run.json", "eval.json", "items.csv", "heldout.csv"]
    names += ["steps.csv"] if expected.lr is not None else []
    names += ["saturation.csv"] if expected.quantization is not None else []
    timings = [n for n in ("train_timing.json", "eval_timing.json") if (directory / n).is_file()]
    return {name: sha256_file(directory / name) for name in names + timings}
