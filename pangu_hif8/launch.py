"""This process among those that a launcher started, before torch is loaded: one, where there is no launcher.

`accelerate launch`, torchrun and `srun` (with the variables of docs/cluster.md) set RANK and WORLD_SIZE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pangu_hif8.errors import UserError

Parallel = Literal["ddp", "fsdp", "none"]


def num_processes() -> int:
    """How many processes the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this one writes files."""
    return num_processes() == 1 or os.environ.get("RANK", "0") == "0"


def accelerate_state() -> Any:
    """Accelerate's view of the processes, its process group set up. Loads torch.

    Without an accelerator it has to be told to use the CPU: otherwise the processes that torchrun started
    would each train alone, and write the same files. Raises UserError where they don't find each other.
    """
    import torch
    from accelerate import PartialState

    state = PartialState(cpu=not torch.accelerator.is_available())
    if state.num_processes != num_processes():
        raise UserError(
            f"the launcher started {num_processes()} processes and Accelerate sees {state.num_processes} on "
            f"{state.device}; use one process here, or a machine with CUDA (see docs/cluster.md)"
        )
    return state


@contextmanager
def first_process_first() -> Iterator[None]:
    """The first process does the work alone; the others come after it and find it done."""
    if num_processes() == 1:
        yield
        return
    with accelerate_state().main_process_first():
        yield


def agreed(value: bool) -> bool:
    """The first process's answer, on all."""
    if num_processes() == 1:
        return value
    from accelerate.utils import broadcast_object_list

    accelerate_state()
    answer = [value]
    broadcast_object_list(answer)
    return answer[0]
