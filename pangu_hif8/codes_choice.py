"""Whether a run keeps its quantized inputs as 8-bit codes for backward: about memory, not about numbers.

It is no part of an experiment's settings, since every loss, gradient and scale is the same bit for bit. So it
is said to the process, by the environment variable PANGU_HIF8_INPUTS_AS_CODES=1, which holds for make,
notebooks and every process of a job alike, or by `--inputs-as-codes`. See saved_codes.py for what it does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig
from pangu_hif8.launch import is_main_process

VARIABLE = "PANGU_HIF8_INPUTS_AS_CODES"
_VALUES = {"": False, "0": False, "1": True}


def choose() -> None:
    """Keep codes from now on, in this process and in those that it starts."""
    os.environ[VARIABLE] = "1"


def is_chosen() -> bool:
    """What the environment says; off by default. Raises UserError for another value than 0 or 1."""
    said = os.environ.get(VARIABLE, "")
    if said not in _VALUES:
        raise UserError(f"{VARIABLE} must be 1 (on) or 0 (off), got {said!r}")
    return _VALUES[said]


def check_choice(config: RunConfig) -> bool:
    """Whether this run keeps codes: where it is chosen and the run quantizes.

    Raises UserError beside activation checkpointing and torch.compile, which would undo what it is for.
    """
    if not is_chosen() or config.quantization is None:
        return False
    for name in ("activation_checkpointing", "compile"):
        if getattr(config.train, name):
            raise UserError(
                f"{config.run_name}: inputs can't be kept as codes beside {name}; switch one of them off "
                f"({VARIABLE}=0, or without --inputs-as-codes)"
            )
    return True


@contextmanager
def inputs_as_codes(config: RunConfig) -> Iterator[None]:
    """The quantized layers that are made in here keep their inputs as codes, where that is chosen."""
    if not check_choice(config):
        yield
        return
    from pangu_hif8.saved_codes import new_layers_keep_codes

    if is_main_process():
        print(
            f"{config.run_name} seed {config.seed}: quantized inputs wait for backward as codes", flush=True
        )
    with new_layers_keep_codes():
        yield
