"""Commands around a run: its cost (`plan`), what is missing for it (`doctor`), pages, an export's scores."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

from pangu_hif8.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pangu_hif8.doctor import Finding, Needs

MISSING = 2  # exit status


class Add(Protocol):
    """How `cli.build_parser` adds a command."""

    def __call__(
        self, name: str, action: Callable[[argparse.Namespace], int], text: str, *options: str
    ) -> argparse.ArgumentParser: ...


def count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"a whole number from 1 is needed, got {text!r}")
    return int(text)


def _count_or_none(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"a whole number from 0 is needed, got {text!r}")
    return int(text)


def add_plan(add: Add) -> None:
    """`plan`, for the paper's profile where none is named."""
    command = add("plan", _plan, "what a profile's runs take: memory, disk, traffic, hours", "profile")
    command.set_defaults(profile="paper")
    command.add_argument("--gpus", type=count, default=8, help="on each node; 8 by default")
    command.add_argument("--gpu", default="h100", help="h100 by default; a wrong name lists what is known")
    command.add_argument("--nodes", type=count, default=1)
    command.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp")
    command.add_argument("--model", help="another model at the same work; a wrong name lists what is known")
    command.add_argument("--micro-batch", type=count, help="sequences; by default the largest that fits")
    command.add_argument(
        "--checkpointing",
        action=argparse.BooleanOptionalAction,
        help="activation checkpointing; by default where nothing fits without",
    )
    command.add_argument("--details", action="store_true", help="also what a block keeps, tensor by tensor")


def add_pages(add: Add) -> None:
    """`audit` and `beyond`."""
    audit = "measure where text and published code part, and what follows"
    command = add("audit", _page, audit, "profile", "timeout", "page")
    command.set_defaults(page="audit")
    command.add_argument("--readme", action="store_true", help="rewrite README.md's table of findings too")
    beyond = "measure what lies beyond the paper: layer-wise rates, warm-up, blocks, window, target"
    command = add("beyond", _page, beyond, "profile", "timeout", "page")
    command.set_defaults(page="beyond")
    command.add_argument("--readme", action="store_true", help="rewrite README.md's words on it too")


def add_doctor(add: Add) -> None:
    """`doctor`."""
    text = f"say what is missing here for a profile, and exit with status {MISSING} if anything is"
    command = add("doctor", _doctor, text, "profile")
    command.add_argument("--gpus", type=_count_or_none, help="of this node; by default as the profile says")


def evaluate_export(arguments: argparse.Namespace) -> int:
    """`evaluate --export`."""
    if arguments.experiment is not None or arguments.seed is not None or arguments.settings:
        raise UserError("with --export, an experiment, --seed and --set would have no effect; leave them out")
    from pathlib import Path

    from pangu_hif8.export_scores import score_export
    from pangu_hif8.launch import is_main_process

    out = Path(arguments.out) if arguments.out else None
    text = score_export(Path(arguments.export), arguments.profile, out)
    if is_main_process():
        print(text)
    return 0


def _page(arguments: argparse.Namespace) -> int:
    from pangu_hif8.page_stage import stage_page

    profile, seeds, limit = arguments.profile, arguments.seeds, arguments.timeout
    stage_page(arguments.page, profile=profile, seeds=seeds, fresh=arguments.fresh, timeout_s=limit)
    if arguments.readme:
        _rewrite_readme(arguments.page, profile)
    return 0


def _rewrite_readme(page: str, profile: str) -> None:
    if page == "beyond":
        from pangu_hif8.beyond_readme import update_readme

        update_readme()
        return
    from pangu_hif8.page_readme import update_readme as update_findings

    update_findings(page, profile)


def _plan(arguments: argparse.Namespace) -> int:
    from pangu_hif8.plan_text import plan_text

    text = plan_text(
        arguments.profile,
        gpus=arguments.gpus,
        gpu=arguments.gpu,
        nodes=arguments.nodes,
        parallel=arguments.parallel,
        model=arguments.model,
        micro_batch=arguments.micro_batch,
        checkpointing=arguments.checkpointing,
        details=arguments.details,
    )
    print(text, end="")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from pangu_hif8.config import load_profile
    from pangu_hif8.doctor import can_start, doctor
    from pangu_hif8.doctor_needs import profile_needs
    from pangu_hif8.doctor_probes import Machine

    profile = load_profile(arguments.profile)
    needs = profile_needs(profile, arguments.gpus)
    print(f"Is all here for {profile.title}? {_asked(needs)}", flush=True)
    findings = doctor(needs, Machine())
    print("\n".join(finding.line() for finding in findings))
    print(_summary(findings))
    return 0 if can_start(findings) else MISSING


def _asked(needs: Needs) -> str:
    """What is looked at, in the order of the lines below it."""
    gpus = f"{needs.num_gpus} GPUs" if needs.num_gpus else "no GPU"
    topics = ["software", f"machine ({gpus})", "disk", "benchmarks", "model and data", "licences"]
    return f"Checked: {', '.join(topics)}."


def _summary(findings: list[Finding]) -> str:
    missing, warnings = (
        sum(finding.status == status for finding in findings) for status in ("missing", "warning")
    )
    said = f"{missing} missing" if missing else "Nothing is missing"
    return f"{said}; {warnings} warning{'' if warnings == 1 else 's'}"
