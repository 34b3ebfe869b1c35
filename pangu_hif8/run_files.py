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

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig
from pangu_hif8.files import digest, sha256_file
from pangu_hif8.run_checks import (
    DOMAINS,
    HELDOUT_COLUMNS,
    ITEM_COLUMNS,
    KINDS,
    LAYERS,
    SATURATION_COLUMNS,
    STEP_COLUMNS,
    Unusable,
    check_info,
    check_summary,
    load_object,
    load_table,
)

IDENTITY = ("model_digest", "data_digest", "items_digest", "eval_settings", "item_ids")


@dataclass(frozen=True)
class RunResult:
    """A complete and current run. Frames have the columns named above; E0 has no steps."""

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
        return f"{self.experiment}/seed{self.seed}"

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
    try:
        return _read_run(directory, expected)
    except Unusable:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        text = str(error).splitlines()[0] if str(error) else ""
        raise Unusable(f"damaged: {type(error).__name__} {text}".strip()) from error


def open_run(directory: Path | str) -> RunResult:
    """Read one run by itself, judged by the settings that it states. Raises UserError that says the fault."""
    where = Path(directory)
    try:
        return read_run(where, RunConfig.model_validate(load_object(where / "run.json").get("config")))
    except (Unusable, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{where} holds no usable run: {reason}; run the experiment again") from error


def _read_run(directory: Path, expected: RunConfig) -> RunResult:
    info = load_object(directory / "run.json")
    check_info(info, expected)
    summary = load_object(directory / "eval.json")
    check_summary(summary, expected)
    items = _checked_items(directory / "items.csv", summary)
    heldout = _checked_heldout(directory / "heldout.csv", summary)
    steps = _checked_steps(directory, info) if expected.lr is not None else None
    saturation = _checked_saturation(directory, info) if expected.quantization is not None else None
    return RunResult(
        experiment=expected.experiment,
        seed=expected.seed,
        config=expected,
        info=info,
        steps=steps,
        saturation=saturation,
        summary=summary,
        items=items,
        heldout=heldout,
        timing=_timing(directory),
        files=_hashes(directory, expected),
    )


def _checked_items(path: Path, summary: dict[str, Any]) -> pd.DataFrame:
    items = load_table(path, ITEM_COLUMNS, text=("task", "item_id"), empty=("acc", "acc_norm"))
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
    metric = items["task"].map({name: task["metric"] for name, task in summary["tasks"].items()})
    return items["acc_norm"].where(metric == "acc_norm", items["acc"]).astype(float)


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


def _checked_steps(directory: Path, info: dict[str, Any]) -> pd.DataFrame:
    steps = load_table(directory / "steps.csv", STEP_COLUMNS, empty=("saturated_share", "max_overshoot"))
    num, start = info["config"]["train"]["steps"], info["quantized_from_step"]
    if info["num_steps"] != num or list(steps["step"]) != list(range(1, num + 1)):
        raise Unusable(f"steps.csv has {len(steps)} of {num} steps")
    quantized = steps["step"] >= (num + 1 if start is None else start)
    if not (steps["quantized"].astype(bool) == quantized).all():
        raise Unusable("steps.csv and run.json disagree on the step from which it quantizes")
    return steps


def _checked_saturation(directory: Path, info: dict[str, Any]) -> pd.DataFrame:
    table = load_table(
        directory / "saturation.csv",
        SATURATION_COLUMNS,
        text=("layer", "kind"),
        empty=("amax", "estimate", "saturated"),
    )
    num_rows = info["num_steps"] * info["num_converted_linears"] * len(KINDS)
    if len(table) != num_rows or table.duplicated(["step", "block", "layer", "kind"]).any():
        raise Unusable(f"saturation.csv has {len(table)} of {num_rows} rows")
    if not (table["layer"].isin(LAYERS).all() and table["kind"].isin(KINDS).all()):
        raise Unusable("saturation.csv names a layer or kind that is not quantized")
    used = table[table["step"] >= info["quantized_from_step"]]
    if used["saturated"].isna().any() or not used["saturated"].isin((0, 1)).all():
        raise Unusable("saturation.csv lacks the saturation of a quantized step")
    return table


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
