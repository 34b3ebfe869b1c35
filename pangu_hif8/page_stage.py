"""The audit and the sweeps as stages: their runs, then their notebook, then one HTML page.

Which runs are needed is asked of the results, so that a second call, or one in a fresh clone with the
repository's own results, makes what is missing and no more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from pangu_hif8.config import load_profile
from pangu_hif8.files import digest, sha256_file
from pangu_hif8.freshness import PACKAGE, source_digest, stale_reason, write_stamp
from pangu_hif8.paths import NOTEBOOKS_DIR, results_dir
from pangu_hif8.processes import num_processes, use_all_processes
from pangu_hif8.sections import page_dir
from pangu_hif8.stages import (
    RUN_FILES,
    alone,
    execute_notebook,
    outputs_in,
    prepare_aloud,
    say,
    tree_digest,
    write_page,
)
from pangu_hif8.variant_runs import Wanted, pending, wanted
from pangu_hif8.variants import Variant
from pangu_hif8.wall_time import duration

NOTEBOOK_OF = {"audit": "10_audit", "beyond": "11_beyond"}


def variants_of(page: str, profile: str) -> tuple[Variant, ...]:
    """The variants of a page at a profile; those of the sweeps as far as the sensitivity is measured.

    Raises UserError for an unknown profile.
    """
    settings = load_profile(profile)
    if page == "audit":
        from pangu_hif8.audit_variants import audit_variants

        return audit_variants(settings)
    from pangu_hif8.beyond_variants import beyond_variants
    from pangu_hif8.sensitivity import ranking

    return beyond_variants(settings, ranking(profile))


def to_measure(page: str, profile: str) -> str | None:
    """Which measurement that is no run a page lacks, or None."""
    if page == "audit":
        from pangu_hif8.dose_files import dose_fault

        fault = dose_fault(profile)
        return f"dose response: {fault}" if fault else None
    from pangu_hif8.sensitivity import read_sensitivity

    return "sensitivity of the blocks: not measured" if read_sensitivity(profile) is None else None


def stage_page(
    page: str, *, profile: str, seeds: Iterable[int], fresh: bool = False, timeout_s: float | None = None
) -> Path:
    """Make a page's runs and its executed notebook, if not up to date; returns the HTML page.

    `fresh`: runs that came with the repository are made again here. Raises UserError for an unknown profile.
    """
    load_profile(profile)
    seeds, directory = sorted(set(seeds)), page_dir(profile, page)
    target = directory / f"{page}.html"
    with alone(profile, page, directory):
        todo = pending(wanted(variants_of(page, profile), profile, seeds), fresh)
        reason = _reason(page, profile, seeds, todo)
        if not reason:
            say(f"{page}: up to date; page: {target}")
            return target
        started, source = time.monotonic(), NOTEBOOKS_DIR / f"{NOTEBOOK_OF[page]}.ipynb"
        say(f"{page}: running {source.name} ({reason})")
        if todo or to_measure(page, profile):
            prepare_aloud(profile)  # the kernel is kept off the network
        _use_all_processes(todo)
        words = " ".join(map(str, seeds))
        parameters: dict[str, str | bool] = {"profile": profile, "seeds": words, "fresh": fresh}
        execute_notebook(source, directory, parameters, page, timeout_s)
        write_page(directory / "executed.ipynb", target)
        write_stamp(directory / "page.stamp", _inputs(page, profile, seeds), outputs_in(directory))
        say(f"{page}: done in {duration(time.monotonic() - started)}; page: {target}")
    return target


def _reason(page: str, profile: str, seeds: list[int], todo: list[Wanted]) -> str | None:
    if todo:
        return f"{len(todo)} runs to make, {todo[0].label} first"
    stamp = page_dir(profile, page) / "page.stamp"
    return to_measure(page, profile) or stale_reason(stamp, _inputs(page, profile, seeds))


def _use_all_processes(todo: list[Wanted]) -> None:
    """With several GPUs each run takes them all, before the notebook looks at it."""
    if num_processes() > 1:
        for run in todo:
            use_all_processes(run.config, run.label, run.changes)


def _inputs(page: str, profile: str, seeds: list[int]) -> dict[str, str]:
    source, root = NOTEBOOKS_DIR / f"{NOTEBOOK_OF[page]}.ipynb", results_dir() / profile
    runs = [p for name in RUN_FILES for p in root.glob(f"E*/seed*/{name}") if p.name != "step_times.csv"]
    return {
        "notebook": sha256_file(source) if source.exists() else "missing",
        "seeds": digest(seeds),
        "results": tree_digest(root, runs),
        "profile": digest(load_profile(profile).model_dump()),
        "code": source_digest(page, "notebook"),
        "published figures": tree_digest(PACKAGE, (PACKAGE / "published").glob("*")),
        "training and evaluation code": source_digest("train_stage", "evaluate_stage"),
    }
