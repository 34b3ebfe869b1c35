"""Processes that write checkpoints and die at it. A module, so that a fork server can import it once."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from pangu_hif8.checkpoints import latest, save_checkpoint

_CHANGES_FILES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}
EXIT_AT_EVENT = 99


def parts_of(step: int, size: int = 64) -> dict[str, dict[str, Tensor]]:
    """Two parts in which every element says which step it is of."""
    return {
        "model": {"weight": torch.full((size, size), float(step)), "bias": torch.full((3,), float(step))},
        "scaling": {"history": torch.full((4, size), float(step))},
    }


def save(root: Path, step: int, size: int = 64) -> None:
    """The checkpoint of a step, the scores falling."""
    save_checkpoint(root, step, parts_of(step, size), {"step": step}, score=1 / step)


def save_until_killed(root: Path, told: Connection) -> None:
    """Resume, and write steps on and on, each twice; tell each step once it is on disk."""
    torch.set_num_threads(1)
    resumed = latest(root)
    told.send(resumed.step if resumed else 0)
    for step in range(resumed.step if resumed else 1, 10**6):
        for _ in range(2):
            save(root, step, size=256)
            told.send(step)


def save_and_die(root: Path, step: int, event: int) -> None:
    """Save, but be gone, without any cleaning up, just before the event-th change to the file system."""
    torch.set_num_threads(1)
    count = 0

    def hook(name: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if name in _CHANGES_FILES:
            count += 1
            if count == event:
                os._exit(EXIT_AT_EVENT)

    sys.addaudithook(hook)
    save(root, step)
