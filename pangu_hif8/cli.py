"""The command line: what make calls, and what a cluster script can call without make.

Exit status: 0 done, or stopped by SIGTERM with a checkpoint; 2 bad input or a run that failed (one line on
stderr says why); 3 from `status` when there is work to do; 130 interrupted. Nothing heavy is imported before
a command needs it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.options import OPTIONS, changed, how, whole

DAMAGED, WORK_TO_DO = 2, 3


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def _scope(arguments: argparse.Namespace) -> tuple[list[str], list[int]]:
    """The experiments and seeds asked for; all experiments when --only is empty."""
    from pangu_hif8.config import load_profile
    from pangu_hif8.experiments import EXPERIMENTS, get_experiment

    load_profile(arguments.profile)
    names = {get_experiment(name).id for name in arguments.only.replace(",", " ").split()}
    return sorted(names or EXPERIMENTS), arguments.seeds


def _list(arguments: argparse.Namespace) -> int:
    from pangu_hif8.config import load_profile, profile_names
    from pangu_hif8.experiments import EXPERIMENTS

    for row in EXPERIMENTS.values():
        against = f" (against {row.baseline})" if row.baseline else ""
        print(f"{row.id}  {row.title}{against}")
    for name in profile_names():
        print(f"profile {load_profile(name).title}")
    return 0


def _check_args(arguments: argparse.Namespace) -> int:
    _scope(arguments)
    return 0


def _prepare(arguments: argparse.Namespace) -> int:
    from pangu_hif8.prepare import prepare

    print(f"prepared in {prepare(arguments.profile).model_dir.parent}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from pangu_hif8.run import run_experiment

    return _told(run_experiment(arguments.experiment, **how(arguments)))


def _train(arguments: argparse.Namespace) -> int:
    from pangu_hif8.run import train_experiment

    return _told(train_experiment(arguments.experiment, **how(arguments)))


def _evaluate(arguments: argparse.Namespace) -> int:
    if arguments.export is not None:
        from pangu_hif8.commands import evaluate_export

        return evaluate_export(arguments)
    if arguments.experiment is None or arguments.out is not None:
        raise UserError("evaluate takes an experiment, or --export DIR (and then --out)")
    from pangu_hif8.run import evaluate_experiment

    profile, seed, changes = arguments.profile, arguments.seed or 0, changed(arguments.settings)
    return _told(evaluate_experiment(arguments.experiment, profile=profile, seed=seed, **changes))


def _told(run: Any) -> int:
    from pangu_hif8.launch import is_main_process

    if is_main_process():
        print(run.directory)
    return 0


def _stage(arguments: argparse.Namespace) -> int:
    from pangu_hif8.stages import stage_report, stage_run

    profile, limit = arguments.profile, arguments.timeout
    if arguments.experiment == "report":
        stage_report(profile, timeout_s=limit)
    else:
        stage_run(arguments.experiment, profile=profile, seed=arguments.seed, timeout_s=limit)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    from pangu_hif8.stages import stage_report

    stage_report(arguments.profile, beside=arguments.beside, timeout_s=arguments.timeout)
    if arguments.readme:
        from pangu_hif8.report_readme import update_readme

        update_readme(arguments.profile, arguments.beside)
    if not arguments.beside:
        return _summary(arguments)
    from pangu_hif8.report_beside import print_beside

    print_beside(arguments.profile, arguments.beside)
    return 0


def _summary(arguments: argparse.Namespace) -> int:
    from pangu_hif8.report import print_summary
    from pangu_hif8.wall_time import duration

    whole_files = print_summary(arguments.profile)
    if getattr(arguments, "started", None) is not None:
        print(f"wall time: {duration(time.time() - arguments.started)}")
    return 0 if whole_files else DAMAGED


def _status(arguments: argparse.Namespace) -> int:
    from pangu_hif8.paths import report_dir
    from pangu_hif8.stages import pending

    waiting = pending(arguments.profile, *_scope(arguments))
    for label, reason in waiting.items():
        print(f"{label}: to do ({reason})")
    if waiting:
        return WORK_TO_DO
    print(f"everything is up to date; report: {report_dir(arguments.profile) / 'report.html'}")
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from pangu_hif8.export_run import export_run

    out, profile, seed = Path(arguments.out), arguments.profile, arguments.seed
    print(export_run(arguments.run, out, profile=profile, seed=seed))
    return 0


def _format(arguments: argparse.Namespace) -> int:
    if arguments.figure is not None:
        from pangu_hif8.format_figure import save_format_figure

        save_format_figure(Path(arguments.figure))
    from pangu_hif8.hif8_info import table_text

    print(table_text())
    return 0


def _lab(arguments: argparse.Namespace) -> int:
    from pangu_hif8.kernel import environment
    from pangu_hif8.paths import NOTEBOOKS_DIR

    root = ["--allow-root"] if os.geteuid() == 0 else []  # Jupyter refuses root, who has chosen already
    command = [sys.executable, "-m", "jupyterlab", str(NOTEBOOKS_DIR), *root, *arguments.rest]
    return subprocess.run(command, env=os.environ | environment(text_bars=False)).returncode


def build_parser() -> argparse.ArgumentParser:
    """The parser; abbreviations are off, so that a misspelt option ends."""
    from pangu_hif8.commands import add_doctor, add_pages, add_plan

    parser = _Parser(prog="python -m pangu_hif8", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def add(
        name: str, action: Callable[[argparse.Namespace], int], text: str, *options: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        command.set_defaults(action=action)
        for option in options:
            OPTIONS[option](command)
        return command

    add("list", _list, "experiments and profiles")
    add("check-args", _check_args, "check names and do nothing", "profile", "scope")
    add("prepare", _prepare, "make base model, token shards and benchmark items", "profile")
    run = ("experiment", "profile", "seed")
    add("run", _run, "train and evaluate one experiment here", *run, "ranks")
    add("train", _train, "train one experiment, on every process of a launched job", *run, "ranks")
    add("evaluate", _evaluate, "evaluate a trained experiment, or an exported checkpoint", "evaluate")
    add(
        "stage",
        _stage,
        "the same through its notebook, if not up to date",
        "experiment",
        "profile",
        "seed",
        "timeout",
    )
    report = add("report", _report, "write the report from results/ and print it", "profile", "timeout")
    report.add_argument("--beside", default="", metavar="PROFILE", help="show this profile next to it")
    report.add_argument("--readme", action="store_true", help="rewrite README.md's table of it too")
    add("summary", _summary, "print benchmark table and verdicts", "profile").add_argument(
        "--started", type=whole, metavar="EPOCH", help="print the wall time since then"
    )
    add(
        "status",
        _status,
        f"prepare, and say what is not up to date (then exit {WORK_TO_DO})",
        "profile",
        "scope",
    )
    add("export", _export, "write a run's model as an 8-bit HiF8 checkpoint, and its sizes", "export")
    add("format", _format, "print HiF8's 256 codes").add_argument(
        "--figure", metavar="FILE", help="also draw its precision beside other formats, as .png or .svg"
    )
    add_pages(add)
    add_plan(add)
    add_doctor(add)
    add("lab", _lab, "JupyterLab on this interpreter; other options are handed to it")
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Everything known, except that `lab` hands what it does not know to JupyterLab."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "lab":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    arguments.rest = rest
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    try:
        arguments = _parse(argv)
        status: int = arguments.action(arguments)
    except Preempted as notice:
        print(notice, flush=True)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except SyntaxError as error:  # freshness reads the sources: one that is being edited
        print(
            f"error: {error.filename or 'a source file'}, line {error.lineno}: {error.msg}", file=sys.stderr
        )
        return 2
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    return status
