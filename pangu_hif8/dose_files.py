"""The saturation dose response as files: which points there are, and how their rows are read.

A point takes the amax of the inputs of some `layers` as `factor` times what it is, and says what happens to
values beyond it (`overflow`). results/<profile>/audit/dose.csv has for each point a row
for every held-out sequence (`part` is its domain, `value` its loss in nats) and for every item (`part` is its
benchmark, `value` 1 where it was answered rightly, `nll` the true answer's negative log-likelihood in nats).
dose.json says what it was made from; rows of another model, of other items, settings or code are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from pangu_hif8.config import Profile, TaskConfig, load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import resolve
from pangu_hif8.files import digest, read_json, sha256_file
from pangu_hif8.freshness import PACKAGE, source_digest
from pangu_hif8.measured_rows import MeasuredRows
from pangu_hif8.metrics import Floats, Interval, paired_accuracy_difference, paired_loss_difference
from pangu_hif8.paths import run_dir
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import DOMAINS, Unusable
from pangu_hif8.sections import page_dir

PROBED = "E4"  # current scaling: no history is needed, so that the base model can be probed
FACTORS = (1.0, 0.9, 0.7, 0.5, 0.35, 0.25)
OVERFLOWS = ("saturate", "taper")
LAYER_GROUPS = ("all", "gate_up", "down")
COLUMNS = ("point", "part", "name", "value", "nll")
PARTS = {"model": "model_digest", "data": "data_digest"}  # of a run's run.json


class Point(NamedTuple):
    """One point of the dose response."""

    factor: float
    overflow: str
    layers: str

    @property
    def name(self) -> str:
        """As the rows have it."""
        return f"{self.factor:g} {self.overflow} {self.layers}"


EXACT = Point(1.0, "saturate", "all")
"""The amax as it is. Nothing lies beyond it, so that overflow and layers make no difference there."""


def points() -> tuple[Point, ...]:
    """Every point once, the exact one first."""
    below = [factor for factor in FACTORS if factor < 1]
    others = [Point(f, o, layers) for layers in LAYER_GROUPS for o in OVERFLOWS for f in below]
    return (EXACT, *others)


def dose_task(profile: Profile) -> TaskConfig:
    """The benchmark that is asked at every point: the one with the most items, the first of several."""
    return max(profile.evaluation.tasks, key=lambda task: task.num_items or np.inf)


def dose_file(profile: str) -> MeasuredRows:
    """Where the rows lie."""
    return MeasuredRows("dose", page_dir(profile, "audit"), COLUMNS)


def dose_inputs(profile: str) -> dict[str, str]:
    """What decides the rows, apart from what the prepare step made."""
    config, settings = resolve(PROBED, profile), load_profile(profile)
    assert config.quantization is not None
    evaluation = settings.evaluation.identity() | {"tasks": [dose_task(settings).model_dump()]}
    parts = [
        [point.name for point in points()],
        config.quantization.effective(),
        config.model.identity(),
        settings.data.identity(),
        evaluation,
    ]
    code = [source_digest("train_stage", "evaluate_stage"), sha256_file(PACKAGE / "probing.py")]
    return {"settings": digest(parts), "code": digest(code)}


def base_of_runs(profile: str) -> dict[str, str]:
    """Model, text and items of the untouched checkpoint's run, where there is one."""
    directory = run_dir(profile, "E0", 0)
    try:
        info, summary = read_json(directory / "run.json"), read_json(directory / "eval.json")
        return {name: str(info[key]) for name, key in PARTS.items()} | {"items": summary["items_digest"]}
    except (UserError, KeyError, TypeError):
        return {}


def dose_fault(profile: str) -> str | None:
    """Why the response has to be measured here, or None."""
    return dose_file(profile).fault(dose_inputs(profile) | base_of_runs(profile))


@dataclass(frozen=True)
class Dose:
    """A dose response that was read and checked."""

    rows: pd.DataFrame
    sha256: str
    seconds: float

    def values(self, point: Point, part: str | None = None, column: str = "value") -> Floats:
        """One point's values in the order of names: of a domain, or without `part` of the benchmark."""
        own = self.rows[self.rows["point"] == point.name]
        own = own[~own["part"].isin(DOMAINS)] if part is None else own[own["part"] == part]
        return np.asarray(own.sort_values("name")[column], dtype=np.float64)

    def loss(self, point: Point, domain: str, other: Point = EXACT) -> Interval:
        """Held-out loss minus the other point's, nats, paired by sequence."""
        return paired_loss_difference(self.values(point, domain), self.values(other, domain))

    def accuracy(self, point: Point, other: Point = EXACT) -> Interval:
        """Accuracy minus the other point's, points, paired by item."""
        return paired_accuracy_difference(self.values(point), self.values(other)).scaled(100)

    def answer_nll(self, point: Point, other: Point = EXACT) -> Interval:
        """The true answers' negative log-likelihood minus the other point's, nats an item."""
        return paired_loss_difference(*(self.values(p, column="nll") for p in (point, other)))


def read_dose(results: ProfileResults) -> Dose:
    """The rows, if they fit the present settings and code, and the runs' model, text and items.

    Raises Unusable with the reason.
    """
    file = dose_file(results.profile)
    if fault := file.fault(dose_inputs(results.profile)):
        raise Unusable(fault)
    record = read_json(file.record)
    known = record["inputs"]
    for run in results.runs.values():
        stated = {name: run.info.get(key) for name, key in PARTS.items()}
        stated["items"] = run.summary.get("items_digest")
        if other := [name for name, value in stated.items() if known.get(name) != value]:
            raise Unusable(f"dose.csv and {run.name} do not have the same {' and '.join(other)}")
    return Dose(
        _checked(pd.read_csv(file.csv, dtype={"name": str})), sha256_file(file.csv), record["seconds"]
    )


def _checked(rows: pd.DataFrame) -> pd.DataFrame:
    """Every point with the same sequences and items, all finite."""
    if list(rows.columns) != list(COLUMNS) or set(rows["point"]) != {point.name for point in points()}:
        raise Unusable("dose.csv lacks a point or a column")
    names = rows.groupby("point")[["part", "name"]].apply(lambda own: sorted(map(tuple, own.to_numpy())))
    if any(found != names.iloc[0] for found in names):
        raise Unusable("dose.csv has other sequences or items at one point than at another")
    if not np.isfinite(rows["value"]).all() or not set(DOMAINS) < set(rows["part"]):
        raise Unusable("dose.csv lacks a domain, or a value is not finite")
    return rows
