"""Measures the saturation dose response on the untouched base model, one evaluation a point.

Each point is noted as soon as it is done, so that a killed measurement goes on where it stopped.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pangu_hif8.config import load_profile
from pangu_hif8.dose_files import Point, dose_fault, dose_file, dose_inputs, dose_task, points
from pangu_hif8.files import sha256_file
from pangu_hif8.freshness import exclusive
from pangu_hif8.measured_rows import Row

if TYPE_CHECKING:
    from pangu_hif8.evaluate import Evaluation
    from pangu_hif8.prepared import Prepared


def measure_dose(profile: str, *, fresh: bool = False) -> None:
    """Measure the points that are not there, if any. Raises UserError.

    `fresh`: a response that came with the repository is measured again.
    """
    file = dose_file(profile)
    with exclusive(file.directory, "the dose response"):
        if not dose_fault(profile) and (file.stamp.is_file() or not fresh):
            return
        from pangu_hif8.prepare import prepare

        prepared = prepare(profile)
        by_name = {point.name: point for point in points()}
        file.make(
            _inputs(profile, prepared), by_name, lambda name: _measure(profile, by_name[name], prepared)
        )


def _inputs(profile: str, prepared: Prepared) -> dict[str, str]:
    from pangu_hif8.lm_tasks import MANIFEST

    parts = {"model": prepared.digests["model"], "data": prepared.digests["shards"]}
    return dose_inputs(profile) | parts | {"items": sha256_file(prepared.benchmarks_dir / MANIFEST)}


def _measure(profile: str, point: Point, prepared: Prepared) -> list[Row]:
    from pangu_hif8.evaluate import evaluate_model
    from pangu_hif8.probing import load_probe, probe_config

    settings = load_profile(profile)
    model, tokenizer = load_probe(probe_config(profile, **_changes(point)), prepared)
    evaluation = settings.evaluation.model_copy(update={"tasks": [dose_task(settings)]})
    return _rows(point, evaluate_model(model, tokenizer, evaluation, prepared))


def _changes(point: Point) -> dict[str, Any]:
    """A margin in octaves: a negative one underestimates amax."""
    if point.factor == 1:
        return {}
    margin = math.log2(point.factor)
    return {"margin": margin, "margin_layers": point.layers, "overflow": point.overflow}


def _rows(point: Point, found: Evaluation) -> list[Row]:
    heldout, items = found.heldout.to_dict("records"), found.items.to_dict("records")
    rows: list[Row] = [[point.name, r["domain"], str(r["sequence"]), float(r["loss"]), ""] for r in heldout]
    for row in items:
        score = float(row[found.summary["tasks"][row["task"]]["metric"]])
        rows.append([point.name, row["task"], str(row["item_id"]), score, float(row["nll_correct"])])
    return rows
