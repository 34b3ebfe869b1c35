"""Options that several commands share, and the values they take."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"a whole number from 0 is needed, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    if not whole(text):
        raise argparse.ArgumentTypeError("at least 1 second is needed")
    return float(text)


def _seeds(text: str) -> list[int]:
    seeds = sorted({whole(word) for word in text.replace(",", " ").split()})
    if not seeds:
        raise argparse.ArgumentTypeError('no seed given; as in "0 1 2"')
    return seeds


def _add_ranks(command: argparse.ArgumentParser) -> None:
    command.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp", help="with several processes")
    command.add_argument(
        "--resume", default="auto", metavar="WHENCE", help="auto (newest checkpoint), never, or a checkpoint"
    )


def _add_scope(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seeds", type=_seeds, default=[0], help='as "0 1 2"')
    command.add_argument("--only", default="", help='experiments, as "E5 E8"; all by default')


def _add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="E2 to E8, or a run's directory")
    command.add_argument("out", metavar="OUT", help="a directory that does not exist yet")
    command.add_argument("--profile", help="of the experiment RUN; laptop by default")
    command.add_argument("--seed", type=whole, help="of the experiment RUN; 0 by default")


OPTIONS: dict[str, Callable[[argparse.ArgumentParser], object]] = {
    "experiment": lambda c: c.add_argument("experiment", help="E0 to E8 (stage: or report)"),
    "profile": lambda c: c.add_argument("--profile", default="laptop"),
    "seed": lambda c: c.add_argument("--seed", type=whole, default=0),
    "timeout": lambda c: c.add_argument("--timeout", type=_seconds, help="seconds for the notebook"),
    "scope": _add_scope,
    "ranks": _add_ranks,
    "export": _add_export,
}
