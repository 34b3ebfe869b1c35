"""What a run's files must hold, and the readers that refuse anything else.

Every refusal is an `Unusable` with a reason for people. A text file that does not end with a line end was cut
short; a number that is missing or not finite is an error except in the columns that may be empty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8.experiments import RunConfig

SCHEMA_VERSION = 1
STEP_COLUMNS = ["step", "loss", "lr", "grad_norm", "quantized", "saturated_share", "max_overshoot"]
SATURATION_COLUMNS = ["step", "block", "layer", "kind", "amax", "estimate", "saturated"]
ITEM_COLUMNS = ["task", "item_id", "acc", "acc_norm", "nll_correct"]
HELDOUT_COLUMNS = ["domain", "sequence", "loss", "num_tokens"]
LAYERS = ("gate_proj", "up_proj", "down_proj")
KINDS = ("input", "weight")
DOMAINS = ("same_domain", "second_domain")


class Unusable(Exception):
    """A run that the report must not use; the text says why."""


def load_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises Unusable with the file's name."""
    if not path.is_file():
        raise Unusable(f"{path.name} is missing")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{path.name} is damaged or cut short") from error
    if not isinstance(value, dict):
        raise Unusable(f"{path.name} is not a JSON object")
    return value


def load_table(
    path: Path, columns: list[str], text: tuple[str, ...] = (), empty: Iterable[str] = ()
) -> pd.DataFrame:
    """A CSV with at least `columns`; numbers finite except in `empty` columns. Raises Unusable."""
    if not path.is_file():
        raise Unusable(f"{path.name} is missing")
    if not path.read_bytes().endswith(b"\n"):
        raise Unusable(f"{path.name} is cut short")
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(text, str), keep_default_na=True)
    except (ValueError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise Unusable(f"{path.name} is damaged") from error
    if absent := [name for name in columns if name not in table]:
        raise Unusable(f"{path.name} has no column {', '.join(absent)}")
    _check_values(table, path.name, [c for c in columns if c not in text], set(empty), text)
    return table[columns]


def _check_values(
    table: pd.DataFrame, name: str, numeric: list[str], empty: set[str], text: tuple[str, ...]
) -> None:
    for column in numeric:
        table[column] = pd.to_numeric(table[column], errors="coerce") if column in empty else table[column]
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise Unusable(f"{name}: column {column} is not numeric")
        values = table[column].to_numpy(dtype=float)
        if not np.isfinite(values).all() and column not in empty:
            raise Unusable(f"{name}: column {column} has a value that is missing or not finite")
    for column in text:
        if table[column].isna().any():
            raise Unusable(f"{name}: column {column} has an empty field")


def check_info(info: dict[str, Any], expected: RunConfig) -> None:
    if info.get("schema_version") != SCHEMA_VERSION:
        raise Unusable(
            f"run.json has schema {info.get('schema_version')!r}, this report reads {SCHEMA_VERSION}"
        )
    for key in ("profile", "experiment", "seed"):
        if info.get(key) != getattr(expected, key):
            raise Unusable(f"run.json belongs to another run ({key} is {info.get(key)!r})")
    if info.get("status") != "complete":
        raise Unusable(f"not finished (status {info.get('status')!r})")
    if info.get("train_hash") != expected.train_hash():
        raise Unusable(f"trained with other settings ({changed_settings(info.get('config'), expected)})")
    _check_quantization(info, expected)


def _check_quantization(info: dict[str, Any], expected: RunConfig) -> None:
    num, start = info["num_converted_linears"], info["quantized_from_step"]
    if len(info["converted"]) != num:
        raise Unusable("run.json contradicts itself on the converted layers")
    if expected.quantization is None:
        if num or start is not None:
            raise Unusable("an unquantized run says that it converted layers")
    elif num < 1 or start != expected.quantization.bf16_warmup_steps + 1:
        raise Unusable(f"labelled HiF8, but {num} layers were converted and it quantizes from step {start}")


def changed_settings(found: Any, expected: RunConfig) -> str:
    """Names of the settings that differ, with both values, for the reader of the report."""
    old, new = _flat(found), _flat(expected.model_dump(mode="json"))
    names = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k) and k != "custom")
    shown = [f"{name}: {old.get(name)!r}, now {new.get(name)!r}" for name in names[:3]]
    return "; ".join(shown) + (f"; and {len(names) - 3} more" if len(names) > 3 else "") or "hash differs"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix or "config": value}
    return {
        k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}".lstrip(".")).items()
    }


def check_summary(summary: dict[str, Any], expected: RunConfig) -> None:
    for key in ("profile", "experiment", "seed"):
        if summary.get(key) != getattr(expected, key):
            raise Unusable(f"eval.json belongs to another run ({key} is {summary.get(key)!r})")
    if summary.get("train_hash") != expected.train_hash() or summary.get("eval_hash") != expected.eval_hash():
        raise Unusable("evaluated with other settings or for another training run")
    wanted = {task.name: task for task in expected.evaluation.tasks}
    if absent := wanted.keys() - summary["tasks"].keys():
        raise Unusable(f"eval.json lacks {', '.join(sorted(absent))}")
    for name, task in wanted.items():
        found = summary["tasks"][name]
        if found["num_items"] != task.num_items or found["metric"] != task.metric:
            raise Unusable(f"eval.json: {name} has {found['num_items']} items of {found['metric']}")
        if not (0 <= found["value"] <= 1 and math.isfinite(found["stderr"])):
            raise Unusable(f"eval.json: {name} has no finite score")
