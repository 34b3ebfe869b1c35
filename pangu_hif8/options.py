"""Options that several commands share, and the values they take."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pangu_hif8.errors import UserError


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
    command.add_argument(
        "--inputs-as-codes",
        action="store_true",
        help="keep quantized inputs as 8-bit codes for backward: less memory, the same numbers",
    )


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON, or as a word: lr=1e-4, overflow=taper, hp_blocks=[0,1]."""
    name, sign, value = text.partition("=")
    if not (sign and name):
        raise argparse.ArgumentTypeError(f"a setting is NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def changed(settings: list[tuple[str, Any]]) -> dict[str, Any]:
    """The settings by name. Raises UserError for a name given twice, or one that can't be changed."""
    from pangu_hif8.overrides import Overrides

    found = dict(settings)
    if len(found) < len(settings):
        raise UserError("--set names a setting twice; give each once")
    unknown = sorted(found.keys() - Overrides.model_fields.keys())
    if unknown:
        raise UserError(f"--set: unknown {', '.join(unknown)}; valid: {', '.join(Overrides.model_fields)}")
    return found


def how(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `run` and `train` were told, as `run_experiment` takes it."""
    if arguments.inputs_as_codes:
        from pangu_hif8.codes_choice import choose

        choose()
    resume = arguments.resume if arguments.resume in ("auto", "never") else Path(arguments.resume)
    names = {"profile": arguments.profile, "seed": arguments.seed}
    return names | {"parallel": arguments.parallel, "resume": resume} | changed(arguments.settings)


def _add_ranks_and_settings(command: argparse.ArgumentParser) -> None:
    _add_ranks(command)
    _add_settings(command)


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="change a setting of the experiment, as overflow=taper; may be given several times",
    )


def _add_page(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seeds", type=_seeds, default=[0], help='as "0 1 2"')
    command.add_argument("--fresh", action="store_true", help="make runs again that came with the repository")


def _add_scope(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seeds", type=_seeds, default=[0], help='as "0 1 2"')
    command.add_argument("--only", default="", help='experiments, as "E5 E8"; all by default')


def _add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="E2 to E8, or a run's directory")
    command.add_argument("out", metavar="OUT", help="a directory that does not exist yet")
    command.add_argument("--profile", help="of the experiment RUN; laptop by default")
    command.add_argument("--seed", type=whole, help="of the experiment RUN; 0 by default")


def _add_evaluate(command: argparse.ArgumentParser) -> None:
    command.add_argument("experiment", nargs="?", help="E0 to E8, trained")
    command.add_argument("--profile", default="laptop")
    command.add_argument("--seed", type=whole, help="of the experiment; 0 by default")
    command.add_argument("--export", metavar="DIR", help="score this exported HiF8 checkpoint instead")
    command.add_argument(
        "--out",
        metavar="OUT",
        help="with --export: where its scores go, a new directory; DIR-scores by default",
    )
    _add_settings(command)


OPTIONS: dict[str, Callable[[argparse.ArgumentParser], object]] = {
    "experiment": lambda c: c.add_argument("experiment", help="E0 to E8 (stage: or report)"),
    "profile": lambda c: c.add_argument("--profile", default="laptop"),
    "seed": lambda c: c.add_argument("--seed", type=whole, default=0),
    "timeout": lambda c: c.add_argument("--timeout", type=_seconds, help="seconds for the notebook"),
    "scope": _add_scope,
    "ranks": _add_ranks_and_settings,
    "settings": _add_settings,
    "page": _add_page,
    "export": _add_export,
    "evaluate": _add_evaluate,
}
