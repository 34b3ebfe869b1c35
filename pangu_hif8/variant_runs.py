"""Makes the runs that a list of variants needs, and reads them beside the paper's eight.

A run that is there and was made with these settings by the present code is taken as it is, also when it came
with the repository: making figures again needs no model. `fresh` takes only what this machine has made.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pangu_hif8.experiments import RunConfig
from pangu_hif8.freshness import source_digest
from pangu_hif8.results import NOT_HERE, Key, Missing, ProfileResults, load_profile_results
from pangu_hif8.run import directory_of, resolve_run, run_experiment
from pangu_hif8.run_checks import Unusable
from pangu_hif8.run_files import RunResult, read_run
from pangu_hif8.variants import Variant, experiments_for
from pangu_hif8.wall_time import duration


@dataclass(frozen=True)
class Wanted:
    """A run that is needed."""

    label: str
    experiment: str
    seed: int
    changes: dict[str, Any]
    config: RunConfig


def wanted(variants: Iterable[Variant], profile: str, seeds: Iterable[int]) -> list[Wanted]:
    """The runs of the variants and of the experiments that they are compared with, in order."""
    variants, seeds = tuple(variants), tuple(seeds)
    names = ["E0", *(name for name in experiments_for(variants) if name != "E0")]
    found = [_wanted(name, name, profile, seed, {}) for name in names for seed in _seeds_of(name, seeds)]
    found += [_wanted(v.id, v.base, profile, seed, v.changes) for v in variants for seed in seeds]
    return found


def _seeds_of(experiment: str, seeds: tuple[int, ...]) -> tuple[int, ...]:
    return (0,) if experiment == "E0" else seeds


def _wanted(label: str, experiment: str, profile: str, seed: int, changes: dict[str, Any]) -> Wanted:
    config = resolve_run(experiment, profile, seed, **changes)
    return Wanted(f"{label} seed {seed}", experiment, seed, changes, config)


def pending(runs: Iterable[Wanted], fresh: bool = False) -> list[Wanted]:
    """Those that have to be made."""
    return [run for run in runs if not _is_there(run.config, fresh)]


def _is_there(config: RunConfig, fresh: bool) -> bool:
    if fresh and not (directory_of(config) / "evaluate.stamp").is_file():
        return False
    try:
        run = read_run(directory_of(config), config)
    except Unusable:
        return False
    return is_current(run)


def is_current(run: RunResult) -> bool:
    """Was a run made by the present training and evaluation code?"""
    trained = run.config.lr is None or run.info.get("train_code") == _code("train_stage")
    return trained and run.summary.get("eval_code") == _code("evaluate_stage")


@cache
def _code(module: str) -> str:
    return source_digest(module)


def make_runs(variants: Iterable[Variant], profile: str, seeds: Iterable[int], *, fresh: bool = False) -> int:
    """Make every run that is not there, one after the other; returns how many were made.

    Says before each which it is and about how long all that are left will take.
    """
    todo = pending(wanted(variants, profile, seeds), fresh)
    took: list[float] = []
    for index, run in enumerate(todo):
        started = time.monotonic()
        _say(f"{run.label} ({index + 1} of {len(todo)}{_left(took, len(todo) - index)})")
        run_experiment(run.experiment, profile=profile, seed=run.seed, **run.changes)
        gc.collect()  # a model and its optimizer, in cycles
        took.append(time.monotonic() - started)
    return len(todo)


def _left(took: list[float], num_left: int) -> str:
    return f"; {duration(sum(took) / len(took) * num_left)} left" if took else ""


def _say(text: str) -> None:
    print(text, flush=True)


def variant_results(variants: Iterable[Variant], profile: str) -> ProfileResults:
    """The profile's results with the variants' runs among them, under the variants' names.

    A variant's run that is missing, damaged, of other code or not comparable is listed with its reason; so is
    one of the experiments that they are compared with.
    """
    variants, results = tuple(variants), load_profile_results(profile)
    named = {"E0", *experiments_for(variants)}
    runs, missing = dict(results.runs), [m for m in results.missing if m.experiment in named]
    seeds = sorted({seed for name, seed in runs if name != "E0"} or {0})
    for variant in variants:
        for seed in seeds:
            try:
                runs[variant.id, seed] = _read(variant, profile, seed, results)
            except Unusable as reason:
                missing.append(Missing(variant.id, seed, str(reason)))
    notices = [text for text in results.notices if not text.startswith(NOT_HERE)]
    notices += _of_other_machines(results, runs)
    return replace(results, runs=runs, missing=missing, notices=notices)


def _of_other_machines(results: ProfileResults, runs: dict[Key, RunResult]) -> list[str]:
    """Which of the variants' runs come from another processor than all that they are compared with."""
    known = machines(results.runs.values())
    others: dict[str, list[str]] = {}
    for key, run in sorted(runs.items()):
        if key not in results.runs and known and (machine := machine_of(run)) not in (*known, ""):
            others.setdefault(machine, []).append(key[0])
    return [
        f"made on another processor ({machine}) than the experiments ({', '.join(known)}), so that "
        f"differences from them include the processors': {', '.join(dict.fromkeys(names))}"
        for machine, names in others.items()
    ]


def machine_of(run: RunResult) -> str:
    """The processor that a run states, or nothing."""
    return str(run.timing.get("machine", ""))


def machines(runs: Iterable[RunResult]) -> list[str]:
    """The processors that runs state, each once."""
    return sorted({machine_of(run) for run in runs} - {""})


def _read(variant: Variant, profile: str, seed: int, results: ProfileResults) -> RunResult:
    config = variant.config(profile, seed)
    if not directory_of(config).is_dir():
        raise Unusable("not run")
    run = read_run(directory_of(config), config)
    mine = run.identity()
    for other in results.runs.values():
        theirs = other.identity()
        differing = [name for name, value in mine.items() if value != theirs[name]]
        if differing:
            raise Unusable(f"not comparable with {other.name} ({', '.join(differing)} differ)")
    if not is_current(run):
        raise Unusable("made by another version of the code than the present one")
    return run
