"""The stages that make drives: one notebook a run, and the report over all of them.

A stage asks `freshness` whether its output is the product of its inputs, and otherwise executes the notebook
and renames the result into place, its stamp last. So a killed, failed or repeated make does what is missing
and no more. The numbers are the business of `run`; here is only their notebook.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig, get_experiment
from pangu_hif8.files import digest, sha256_file, write_text
from pangu_hif8.freshness import PACKAGE, exclusive, output_digest, source_digest, stale_reason, write_stamp
from pangu_hif8.paths import NOTEBOOKS_DIR, cache_dir, report_dir, results_dir
from pangu_hif8.prepare import Prepared, prepare
from pangu_hif8.processes import use_all_processes
from pangu_hif8.report_folders import PREFIX, beside_dir, check_beside, refuse_empty
from pangu_hif8.run import directory_of, resolve_run, stale_stages
from pangu_hif8.terminal import Forwarder
from pangu_hif8.wall_time import duration

REPORT_NOTEBOOK = "09_report"
SHOWN_BY = ("plots_run", "tables", "format_figure")  # modules that decide what a run's notebook shows
RUN_FILES = ("run.json", "eval.json", "*_timing.json", "*.csv")


def label_of(experiment: str, seed: int) -> str:
    """How a stage is called in messages."""
    return f"{experiment} seed {seed}"


def source_of(experiment: str) -> Path:
    """The notebook source of an experiment."""
    return NOTEBOOKS_DIR / f"{get_experiment(experiment).notebook}.ipynb"


def notebook_inputs(config: RunConfig) -> dict[str, str]:
    """What decides a run's executed notebook, once training and evaluation are up to date."""
    directory = directory_of(config)
    return notebook_sources(config) | {
        "training": output_digest(directory / "train.stamp"),
        "evaluation": output_digest(directory / "evaluate.stamp"),
    }


def notebook_sources(config: RunConfig) -> dict[str, str]:
    """The part of `notebook_inputs` that is known before the run."""
    source = source_of(config.experiment)
    return {
        "notebook": sha256_file(source) if source.exists() else "missing",
        "what notebooks show": source_digest(*SHOWN_BY),
    }


def _parameters(source: Path, profile: str, seed: int) -> dict[str, str | int | None]:
    """Every declared parameter: an override that someone left in the source must not name itself E5."""
    from pangu_hif8.kernel import declared_parameters

    others: dict[str, str | int | None] = dict.fromkeys(declared_parameters(source))
    return others | {"profile": profile, "seed": seed}


def prepare_aloud(profile: str) -> Prepared:
    """`prepare`, its words and bars under a prefix as a notebook's are."""
    shown = Forwarder("prepare | ")
    try:
        with redirect_stdout(shown), redirect_stderr(shown):
            return prepare(profile)
    finally:
        shown.close()


def run_reason(config: RunConfig, prepared: Prepared) -> str | None:
    """Why a run has to be made (again), or None when it is up to date."""
    stale = stale_stages(config, prepared)
    if stale:
        stage, reason = next(iter(stale.items()))
        return f"{stage}: {reason}"
    return stale_reason(directory_of(config) / "notebook.stamp", notebook_inputs(config))


def report_inputs(profile: str, beside: str = "") -> dict[str, str]:
    """What decides the report: every run's files, the registry's settings, the code and figures it uses."""
    source = NOTEBOOKS_DIR / f"{REPORT_NOTEBOOK}.ipynb"
    profiles = [name for name in (profile, beside) if name]
    return {
        "notebook": sha256_file(source) if source.exists() else "missing",
        "results": digest([_runs_digest(name) for name in profiles]),
        "profile": digest([load_profile(name).model_dump() for name in profiles]),
        "code": source_digest("report_beside", "notebook"),
        "published figures": tree_digest(PACKAGE, (PACKAGE / "published").glob("*")),
        "training and evaluation code": source_digest("train_stage", "evaluate_stage"),
    }


def _runs_digest(profile: str) -> str:
    root = results_dir() / profile
    runs = [p for name in RUN_FILES for p in root.glob(f"E*/seed*/{name}") if p.name != "step_times.csv"]
    return tree_digest(root, runs)


def tree_digest(base: Path, files: Iterable[Path]) -> str:
    return digest({p.relative_to(base).as_posix(): sha256_file(p) for p in files if p.is_file()})


def report_reason(profile: str, beside: str = "") -> str | None:
    """Why the report has to be written (again), or None."""
    return stale_reason(_report_dir(profile, beside) / "report.stamp", report_inputs(profile, beside))


def _report_dir(profile: str, beside: str) -> Path:
    return beside_dir(profile, beside) if beside else report_dir(profile)


def pending(profile: str, experiments: Iterable[str], seeds: Iterable[int]) -> dict[str, str]:
    """Label to reason for every stage that has to run; empty when everything is up to date.

    Prepares the profile first if needed: what a run starts from is part of the question.
    """
    refuse_unwritable(results_dir() / profile)
    wanted = [("E0", 0), *((e, s) for s in seeds for e in experiments if e != "E0")]
    configs = {label_of(e, s): resolve_run(e, profile, s) for e, s in wanted}
    prepared = prepare_aloud(profile)
    found = {label: run_reason(config, prepared) for label, config in configs.items()}
    found["report"] = report_reason(profile)
    return {label: reason for label, reason in found.items() if reason}


def stage_run(experiment: str, *, profile: str, seed: int = 0, timeout_s: float | None = None) -> Path:
    """Make one run and its executed notebook, if not up to date; returns the executed notebook.

    Raises UserError with one line when the notebook fails; its copy is kept beside as failed.ipynb.
    """
    config, label = resolve_run(experiment, profile, seed), label_of(experiment, seed)
    directory = directory_of(config)
    with alone(profile, label, directory):
        reason = run_reason(config, prepare_aloud(profile))
        if reason:
            source = source_of(experiment)
            say(f"{label}: running {source.name} ({reason})")
            started = time.monotonic()
            shown = notebook_sources(config)
            if config.lr is not None and stale_stages(config, prepare(profile)):
                use_all_processes(config, label)
            execute_notebook(source, directory, _parameters(source, profile, seed), label, timeout_s)
            inputs = notebook_inputs(config) | shown  # the sources as they were when it began
            write_stamp(directory / "notebook.stamp", inputs, [directory / "executed.ipynb"])
            say(f"{label}: done in {duration(time.monotonic() - started)}")
        else:
            say(f"{label}: up to date")
    return directory / "executed.ipynb"


def stage_report(profile: str, *, beside: str = "", timeout_s: float | None = None) -> Path:
    """Write the report of what is in results/, if not up to date; returns the HTML page. Loads no torch.

    With `beside`, that of two profiles side by side.
    """
    check_report(profile, beside)
    directory, label = _report_dir(profile, beside), f"report beside {beside}" if beside else "report"
    page = directory / "report.html"
    with alone(profile, label, directory):
        reason = report_reason(profile, beside)
        if reason:
            say(f"{label}: running {REPORT_NOTEBOOK}.ipynb ({reason})")
            inputs, started = report_inputs(profile, beside), time.monotonic()
            source = NOTEBOOKS_DIR / f"{REPORT_NOTEBOOK}.ipynb"
            parameters = {"profile": profile} | ({"beside": beside} if beside else {})
            execute_notebook(source, directory, parameters, label, timeout_s)
            write_page(directory / "executed.ipynb", page)
            write_stamp(directory / "report.stamp", inputs, outputs_in(directory))
            say(f"{label}: done in {duration(time.monotonic() - started)}")
        else:
            say(f"{label}: up to date")
    return page


def check_report(profile: str, beside: str) -> None:
    """Raises UserError for an unknown profile, one beside itself, or one without results."""
    load_profile(profile)
    refuse_empty(profile)
    if beside:
        check_beside(profile, beside)


def write_page(executed: Path, page: Path) -> None:
    from pangu_hif8.report_html import write_html

    write_html(executed, page)


def outputs_in(directory: Path) -> list[Path]:
    skipped = {".stamp", ".lock", ".tmp"}
    files = (p for p in directory.rglob("*") if p.is_file() and not {p.suffix, p.name} & skipped)
    return sorted(p for p in files if not p.relative_to(directory).parts[0].startswith(PREFIX))


def execute_notebook(
    source: Path,
    directory: Path,
    parameters: Mapping[str, str | int | bool | None],
    label: str,
    timeout_s: float | None,
) -> None:
    import nbformat

    from pangu_hif8.kernel import ExecutionError, execute

    failed = directory / "failed.ipynb"
    failed.unlink(missing_ok=True)
    (directory / "executed.ipynb").unlink(missing_ok=True)  # it shows results that are being replaced
    try:
        notebook = execute(source, parameters, label=label, timeout_s=timeout_s)
    except ExecutionError as error:
        if error.executed is None:
            raise UserError(f"{label}: {error}") from error
        write_text(failed, nbformat.writes(error.executed) + "\n")
        raise UserError(f"{label}: {error} (see {failed})") from error
    write_text(directory / "executed.ipynb", nbformat.writes(notebook) + "\n")


@contextmanager
def alone(profile: str, label: str, directory: Path) -> Iterator[None]:
    """Hold the stage against another make, after a look whether its results can be written at all.

    The lock lies in the cache: the kernel takes the one in the run's directory itself.
    """
    refuse_unwritable(directory)
    with exclusive(
        cache_dir() / "locks" / f"{profile}-{label.replace(' ', '-')}", label, timeout_s=24 * 3600
    ):
        yield


def refuse_unwritable(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write in {directory}: {error.strerror}; mend that or set PANGU_HIF8_RESULTS"
        ) from error


def say(text: str) -> None:
    print(text, flush=True)
