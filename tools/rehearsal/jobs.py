"""Commands of the rehearsal: in an environment without a network, their words in a log, killed when asked to.

`python -m pangu_hif8` and make are called as a person calls them, so that what is rehearsed is what runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT

NUM_PROCESSES = 2
NOWHERE = "http://127.0.0.1:9"  # the discard port: a request that leaves this machine fails at once
POLL_S = 0.02
START_LIMIT_S = 300.0
END_LIMIT_S = 30.0
_MAKES = {"MAKEFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "MFLAGS", "REHEARSAL"}


@dataclass(frozen=True)
class Place:
    """The scratch folder. `hub` has the hub's layout; nothing is written outside `root`."""

    root: Path

    @property
    def hub(self) -> Path:
        return self.root / "hub"

    @property
    def profiles(self) -> Path:
        return self.root / "profiles"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def log(self) -> Path:
        return self.root / "rehearsal.log"

    def environment(self, **more: str) -> dict[str, str]:
        """Of every command: its folders, two processes on the CPU, no network."""
        kept = {name: value for name, value in os.environ.items() if name not in _MAKES}
        own = {
            "PANGU_HIF8_PROFILES": str(self.profiles),
            "PANGU_HIF8_RESULTS": str(self.results),
            "PANGU_HIF8_CACHE": str(self.root / "cache"),
            "PANGU_HIF8_PROCESSES": str(NUM_PROCESSES),
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
        }
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
        return kept | own | proxies | {"no_proxy": "", "NO_PROXY": ""} | more


def own(*arguments: str) -> list[str]:
    """A command of this package."""
    return [sys.executable, "-m", "pangu_hif8", *arguments]


def succeed(place: Place, command: list[str], **environment: str) -> str:
    """Run a command; returns its stdout. Raises UserError with its last line when it fails."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=place.environment(**environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    words = f"$ {' '.join(command)}\n{done.stdout}{done.stderr}"
    with place.log.open("a", encoding="utf-8") as log:
        log.write(words)
    if done.returncode:
        last = next(reversed([line for line in words.splitlines() if line.strip()]))
        raise UserError(f"{' '.join(command[-6:])} ended with status {done.returncode}: {last}")
    return done.stdout


@contextmanager
def started(place: Place, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs meanwhile, its words in the log; none of its processes outlives the block."""
    with place.log.open("ab") as log:
        log.write(f"$ {' '.join(command)} &\n".encode())
        log.flush()
        job = subprocess.Popen(
            command,
            cwd=ROOT,
            env=place.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield job
    finally:
        kill(family(job.pid))
        job.wait()


def wait_until(seen: Callable[[], bool], job: subprocess.Popen[bytes], what: str) -> None:
    """Wait for something that a running command brings about. Raises UserError when it ends before."""
    limit = time.monotonic() + START_LIMIT_S
    while not seen():
        if job.poll() is not None:
            raise UserError(f"the run ended with status {job.returncode} before {what}")
        if time.monotonic() > limit:
            raise UserError(f"{what} did not come in {START_LIMIT_S:.0f} s")
        time.sleep(POLL_S)


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it; nothing when it has ended."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def rank(pid: int, number: int) -> psutil.Process | None:
    """The process below `pid` that trains as this rank, if it is there."""
    for process in family(pid):
        try:
            if process.environ().get("RANK") == str(number) and "pangu_hif8" in process.cmdline():
                return process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return None


def kill(processes: list[psutil.Process]) -> None:
    """SIGKILL to each, and wait until none runs any more."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    limit = time.monotonic() + END_LIMIT_S
    while alive(processes) and time.monotonic() < limit:
        time.sleep(POLL_S)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; one that has ended and waits for its parent's look does not."""
    return [process for process in processes if _runs(process)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
