"""From a step's record to a line of the journal, and from the journal to steps.csv and saturation.csv.

A resumed run has its earlier steps in the journal only, so every run's tables are made from the journal.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from typing import Any

from pangu_hif8.sampling import SampledStats
from pangu_hif8.scaling import ScalingState
from pangu_hif8.slots import tensors_of
from pangu_hif8.train import StepRecord

STEP_COLUMNS = (
    "step",
    "loss",
    "lr",
    "grad_norm",
    "quantized",
    "skipped",
    "saturated_share",
    "max_overshoot",
    "moved_share",
)
SATURATION_COLUMNS = (
    "step",
    "block",
    "layer",
    "kind",
    "amax",
    "estimate",
    "saturated",
    "clipped_share",
    "flushed_share",
    "sqnr_db",
)
_STATS = ("clipped_share", "flushed_share", "sqnr_db")
_STEP = ("step", "loss", "lr", "grad_norm", "seconds", "skipped", "moved_share")


def entry_of(record: StepRecord, scaling: ScalingState | None) -> dict[str, Any]:
    """One step as plain values. Slot by slot; "quantized" is the mode, also where the step was skipped."""
    entry = {name: getattr(record, name) for name in _STEP}
    entry["quantized"] = scaling is not None and scaling.mode == "quantize"
    step = record.scaling
    if step is not None:
        entry |= {name: getattr(step, name).tolist() for name in ("amax", "estimate", "saturated")}
        entry["stats"] = _plain_stats(step.stats)
    return entry


def _plain_stats(stats: SampledStats | None) -> dict[str, list[float]] | None:
    return None if stats is None else {name: getattr(stats, name).tolist() for name in _STATS}


def csv_text(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A CSV file's text, with \\n line ends."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def steps_csv(entries: list[dict[str, Any]], names: list[str]) -> str:
    """The text of steps.csv; `names` are the scaling state's slots, none for an unquantized run."""
    slots = [slot for _, slot in tensors_of(names)]
    return csv_text(STEP_COLUMNS, (_step_row(entry, slots) for entry in entries))


def _step_row(entry: dict[str, Any], slots: list[int]) -> list[Any]:
    measured = [_finite(entry["loss"]), entry["lr"], _finite(entry["grad_norm"])]
    flags = [int(entry["quantized"]), int(entry["skipped"])]
    return [entry["step"], *measured, *flags, *_saturation(entry, slots), _blank(entry["moved_share"])]


def _saturation(entry: dict[str, Any], slots: list[int]) -> list[Any]:
    """Share of saturated tensors, and the largest amax over its estimate."""
    if not entry["quantized"] or "amax" not in entry:
        return ["", ""]
    pairs = [(entry["amax"][s], entry["estimate"][s]) for s in slots]
    share = sum(entry["saturated"][s] for s in slots) / len(slots)
    return [share, max((a / e for a, e in pairs if e > 0 and math.isfinite(a)), default=0.0)]


def saturation_csv(entries: list[dict[str, Any]], names: list[str]) -> str:
    """The text of saturation.csv: one row for every step and tensor."""
    tensors = tensors_of(names)
    return csv_text(SATURATION_COLUMNS, (row for entry in entries for row in _tensor_rows(entry, tensors)))


def _tensor_rows(entry: dict[str, Any], tensors: list[tuple[str, int]]) -> Iterable[list[Any]]:
    for name, slot in tensors:
        yield [entry["step"], *name.split("."), *_tensor_cells(entry, slot)]


def _tensor_cells(entry: dict[str, Any], slot: int) -> list[Any]:
    if "amax" not in entry:
        return [""] * 6
    amax, estimate = _digits(entry["amax"][slot]), _digits(entry["estimate"][slot])
    if not entry["quantized"]:
        return [amax, *[""] * 5]
    stats = entry["stats"]
    sampled = [_digits(stats[name][slot]) for name in _STATS] if stats else [""] * 3
    return [amax, estimate, int(entry["saturated"][slot]), *sampled]


def _digits(value: float) -> str:
    """Nine significant digits give a float32 back exactly."""
    return f"{value:.9g}" if math.isfinite(value) else ""


def _finite(value: float) -> Any:
    return value if math.isfinite(value) else ""


def _blank(value: Any) -> Any:
    return "" if value is None else value
