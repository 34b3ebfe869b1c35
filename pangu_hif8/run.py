"""One run: validate, prepare, train if stale, evaluate if stale. What notebooks and the CLI call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pangu_hif8.codes_choice import check_choice, inputs_as_codes
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig, resolve
from pangu_hif8.files import digest
from pangu_hif8.freshness import exclusive, output_digest, source_digest, stale_reason, write_stamp
from pangu_hif8.launch import Parallel, agreed, first_process_first, is_main_process
from pangu_hif8.paths import run_dir
from pangu_hif8.prepare import prepare
from pangu_hif8.prepared import Prepared
from pangu_hif8.siblings import spin_count

os.environ["GOMP_SPINCOUNT"] = spin_count()  # has to be set before torch is loaded
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what makes CUDA's matmuls repeatable

MAX_SEED = 2**32 - 1  # NumPy's

TRAIN_LIBRARIES = ("torch", "transformers", "accelerate", "numpy")
EVAL_LIBRARIES = (*TRAIN_LIBRARIES, "lm_eval", "datasets")


@dataclass(frozen=True)
class Run:
    """A finished run and where its files lie."""

    config: RunConfig
    directory: Path


def directory_of(config: RunConfig) -> Path:
    """The directory that a run owns."""
    return run_dir(config.profile, config.run_name, config.seed)


def resolve_run(experiment: str, profile: str, seed: int = 0, **overrides: Any) -> RunConfig:
    """`resolve`, for a run that can be made: E0, which nothing random touches, has seed 0 only."""
    config = resolve(experiment, profile, seed, **overrides)
    if experiment == "E0" and seed != 0:
        raise UserError("E0 is the untouched checkpoint; it has seed 0 only")
    if seed > MAX_SEED:
        raise UserError(f"seed {seed} is too large; the largest is {MAX_SEED}")
    return config


def train_inputs(config: RunConfig, prepared: Prepared) -> dict[str, str]:
    """What decides a training run's numbers."""
    return {
        "training settings": config.train_hash(),
        "training code": source_digest("train_stage"),
        "base model": prepared.digests["model"],
        "token shards": prepared.digests["shards"],
        "library versions": digest([version(name) for name in TRAIN_LIBRARIES]),
    }


def evaluate_inputs(config: RunConfig, prepared: Prepared, directory: Path) -> dict[str, str]:
    """What decides an evaluation's numbers; the trained files are among them."""
    return {
        "evaluation settings": config.eval_hash(),
        "evaluation code": source_digest("evaluate_stage"),
        "benchmark items": prepared.digests["benchmarks"],
        "held-out text": prepared.digests["shards"],
        "trained model": output_digest(directory / "train.stamp"),
        "library versions": digest([version(name) for name in EVAL_LIBRARIES]),
    }


def stale_stages(config: RunConfig, prepared: Prepared) -> dict[str, str]:
    """Stage to reason, for the stages that have to run; empty when all is up to date. Loads no torch."""
    directory = directory_of(config)
    reason = stale_reason(directory / "train.stamp", train_inputs(config, prepared))
    if reason:
        return {"train": reason, "evaluate": "training comes first"}
    reason = stale_reason(directory / "evaluate.stamp", evaluate_inputs(config, prepared, directory))
    return {"evaluate": reason} if reason else {}


def run_experiment(
    experiment: str,
    *,
    profile: str,
    seed: int = 0,
    parallel: Parallel = "ddp",
    resume: Path | str = "auto",
    **overrides: Any,
) -> Run:
    """Train and evaluate one experiment, doing only what is not up to date.

    `overrides` are the fields of `overrides.Overrides`; None means as the paper and the profile say.
    `resume`: "auto" goes on from the run's newest checkpoint, "never" starts over, a path goes on from there.
    Raises UserError for anything that the user can mend, Preempted after SIGTERM. Files: see `train_stage`,
    `evaluate_stage`. Every process of a launched job has to call this; all take part in both halves.
    """
    how: dict[str, Any] = dict(profile=profile, seed=seed, parallel=parallel)
    train_experiment(experiment, **how, resume=resume, check_tasks=True, **overrides)
    return evaluate_experiment(experiment, **how, **overrides)


def train_experiment(
    experiment: str,
    *,
    profile: str,
    seed: int = 0,
    parallel: Parallel = "ddp",
    resume: Path | str = "auto",
    check_tasks: bool = False,
    **overrides: Any,
) -> Run:
    """The training half of `run_experiment`, for a cluster; evaluation is another job's."""
    config = resolve_run(experiment, profile, seed, **overrides)
    check_choice(config)
    directory = directory_of(config)
    with first_process_first():
        prepared = prepare(profile)
    with _exclusive_for_all(directory, config):
        if agreed("train" in stale_stages(config, prepared)):
            if check_tasks and is_main_process():
                _preflight(config, prepared)
            _train(config, prepared, directory, parallel, resume)
        elif resume not in ("auto", "never"):
            raise UserError(f"{config.run_name} seed {seed} is trained already; there is nothing to resume")
    return Run(config, directory)


def evaluate_experiment(
    experiment: str, *, profile: str, seed: int = 0, parallel: Parallel = "ddp", **overrides: Any
) -> Run:
    """The evaluation half. Raises UserError where the training half is not up to date."""
    config = resolve_run(experiment, profile, seed, **overrides)
    directory = directory_of(config)
    with first_process_first():
        prepared = prepare(profile)
    with _exclusive_for_all(directory, config):
        stale = stale_stages(config, prepared)
        if agreed("train" in stale):
            reason = stale.get("train", "as the first process sees it")
            raise UserError(f"{_label(config)} is not trained ({reason}); train it first")
        if agreed(bool(stale)):
            _evaluate(config, prepared, directory, parallel)
        elif is_main_process():
            print(f"{_label(config)}: training and evaluation are up to date", flush=True)
    return Run(config, directory)


def _label(config: RunConfig) -> str:
    return f"{config.run_name} seed {config.seed}"


@contextmanager
def _exclusive_for_all(directory: Path, config: RunConfig) -> Iterator[None]:
    """The run's lock, taken by the first process of a job for all."""
    with exclusive(directory, _label(config)) if is_main_process() else nullcontext():
        yield


def _preflight(config: RunConfig, prepared: Prepared) -> None:
    """Load every benchmark before an hour is spent on training."""
    from pangu_hif8.evaluate import check_tasks

    check_tasks(config.evaluation, prepared)


def _train(
    config: RunConfig, prepared: Prepared, directory: Path, parallel: Parallel, resume: Path | str
) -> None:
    from pangu_hif8.train_stage import train_run

    inputs = train_inputs(config, prepared)
    if is_main_process():
        # What describes the old training goes first: a kill from here on leaves no mixture.
        _forget(directory, "train.stamp", "evaluate.stamp", "run.json", "eval.json")
    with inputs_as_codes(config):
        outputs = train_run(config, prepared, directory, inputs, parallel=parallel, resume=resume)
    if is_main_process():
        write_stamp(directory / "train.stamp", inputs, outputs)


def _evaluate(config: RunConfig, prepared: Prepared, directory: Path, parallel: Parallel) -> None:
    from pangu_hif8.evaluate_stage import evaluate_run

    if is_main_process():
        _forget(directory, "evaluate.stamp", "eval.json")
    outputs = evaluate_run(config, prepared, directory, parallel=parallel)
    if is_main_process():
        write_stamp(directory / "evaluate.stamp", evaluate_inputs(config, prepared, directory), outputs)


def _forget(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).unlink(missing_ok=True)
