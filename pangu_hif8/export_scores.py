"""`python -m pangu_hif8 evaluate --export DIR`: score an exported checkpoint, keep and tell the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pangu_hif8.config import load_profile
from pangu_hif8.export_files import read_settings
from pangu_hif8.files import atomic_path, write_json
from pangu_hif8.freshness import source_digest
from pangu_hif8.launch import Parallel, is_main_process
from pangu_hif8.new_directory import new_directory, refuse_existing

if TYPE_CHECKING:
    from pangu_hif8.evaluate import Evaluation


def default_out(directory: Path) -> Path:
    """Beside the export: `DIR-scores`."""
    whole = directory.resolve()
    return whole.with_name(f"{whole.name}-scores")


def score_export(
    directory: Path, profile: str, out: Path | None = None, *, parallel: Parallel = "ddp"
) -> str:
    """Score the export on the profile's items, write a new directory, and return what to print.

    `out` (by default DIR-scores) gets eval.json, items.csv and heldout.csv with a run's columns. The tables
    have the bytes of the run's own when the export came from it, on the same machine with the same number of
    threads. Every process of a launched job calls this, and the first writes. Raises UserError for a damaged
    export, one with another tokenizer than the profile's, or an `out` that exists.
    """
    settings, target = load_profile(profile), out or default_out(directory)
    exported = read_settings(directory)
    refuse_existing(target)
    from pangu_hif8.evaluate_export import evaluate_export
    from pangu_hif8.train_stage import make_deterministic

    make_deterministic(0, settings.train.num_threads)
    found = evaluate_export(directory, profile, parallel=parallel)
    facts = {
        "profile": profile,
        "export_sha256": exported.tensors_sha256,
        "eval_code": source_digest("evaluate_stage"),
    }
    if is_main_process():
        _write(target, found, facts)
    return "\n".join([*_task_lines(found), *_heldout_lines(found), f"written to {target}"])


def _write(target: Path, found: Evaluation, facts: dict[str, str]) -> None:
    with new_directory(target) as made:
        for name, frame in (("items.csv", found.items), ("heldout.csv", found.heldout)):
            _write_frame(made / name, frame)
        write_json(made / "eval.json", found.summary | facts)


def _write_frame(path: Path, frame: Any) -> None:
    """As a run's tables are written."""
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, lineterminator="\n")


def _task_lines(found: Evaluation) -> list[str]:
    tasks = found.summary["tasks"]
    width = max(map(len, tasks))
    return [
        f"{name:<{width}}  {task['metric']} {task['value']:.4f}"
        + (f" +- {task['stderr']:.4f}" if task["stderr"] is not None else "")
        + f" ({task['num_fewshot']}-shot, {task['num_items']} items)"
        for name, task in tasks.items()
    ]


def _heldout_lines(found: Evaluation) -> list[str]:
    return [
        f"held-out loss, {domain}: {part['loss']:.4f} nats over {part['num_tokens']:,} tokens"
        for domain, part in found.summary["heldout"].items()
    ]
