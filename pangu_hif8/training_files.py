"""What training leaves, read with suspicion: run.json, steps.csv and saturation.csv, before any evaluation.

A cluster may train a run on one day and evaluate it on another, so this half can be read by itself. Both
schemas give the same frames: an earlier run, which could not skip a step and sampled nothing, gets `skipped`
0 and empty sampled columns.

What has to be where: a step is skipped (loss or gradient not finite) or it has a finite loss and gradient
norm. A skipped step records nothing. A step before the switch has amaxes and neither estimates nor sampled
errors; every other one has an estimate and a verdict for each tensor, and on a sampled step all tensors have
their shares. An amax that was not finite stands as an empty cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig
from pangu_hif8.run_checks import (
    GRADIENT,
    KINDS,
    LAYERS,
    SAMPLED_COLUMNS,
    SATURATION_COLUMNS,
    STEP_COLUMNS,
    Unusable,
    check_info,
    load_object,
    load_table,
    refusing_damage,
)

TENSOR = ["block", "layer", "kind"]


@dataclass(frozen=True)
class TrainingFiles:
    """The checked record of a training run; E0 has no steps, an unquantized run no saturation table."""

    info: dict[str, Any]
    steps: pd.DataFrame | None
    saturation: pd.DataFrame | None


@contextmanager
def refusing_to_user(directory: Path) -> Iterator[None]:
    """Turn a refusal of this directory into a UserError that says the fault."""
    try:
        yield
    except (Unusable, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{directory} holds no usable run: {reason}; run the experiment again") from error


def stated_config(directory: Path) -> RunConfig:
    """The configuration that a run says it has. Raises Unusable, or ValueError for one of another shape."""
    return RunConfig.model_validate(load_object(directory / "run.json").get("config"))


def read_training(directory: Path, expected: RunConfig) -> TrainingFiles:
    """Read and check what training left, against the configuration it ought to have. Raises Unusable."""
    with refusing_damage():
        info = load_object(directory / "run.json")
        check_info(info, expected)
        if expected.lr is None:
            return TrainingFiles(info, None, None)
        steps = _checked_steps(directory / "steps.csv", info)
        if expected.quantization is None:
            return TrainingFiles(info, steps, None)
        return TrainingFiles(info, steps, _checked_saturation(directory / "saturation.csv", info, steps))


def open_training(directory: Path | str) -> TrainingFiles:
    """Read a run's training half by itself, judged by the settings that it states. Raises UserError."""
    where = Path(directory)
    with refusing_to_user(where):
        return read_training(where, stated_config(where))


def quantized_kinds(info: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of tensor that a run scales: inputs, weights, and gradients where it is set to."""
    gradients = info["config"]["quantization"].get("gradients")
    if not (gradients is None or isinstance(gradients, Mapping)):
        raise Unusable(f"run.json: config.quantization.gradients is {gradients!r}")
    return KINDS if gradients is None else (*KINDS, GRADIENT)


def _load(path: Path, info: Mapping[str, Any], columns: list[str], **options: Any) -> pd.DataFrame:
    """A table in the columns of schema 2; those that schema 1 lacks are filled in."""
    if info["schema_version"] > 1:
        return load_table(path, columns, **options)
    added: dict[str, Any] = {"skipped": 0, **dict.fromkeys(SAMPLED_COLUMNS, np.nan)}
    found = load_table(path, [name for name in columns if name not in added], **options)
    return found.assign(**{name: value for name, value in added.items() if name in columns})[columns]


def _checked_steps(path: Path, info: Mapping[str, Any]) -> pd.DataFrame:
    steps = _load(path, info, STEP_COLUMNS, empty=("loss", "grad_norm", "saturated_share", "max_overshoot"))
    num, start = info["config"]["train"]["steps"], info["quantized_from_step"]
    if info["num_steps"] != num or list(steps["step"]) != list(range(1, num + 1)):
        raise Unusable(f"steps.csv has {len(steps)} of {num} steps")
    quantized = steps["step"] >= (num + 1 if start is None else start)
    if not (steps["quantized"] == quantized).all():
        raise Unusable("steps.csv and run.json disagree on the step from which it quantizes")
    _check_skipped(steps, info)
    _check_step_saturation(steps)
    return steps


def _check_skipped(steps: pd.DataFrame, info: Mapping[str, Any]) -> None:
    """A step is skipped exactly when its loss or gradient is not finite, and run.json knows how many are."""
    finite = np.isfinite(steps["loss"]) & np.isfinite(steps["grad_norm"])
    taken = steps["skipped"] == 0
    _require(steps["skipped"].isin((0, 1)), steps, "steps.csv: skipped is neither 0 nor 1")
    _require(finite | ~taken, steps, "steps.csv: no finite loss and gradient norm, and not skipped")
    _require(~finite | taken, steps, "steps.csv: skipped, though loss and gradient norm are finite")
    num = int((~taken).sum())
    if num != info.get("num_skipped_steps", 0):
        raise Unusable(f"steps.csv skips {num} steps, run.json says {info['num_skipped_steps']}")
    if not taken.any() or (steps["quantized"].any() and not (taken & (steps["quantized"] == 1)).any()):
        raise Unusable("every step that would tell something was skipped (loss or gradient not finite)")


def _check_step_saturation(steps: pd.DataFrame) -> None:
    used = (steps["quantized"] == 1) & (steps["skipped"] == 0)
    share, largest = steps["saturated_share"], steps["max_overshoot"]
    _require(~used | share.between(0, 1), steps, "steps.csv: a quantized step without its saturated_share")
    _require(~used | np.isfinite(largest), steps, "steps.csv: a quantized step without its max_overshoot")
    empty = share.isna() & largest.isna()
    _require(used | empty, steps, "steps.csv: saturation of a step that did not quantize, or was skipped")


def _checked_saturation(path: Path, info: Mapping[str, Any], steps: pd.DataFrame) -> pd.DataFrame:
    empty = ("amax", "estimate", "saturated", *SAMPLED_COLUMNS)
    table = _load(path, info, SATURATION_COLUMNS, text=("layer", "kind"), empty=empty)
    _check_complete(table, info)
    skipped = table["step"].isin(steps.loc[steps["skipped"] == 1, "step"])
    used = ~skipped & (table["step"] >= info["quantized_from_step"])
    _check_recorded(table, skipped, used)
    _check_sampled(table, skipped, used)
    found = table.groupby("step")["saturated"].mean().to_numpy(dtype=float)
    same = np.isclose(steps["saturated_share"], found, rtol=0, atol=1e-9, equal_nan=True)
    _require(pd.Series(same), steps, "steps.csv and saturation.csv disagree on saturated_share")
    return table


def _check_complete(table: pd.DataFrame, info: Mapping[str, Any]) -> None:
    """Every tensor in every step, once."""
    kinds, num_steps, num = quantized_kinds(info), info["num_steps"], info["num_converted_linears"]
    if not (table["layer"].isin(LAYERS).all() and table["kind"].isin(kinds).all()):
        raise Unusable("saturation.csv names a layer or kind that is not quantized")
    num_rows = num_steps * num * len(kinds)
    if len(table) != num_rows or table.duplicated(["step", *TENSOR]).any():
        raise Unusable(f"saturation.csv has {len(table)} of {num_rows} rows, or one twice")
    tensors = table[TENSOR].drop_duplicates()
    if list(tensors.groupby("kind").size().reindex(kinds)) != [num] * len(kinds):
        raise Unusable(f"saturation.csv has {len(tensors)} of {num * len(kinds)} tensors")
    if not table["step"].isin(range(1, num_steps + 1)).all() or not (table["block"] % 1 == 0).all():
        raise Unusable("saturation.csv names a step or block that is not there")


def _check_recorded(table: pd.DataFrame, skipped: pd.Series, used: pd.Series) -> None:
    """Nothing of a skipped step, estimates and verdicts of those that quantized.

    An amax that is missing in another step was not finite; current scaling then has no estimate either.
    """
    amax, estimate, saturated = (table[name] for name in ("amax", "estimate", "saturated"))
    _require(amax.isna() | ~skipped, table, "saturation.csv: an amax of a skipped step")
    _require(estimate.isna() | used, table, "saturation.csv: an estimate that was not used")
    _require(estimate.notna() | amax.isna() | ~used, table, "saturation.csv: no estimate in a quantized step")
    _require(saturated.isna() | saturated.isin((0, 1)), table, "saturation.csv: saturated is no 0 or 1")
    _require(saturated.notna() == used, table, "saturation.csv lacks the saturation of a quantized step")


def _check_sampled(table: pd.DataFrame, skipped: pd.Series, used: pd.Series) -> None:
    """Shares between 0 and 1, of all tensors of a step or of none, and only where something quantized."""
    clipped, flushed, sqnr = (table[name] for name in SAMPLED_COLUMNS)
    for share in (clipped, flushed):
        _require(share.isna() | share.between(0, 1), table, f"saturation.csv: {share.name} is no share")
    sampled = clipped.notna()
    _require(flushed.notna() == sampled, table, "saturation.csv: one of two sampled shares is missing")
    _require(sqnr.isna() | sampled, table, "saturation.csv: sqnr_db on a step that was not sampled")
    _require(used | skipped | ~sampled, table, "saturation.csv: sampled errors of a step without any")
    seen = ~skipped & (table["amax"] != 0)  # a tensor that no pass reached has nothing to sample
    whole = sampled[seen].groupby(table["step"]).transform("mean").isin((0, 1))
    _require(whole, table[seen], "saturation.csv: a step of which only some tensors were sampled")


def _require(ok: pd.Series, table: pd.DataFrame, fault: str) -> None:
    """Raise Unusable with the first row that is not as it must be."""
    if ok.all():
        return
    first = table[~ok].iloc[0]
    where = [f"step {int(first['step'])}"]
    where += [f"block {int(first['block'])} {first['layer']} {first['kind']}"] if "kind" in table else []
    raise Unusable(f"{fault} ({', '.join(where)})")
