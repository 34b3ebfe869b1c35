"""Training runs of the tiny profile that a test stops, crashes, poisons and resumes, alone or on two ranks.

A `Job` says what is to happen; `execute` does it here, `on_ranks` in processes of its own. These come from a
server that has imported everything, so that two ranks start in a tenth of a second.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from safetensors.torch import load_file
from tiny import tiny_profile

from pangu_hif8 import cli, experiments, prepare, sessions, train, train_stage
from pangu_hif8.config import Profile
from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.files import read_json
from pangu_hif8.launch import first_process_first
from pangu_hif8.prepared import Prepared
from pangu_hif8.run import train_inputs
from pangu_hif8.scaling import ScalingState

NUM_STEPS = 5
SETTINGS: dict[str, Any] = {
    "steps": NUM_STEPS,
    "bf16_warmup_steps": 2,
    "telemetry_every": 2,
    "lr_scale": 10.0,
}
TRAINED = ("steps.csv", "saturation.csv", "checkpoint/model.safetensors", "checkpoint/scaling.safetensors")
CRASHED, REFUSED, PREEMPTED = 70, 2, 75


class Crash(Exception):
    """Stands for a process that ends without a word."""


@dataclass(frozen=True)
class Job:
    """One attempt at a run: `stop`, `crash`: SIGTERM to itself, or Crash, in that step; `nan`: bad losses."""

    experiment: str = "E8"
    overrides: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # of the profile's train section
    parallel: str = "ddp"
    resume: str = "auto"
    stop: int = 0
    crash: int = 0
    nan: tuple[int, ...] = ()
    identity: dict[str, str] = field(default_factory=dict)
    frozen: bool = False  # the quantized block's parameters
    skipping: bool = False  # the quantized block's MLP is left out


def profile(**settings: Any) -> Profile:
    """The tiny profile with one of three blocks to quantize."""
    base = tiny_profile()
    chosen = base.train.model_copy(update=SETTINGS | settings)
    blocks = base.model.model_copy(update={"num_first_hp_blocks": 1, "num_last_hp_blocks": 1})
    return base.model_copy(update={"train": chosen, "model": blocks})


@contextmanager
def tiny_world(**settings: Any) -> Iterator[None]:
    """Every profile name means `profile(**settings)`."""
    with ExitStack() as stack:
        for module in (experiments, prepare):
            stack.enter_context(mock.patch.object(module, "load_profile", return_value=profile(**settings)))
        yield


def execute(job: Job, directory: Path) -> list[Path]:
    """Train as the job says."""
    with tiny_world(**job.settings), troubles(job):
        with first_process_first():
            prepared = prepare.prepare("tiny")
        config = experiments.resolve(job.experiment, "tiny", 0, **job.overrides)
        identity = train_inputs(config, prepared) | job.identity
        parallel: Any = job.parallel
        return train_stage.train_run(
            config, prepared, directory, identity, parallel=parallel, resume=_place(job.resume)
        )


def _place(resume: str) -> Path | str:
    return resume if resume in ("auto", "never") else Path(resume)


def prepared_here() -> Prepared:
    """What the tiny runs start from."""
    with tiny_world():
        return prepare.prepare("tiny")


@contextmanager
def troubles(job: Job) -> Iterator[None]:
    """What the job wants to go wrong, going wrong."""
    now, batches, loss_sum = [0], train_stage.batches, train.next_token_loss_sum
    build, after = train_stage.build_model, sessions.Session.after

    def troubled(*args: Any) -> Any:
        batch_for_step = batches(*args)

        def batch(step: int) -> Any:
            now[0] = step
            if step == job.crash:
                raise Crash
            if step == job.stop:
                os.kill(os.getpid(), signal.SIGTERM)
            return batch_for_step(step)

        return batch

    def poisoned(*args: Any) -> Any:
        return loss_sum(*args) * (math.nan if now[0] in job.nan else 1.0)

    def built(*args: Any) -> Any:
        model, scaling = build(*args)
        if job.frozen:
            model.model.layers[1].requires_grad_(False)
        if job.skipping:
            model.model.layers[1].mlp.forward = lambda x: x
        return model, scaling

    def telling(session: sessions.Session, record: train.StepRecord) -> None:
        print(f"seen {record.step} {record.loss!r} {_scales(session.trainer.scaling)}", flush=True)
        after(session, record)

    with (
        mock.patch.object(train_stage, "batches", troubled),
        mock.patch.object(train_stage, "build_model", built),
        mock.patch.object(train, "next_token_loss_sum", poisoned),
        mock.patch.object(sessions.Session, "after", telling),
    ):
        yield


def _scales(scaling: ScalingState | None) -> str:
    """Mode and scales of this rank, for comparison with another's."""
    return f"{scaling.mode} {scaling.scale.tolist()}" if scaling else "none"


def outputs(directory: Path) -> dict[str, Any]:
    """Everything that a run's resumption must not change: bytes, and run.json but for the resumptions."""
    found: dict[str, Any] = {n: (directory / n).read_bytes() for n in TRAINED if (directory / n).exists()}
    return found | {"run.json": read_json(directory / "run.json") | {"resumed_from": None}}


def scaling_of(directory: Path) -> dict[str, Any]:
    """The final scaling state."""
    return load_file(directory / "checkpoint" / "scaling.safetensors")


@dataclass(frozen=True)
class Ended:
    """How a rank ended: exit status (None: it had to be killed), and all that it printed."""

    status: int | None
    text: str

    def job(self, number: int) -> str:
        """What it printed during its n-th job."""
        return self.text.split("\njob ")[number + 1]

    def status_of(self, number: int) -> int:
        """How its n-th job ended."""
        return int(self.job(number).rsplit("ended ", 1)[1].split()[0])

    def seen(self, number: int) -> list[str]:
        """Loss, mode and scales after each step of its n-th job."""
        return re.findall("seen .*", self.job(number))  # a progress bar may stand before it


def forked() -> Any:
    """Makes processes that have imported everything and nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tiny_runs"])
    return context


def on_ranks(jobs: list[list[Job]], directories: list[Path], timeout_s: float = 150.0) -> list[Ended]:
    """Each rank does its list of jobs, the n-th of all ranks together, in the n-th directory."""
    port, context = _free_port(), forked()
    directories[0].parent.mkdir(parents=True, exist_ok=True)
    logs = [directories[0].parent / f"rank{rank}-{port}.log" for rank in range(len(jobs))]
    ranks = [
        context.Process(
            target=_rank, args=(rank, len(jobs), port, own, directories, logs[rank], dict(os.environ))
        )
        for rank, own in enumerate(jobs)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout_s)
    ended = [
        Ended(process.exitcode, log.read_text() if log.exists() else "")
        for process, log in zip(ranks, logs, strict=True)
    ]
    for process in ranks:
        process.kill()  # one whose peer has died may be waiting for it
    return ended


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def join_ranks(rank: int, world: int, port: int, log: Path, environment: dict[str, str]) -> None:
    """Make this process one of `world`, as a launcher would, with its output in a file."""
    os.environ.clear()
    os.environ.update(environment)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)


def _rank(
    rank: int,
    world: int,
    port: int,
    jobs: list[Job],
    directories: list[Path],
    log: Path,
    environment: dict[str, str],
) -> None:
    join_ranks(rank, world, port, log, environment)
    for number, (job, directory) in enumerate(zip(jobs, directories, strict=True)):
        print(f"\njob {number}", flush=True)
        print(f"\nended {_status_of(job, directory)}", flush=True)


def _status_of(job: Job, directory: Path) -> int:
    try:
        execute(job, directory)
    except Preempted as notice:
        print(notice, flush=True)
        return PREEMPTED
    except UserError as error:
        print(f"error: {error}", flush=True)
        return REFUSED
    except Crash:
        return CRASHED
    return 0


def command(arguments: list[str], **settings: Any) -> int:
    """The command line on the tiny profile."""
    with tiny_world(**settings):
        return cli.main(arguments)
