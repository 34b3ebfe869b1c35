"""SIGTERM saves and ends well, SIGKILL costs the steps since the last checkpoint; both resume to the byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tiny_runs import Job, execute, forked, outputs, prepared_here, tiny_world

from pangu_hif8.checkpoints import checkpoints
from pangu_hif8.errors import Preempted
from pangu_hif8.paths import ROOT, run_dir
from pangu_hif8.run import run_experiment
from pangu_hif8.sessions import Session
from pangu_hif8.stop_signal import stop_signal
from pangu_hif8.train import StepRecord

LONG = Job("E8", {"steps": 200, "amax_history_len": 8, "bf16_warmup_steps": 20}, {"checkpoint_every": 4})
STEPS = {"steps": 40}
COMMAND = f"""
import sys, time
import tiny_runs
from pangu_hif8 import train_stage
real = train_stage.batches

def slow(*args):
    batch_for_step = real(*args)
    def batch(step):
        if step > 4:
            print("in step", step, flush=True)
            time.sleep(0.3)
        return batch_for_step(step)
    return batch

train_stage.batches = slow
sys.exit(tiny_runs.command(["run", "E8", "--profile", "tiny"], **{STEPS!r}))
"""


def wait_for(process: subprocess.Popen[str], words: str) -> str:
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    raise AssertionError(f"{words!r} did not come: {text}")


def test_the_command_stops_on_sigterm_with_exit_0_and_goes_on_when_run_again(tmp_path: Path) -> None:
    prepared_here()
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
    )
    try:
        text = wait_for(process, "in step 6")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        text += process.communicate(timeout=60)[0]
    finally:
        process.kill()
    assert process.returncode == 0
    assert "SIGTERM: finishing this step, then writing a checkpoint" in text
    (stopped,) = checkpoints(run_dir("tiny", "E8", 0) / "progress")
    assert f"stopped after step {stopped.step} with a checkpoint; run the same command again to go on" in text
    assert stopped.step in (6, 7)
    with tiny_world(**STEPS):
        done = run_experiment("E8", profile="tiny")
        execute(Job("E8", settings=STEPS), tmp_path / "one")
    assert outputs(done.directory) == outputs(tmp_path / "one")


def train_until_killed(directory: Path, told: Connection) -> None:
    """The child's part: train, and tell after every step."""
    after = Session.after

    def telling(session: Session, record: StepRecord) -> None:
        after(session, record)
        told.send(record.step)

    Session.after = telling
    execute(LONG, directory)


def test_kill_9_at_ten_random_moments_costs_no_step_before_the_last_checkpoint(tmp_path: Path) -> None:
    prepared_here()
    execute(LONG, tmp_path / "one")
    draw, context, saved, killed = random.Random(0), forked(), 0, 0
    for _ in range(10):
        told, tells = context.Pipe(duplex=False)
        child = context.Process(target=train_until_killed, args=(tmp_path / "many", tells))
        child.start()
        tells.close()
        first = step = told.recv()
        assert first == saved + 1
        for _ in range(draw.randrange(2, 9)):
            step = told.recv()
        time.sleep(draw.uniform(0, 0.03))
        child.kill()
        child.join()
        if (
            child.exitcode == 0
        ):  # a machine so fast, or a sleep so long, that the run was over before the kill
            break
        killed += 1
        found = checkpoints(tmp_path / "many" / "progress")
        saved = found[0].step if found else 0
        assert saved >= step - 4
    assert killed >= 5
    execute(LONG, tmp_path / "many")
    assert outputs(tmp_path / "many") == outputs(tmp_path / "one")
    assert not list((tmp_path / "many").glob("*progress*"))


def test_in_another_thread_training_runs_without_the_handler(tmp_path: Path) -> None:
    prepared_here()
    before, seen = signal.getsignal(signal.SIGTERM), []

    def train() -> None:
        with stop_signal() as stop:
            execute(Job("E8"), tmp_path)
            seen.append((stop(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert seen == [(False, before)]


def test_the_handler_of_before_is_back_afterwards(tmp_path: Path) -> None:
    prepared_here()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Preempted):
        execute(Job("E8", stop=2), tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_in_the_last_step_lets_the_run_finish(tmp_path: Path) -> None:
    prepared_here()
    execute(Job("E8"), tmp_path / "one")
    execute(Job("E8", stop=5), tmp_path / "many")
    assert outputs(tmp_path / "many") == outputs(tmp_path / "one")
