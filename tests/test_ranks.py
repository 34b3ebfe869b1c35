"""Two ranks (gloo) train as one process does, stop, skip and fail together, and resume each other's runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_runs import (
    PREEMPTED,
    REFUSED,
    Ended,
    Job,
    execute,
    on_ranks,
    outputs,
    prepared_here,
    scaling_of,
    tiny_world,
)

from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.files import read_json
from pangu_hif8.paths import ROOT, run_dir
from pangu_hif8.ranks import launched_parallel
from pangu_hif8.run import run_experiment

TESTS = Path(__file__).parent
FOUR = {"batch_size": 4, "micro_batch_size": 1, "lr_scale": 1.0}
PARALLEL = ("ddp", "fsdp")
SAME = {
    "unquantized": Job("E1", settings=FOUR),
    "most recent": Job("E2", settings=FOUR),
    "without warm-up": Job("E5", settings=FOUR),
    "two at once": Job("E5", settings=FOUR | {"micro_batch_size": 2}),
    "warm-up": Job("E8", settings=FOUR),
    "current": Job("E4", settings=FOUR),
    "gradients from the start": Job("E3", {"gradients": True}, FOUR),
    "gradients": Job("E8", {"gradients": True}, FOUR),
    "recomputed": Job("E8", {"activation_checkpointing": True, "gradients": True}, FOUR),
    "adaptive warm-up": Job(
        "E8", {"bf16_warmup_steps": 4, "adaptive_warmup_spread": 100.0, "amax_history_len": 2}, FOUR
    ),
    "frozen block": Job("E8", settings=FOUR, frozen=True),
    "skipped step": Job("E8", settings=FOUR, nan=(2, 4)),
}
WHOLE = Job("E8", {"gradients": True}, FOUR)
NOT_DIVIDING = Job("E8", settings=FOUR | {"micro_batch_size": 4})


def changed(job: Job, **values) -> Job:
    return Job(**{**job.__dict__, **values})


def pairs(parallel: str, root: Path) -> dict[str, tuple[Job, Job]]:
    """What ranks 0 and 1 do together, one after the other; some in directories of an earlier one."""
    cut = {"reduce_amax": False, "adaptive_warmup_spread": 1.0, "bf16_warmup_steps": 4, "amax_history_len": 2}
    both = {name: (job, job) for name, job in SAME.items()}
    both["skipped step"] = (SAME["warm-up"], SAME["skipped step"])  # the NaN is on rank 1 alone
    both |= {
        "whole": (WHOLE, WHOLE),
        "stopped": (WHOLE, changed(WHOLE, stop=1)),  # the signal reaches rank 1 alone
        "stopped/again": (changed(WHOLE, stop=3), WHOLE),
        "stopped/end": (WHOLE, WHOLE),
        "alone first": (changed(WHOLE, stop=3),) * 2,
        "of two": (changed(SAME["current"], stop=2),) * 2,
        "cut journal": (WHOLE, WHOLE),
        "bad path": (changed(WHOLE, resume=str(root / "nowhere")),) * 2,
        "does not divide": (NOT_DIVIDING, NOT_DIVIDING),
        "not offered": (changed(WHOLE, overrides=cut),) * 2,
        "all skipped": (WHOLE, changed(WHOLE, nan=(2, 3, 4))),
    }
    return {name: tuple(changed(job, parallel=parallel) for job in jobs) for name, jobs in both.items()}


@dataclass(frozen=True)
class Launched:
    """What two ranks did, by the name of the job."""

    root: Path
    ranks: list[Ended]
    names: list[str]

    def directory(self, name: str) -> Path:
        return self.root / name.split("/")[0]

    def statuses(self, name: str) -> list[int]:
        return [rank.status_of(self.names.index(name)) for rank in self.ranks]

    def texts(self, name: str) -> list[str]:
        return [rank.job(self.names.index(name)) for rank in self.ranks]

    def seen(self, name: str) -> list[list[str]]:
        return [rank.seen(self.names.index(name)) for rank in self.ranks]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same runs by one process."""
    root = tmp_path_factory.mktemp("alone")
    prepared_here()
    for name, job in SAME.items():
        execute(job, root / name)
    return root


@pytest.fixture(scope="module", params=PARALLEL)
def launched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launched:
    """One launch for all that two ranks are to show."""
    root = tmp_path_factory.mktemp(request.param)
    prepared_here()
    for name, step in (("alone first", 1), ("cut journal", 2)):
        with pytest.raises(Preempted):
            execute(changed(WHOLE, stop=step), root / name)
    journal = root / "cut journal" / "progress" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().splitlines(keepends=True)[0])
    jobs = pairs(request.param, root)
    directories = [root / name.split("/")[0] for name in jobs]
    ranks = on_ranks([[pair[rank] for pair in jobs.values()] for rank in (0, 1)], directories)
    assert [rank.status for rank in ranks] == [0, 0], ranks[0].text[-3000:] + ranks[1].text[-3000:]
    return Launched(root, ranks, list(jobs))


def table(directory: Path, name: str = "steps.csv") -> pd.DataFrame:
    return pd.read_csv(directory / name)


@pytest.mark.parametrize("name", SAME)
def test_two_ranks_give_the_losses_and_scales_of_one(name: str, launched: Launched, alone: Path) -> None:
    assert launched.statuses(name) == [0, 0]
    one, two = table(alone / name), table(launched.directory(name))
    for column in ("loss", "grad_norm"):
        assert_close(two, one, column)
    for column in ("quantized", "skipped", "saturated_share"):
        pd.testing.assert_series_equal(two[column], one[column])
    assert launched.seen(name)[0] == launched.seen(name)[1]  # each step's mode and scales, on both ranks
    facts = read_json(launched.directory(name) / "run.json")
    assert (facts["world_size"], facts["parallel"]) == (2, launched.root.name.rstrip("0"))
    if name != "unquantized":
        state, expected = scaling_of(launched.directory(name)), scaling_of(alone / name)
        torch.testing.assert_close(state, expected, rtol=1e-6, atol=0)


def assert_close(found: pd.DataFrame, expected: pd.DataFrame, column: str) -> None:
    """Float32 sums in another order differ by some ulp (6e-8)."""
    np.testing.assert_allclose(found[column], expected[column], rtol=1e-5, atol=0, equal_nan=True)


def test_all_elements_of_the_batch_are_counted_once(launched: Launched, alone: Path) -> None:
    names = ["clipped_share", "flushed_share", "sqnr_db"]
    one, two = (table(root / "warm-up", "saturation.csv")[names] for root in (alone, launched.root))
    assert one.notna().any().all()
    for name in names:
        assert_close(two, one, name)


def test_a_signal_to_one_rank_stops_both_at_one_step_and_they_resume_to_the_bit(launched: Launched) -> None:
    assert launched.statuses("stopped") == launched.statuses("stopped/again") == [PREEMPTED] * 2
    assert [len(seen) for seen in launched.seen("stopped")] == [1, 1]
    assert [len(seen) for seen in launched.seen("stopped/again")] == [2, 2]
    assert launched.statuses("stopped/end") == [0, 0]
    assert outputs(launched.directory("stopped")) == outputs(launched.directory("whole"))
    assert read_json(launched.directory("stopped") / "run.json")["resumed_from"] == [1, 3]


def test_one_rank_s_checkpoint_is_resumed_by_two_and_theirs_by_one(launched: Launched, alone: Path) -> None:
    assert launched.statuses("alone first") == [PREEMPTED] * 2
    directory = launched.directory("alone first")
    execute(WHOLE, directory)
    assert read_json(directory / "run.json")["resumed_from"] == [1, 3]
    one, mixed = table(alone / "gradients"), table(directory)
    assert_close(mixed, one, "loss")
    torch.testing.assert_close(scaling_of(directory), scaling_of(alone / "gradients"), rtol=1e-6, atol=0)


def test_the_number_of_ranks_is_part_of_what_it_decides(launched: Launched) -> None:
    assert launched.statuses("of two") == [PREEMPTED] * 2
    directory = launched.directory("of two")
    path = str(directory / "progress" / "step-00000002")
    with pytest.raises(UserError, match='number of processes is "2" there, "1" here'):
        execute(changed(SAME["current"], resume=path), directory)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cut journal", "ends at step 1, before step 2"),
        ("bad path", "does not exist; name a checkpoint's directory"),
        ("does not divide", "batch_size 4 is no multiple of 2 processes times micro_batch_size 4"),
        ("not offered", "adaptive_warmup_spread with reduce_amax off on several ranks"),
        ("all skipped", "not finite, 3 steps in a row, so the run is stopped"),
    ],
)
def test_what_is_wrong_is_said_on_every_rank_and_none_hangs(
    name: str, words: str, launched: Launched
) -> None:
    assert launched.statuses(name) == [REFUSED] * 2
    assert all(words in text for text in launched.texts(name))


@pytest.mark.parametrize("parallel", PARALLEL)
def test_a_rank_that_skips_a_module_does_not_leave_the_other_waiting(parallel: str, tmp_path: Path) -> None:
    job = Job("E8", settings=FOUR, parallel=parallel)
    prepared_here()
    ranks = on_ranks([[job], [changed(job, skipping=True)]], [tmp_path / "run"], timeout_s=60)
    assert all(rank.status is not None for rank in ranks)


def launch(launcher: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *launcher, str(TESTS / "tiny_command.py"), *arguments]
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{TESTS}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=180, cwd=ROOT)


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
# With --cpu it starts one process, whatever --num_processes says; with --use_fsdp it starts two here as well.
ACCELERATE = ["accelerate.commands.launch", "--use_fsdp", "--fsdp_version", "2", "--num_processes", "2"]
ACCELERATE += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
ACCELERATE += ["--main_process_port", "0"]


@pytest.fixture
def here() -> Iterator[None]:
    with tiny_world(**FOUR | {"lr_scale": 10.0}):
        yield


@pytest.mark.usefixtures("here")
def test_torchrun_trains_once_and_run_evaluates_only(capsys: pytest.CaptureFixture[str]) -> None:
    prepared_here()
    done = launch(TORCHRUN, "train", "E8", "--profile", "tiny")
    assert done.returncode == 0, done.stderr
    directory = run_dir("tiny", "E8", 0)
    assert done.stdout.splitlines().count(str(directory)) == 1
    assert done.stdout.count("E8: converted 3/22") == 1
    before = outputs(directory)
    assert before["run.json"]["world_size"] == 2
    assert not (directory / "eval.json").exists() and not list(directory.glob("progress*"))
    capsys.readouterr()
    run_experiment("E8", profile="tiny")
    assert "converted" not in capsys.readouterr().out
    assert outputs(directory) == before and (directory / "eval.json").exists()


@pytest.mark.usefixtures("here")
def test_accelerate_launch_trains_sharded_and_evaluates(capsys: pytest.CaptureFixture[str]) -> None:
    done = launch(ACCELERATE, "run", "E5", "--profile", "tiny")
    assert done.returncode == 0, done.stderr
    directory = run_dir("tiny", "E5", 0)
    facts = read_json(directory / "run.json")
    assert (facts["world_size"], facts["parallel"]) == (2, "fsdp")
    assert read_json(directory / "eval.json")["tasks"]["people"]["num_items"] == 10
    capsys.readouterr()
    run_experiment("E5", profile="tiny")
    assert "training and evaluation are up to date" in capsys.readouterr().out


def test_fsdp_asked_of_accelerate_is_not_forgotten_after_pretraining_alone(monkeypatch):
    """The first process of a job pre-trains a base model alone, before it trains with the others."""
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.delenv("PANGU_HIF8_LAUNCHED_FSDP", raising=False)
    try:
        assert launched_parallel("none") == "none"
        assert "ACCELERATE_USE_FSDP" not in os.environ
        assert launched_parallel("ddp") == launched_parallel("ddp") == "fsdp"
    finally:
        os.environ.pop("PANGU_HIF8_LAUNCHED_FSDP", None)
    assert launched_parallel("ddp") == "ddp"
