"""Train with one process a GPU before a notebook looks at the run, where there is more than one.

A notebook has one kernel, so the stage starts torchrun first; the notebook then finds the run up to date.
"""

from __future__ import annotations

import codecs
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig
from pangu_hif8.paths import ROOT
from pangu_hif8.terminal import Forwarder

VARIABLE = "PANGU_HIF8_PROCESSES"
_COUNT = "import torch; print(torch.cuda.device_count())"


def num_processes() -> int:
    """As many as PANGU_HIF8_PROCESSES says, else as there are GPUs; 1 without any.

    Raises UserError when the variable is no whole number from 1.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked:
        if not (asked.isascii() and asked.isdigit() and int(asked)):
            raise UserError(f"{VARIABLE} must be a whole number from 1, got {asked!r}")
        return int(asked)
    if not (Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()):
        return 1
    counted = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, cwd=ROOT)
    return max(1, int(counted.stdout.strip() or 1)) if counted.returncode == 0 else 1


def command(
    experiment: str, profile: str, seed: int, processes: int, changes: Mapping[str, Any] | None = None
) -> list[str]:
    """What is started: torchrun on this node, and in each process `python -m pangu_hif8 run`."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    run = ["-m", "pangu_hif8", "run", experiment, "--profile", profile, "--seed", str(seed)]
    return [sys.executable, *launch, *run, *_options(changes or {})]


def _options(changes: Mapping[str, Any]) -> list[str]:
    """Changed settings as the command line takes them."""
    return [word for name, value in changes.items() for word in ("--set", f"{name}={json.dumps(value)}")]


def use_all_processes(config: RunConfig, label: str, changes: Mapping[str, Any] | None = None) -> None:
    """Train and evaluate a run on all GPUs, if there are several. Raises UserError when that fails."""
    processes = num_processes()
    if processes == 1:
        return
    print(f"{label}: on {processes} processes", flush=True)
    shown = Forwarder(f"{label} | ")
    try:
        started = command(config.experiment, config.profile, config.seed, processes, changes)
        status = _run(started, shown.write)
    finally:
        shown.close()
    if status:
        raise UserError(
            f"{label} on {processes} processes ended with status {status}; its words are above. Mend what "
            "they name and run the same command again"
        )


def _run(started: list[str], show: Callable[[str], object]) -> int:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        started, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as job:
        assert job.stdout
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while piece := os.read(job.stdout.fileno(), 4096):  # as it comes: a bar has no line end
            show(decoder.decode(piece))
    return job.returncode
