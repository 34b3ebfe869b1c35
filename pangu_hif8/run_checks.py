"""What a run's files must hold, and the readers that refuse anything else.

Every refusal is an `Unusable` with a reason for people. A text file that does not end with a line end was cut
short; a number that is missing or not finite is an error except in the columns that may be empty.

Schema 2 of run.json added skipped steps, sampled errors and gradients to the tables; schema 1, which earlier
runs have, is read as a run that skipped nothing and sampled nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8.config import QuantConfig
from pangu_hif8.differences import differences
from pangu_hif8.experiments import RunConfig

SCHEMA_VERSIONS = (1, 2)
STEP_COLUMNS = ["step", "loss", "lr", "grad_norm", "quantized", "skipped", "saturated_share", "max_overshoot"]
SAMPLED_COLUMNS = ["clipped_share", "flushed_share", "sqnr_db"]
SATURATION_COLUMNS = [
    "step", "block", "layer", "kind", "amax", "estimate", "saturated", *SAMPLED_COLUMNS
]  # fmt: skip
ITEM_COLUMNS = ["task", "item_id", "acc", "acc_norm", "nll_correct"]
HELDOUT_COLUMNS = ["domain", "sequence", "loss", "num_tokens"]
LAYERS = ("gate_proj", "up_proj", "down_proj")
KINDS = ("input", "weight")  # what claims and figures compare; a run may quantize gradients as well
GRADIENT = "gradient"
DOMAINS = ("same_domain", "second_domain")


def each_once(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of tensors without the inputs of up_proj: it reads the tensor that gate_proj reads."""
    return rows[~((rows["kind"] == "input") & (rows["layer"] == "up_proj"))]


class Unusable(Exception):
    """A run that the report must not use; the text says why."""


@contextmanager
def refusing_damage() -> Iterator[None]:
    """Turn whatever a damaged file raises while it is read into Unusable."""
    try:
        yield
    except Unusable:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        text = str(error).splitlines()[0] if str(error) else ""
        raise Unusable(f"damaged: {type(error).__name__} {text}".strip()) from error


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
        table = pd.read_csv(path, dtype=dict.fromkeys(text, str))
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
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise Unusable(f"{name}: column {column} is not numeric")
        values = table[column].to_numpy(dtype=float)
        if not np.isfinite(values).all() and column not in empty:
            raise Unusable(f"{name}: column {column} has a value that is missing or not finite")
    for column in text:
        if table[column].isna().any():
            raise Unusable(f"{name}: column {column} has an empty field")


def check_info(info: dict[str, Any], expected: RunConfig) -> None:
    """Refuse a run.json of another run, of other settings, unfinished, or at odds with itself."""
    if info.get("schema_version") not in SCHEMA_VERSIONS:
        known = " and ".join(map(str, SCHEMA_VERSIONS))
        raise Unusable(f"run.json has schema {info.get('schema_version')!r}, this report reads {known}")
    for key in ("profile", "experiment", "seed"):
        if info.get(key) != getattr(expected, key):
            raise Unusable(f"run.json belongs to another run ({key} is {info.get(key)!r})")
    if info.get("status") != "complete":
        raise Unusable(f"not finished (status {info.get('status')!r})")
    if info.get("train_hash") != expected.train_hash():
        raise Unusable(f"trained with other settings ({changed_settings(info.get('config'), expected)})")
    _check_quantization(info, expected)
    if info["schema_version"] > 1 and expected.lr is not None:
        _check_progress(info)


def _check_quantization(info: dict[str, Any], expected: RunConfig) -> None:
    num, start = info["num_converted_linears"], info["quantized_from_step"]
    if len(info["converted"]) != num:
        raise Unusable("run.json contradicts itself on the converted layers")
    if expected.quantization is None:
        if num or start is not None:
            raise Unusable("an unquantized run says that it converted layers")
    elif num < 1 or not _starts_as_set(start, info, expected.quantization):
        raise Unusable(f"labelled HiF8, but {num} layers were converted and it quantizes from step {start}")


def _starts_as_set(start: Any, info: dict[str, Any], quantization: QuantConfig) -> bool:
    """At the step after the warm-up; one whose length depends on the amaxes may end at any step."""
    if quantization.adaptive_warmup_spread is not None:
        return _is_count(start) and 1 <= start <= info["num_steps"]
    return bool(start == quantization.bf16_warmup_steps + 1)


def _check_progress(info: dict[str, Any]) -> None:
    num, resumed = info["num_steps"], info.get("resumed_from")
    if not (_is_count(info.get("num_skipped_steps")) and info["num_skipped_steps"] <= num):
        raise Unusable(f"run.json: num_skipped_steps is {info.get('num_skipped_steps')!r}")
    if not (_is_count(info.get("world_size")) and info["world_size"] >= 1):
        raise Unusable(f"run.json: world_size is {info.get('world_size')!r}")
    if not (isinstance(resumed, list) and all(_is_count(step) and step <= num for step in resumed)):
        raise Unusable(f"run.json: resumed_from is {resumed!r}, no list of steps")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def changed_settings(found: Any, expected: RunConfig) -> str:
    """Names of the settings that differ, with both values, for the reader of the report."""
    new = expected.model_dump(mode="json")
    return differences(found, new, "{name}: {old}, now {new}", ignored=("custom",)) or "hash differs"


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
        wanted_items = task.num_items or found["num_items"]  # None: all that the benchmark has
        if found["num_items"] != wanted_items or found["metric"] != task.metric:
            raise Unusable(f"eval.json: {name} has {found['num_items']} items of {found['metric']}")
        if not (0 <= found["value"] <= 1 and math.isfinite(found["stderr"])):
            raise Unusable(f"eval.json: {name} has no finite score")
