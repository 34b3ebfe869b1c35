"""Run a notebook in the interpreter that runs this, whatever kernel its metadata asks for.

A kernel name is a promise that a virtual environment may not keep, so the project brings its own kernel
specification, found before all others. The executed copy then names the kernel that ran, and holds no path
of the machine. Nothing is written beside the sources: papermill works in a temporary directory, and the
caller gets the executed notebook, or an error that says in one line what failed and where.
"""

from __future__ import annotations

import ast
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from pangu_hif8.errors import UserError
from pangu_hif8.files import digest, write_json
from pangu_hif8.lm_tasks import OFFLINE
from pangu_hif8.paths import ROOT, cache_dir
from pangu_hif8.siblings import spin_count
from pangu_hif8.terminal import Forwarder

KERNEL_NAME = "python3"  # the name in the sources' metadata, so that an executed copy opens in JupyterLab
TEXT_BARS = "--IPKernelApp.exec_lines=from pangu_hif8.terminal import use_text_bars; use_text_bars()"
# Libraries' bars for things that take a second; our own say what takes time.
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


@dataclass
class ExecutionError(UserError):
    """A notebook stopped. `executed` is the copy up to the failure, for a look at it."""

    message: str
    executed: Any = None

    def __str__(self) -> str:
        return self.message


def kernel_spec(text_bars: bool = True) -> dict[str, Any]:
    """The specification of a kernel in the running interpreter; text bars are for a terminal to show."""
    # A kernel logs to the terminal directly; what a person needs to know comes through its messages.
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=CRITICAL"]
    return {
        "argv": argv + [TEXT_BARS] * text_bars,
        "display_name": f"Python {platform.python_version()} (pangu_hif8)",
        "language": "python",
        "metadata": {"debugger": True},
    }


def install_kernel(text_bars: bool = True) -> Path:
    """Write the specification under the cache; returns the directory to put on JUPYTER_PATH."""
    spec = kernel_spec(text_bars)
    home = cache_dir() / "jupyter" / digest(spec)[:12]
    target = home / "kernels" / KERNEL_NAME / "kernel.json"
    if not target.exists():
        write_json(target, spec)
    return home


def environment(offline: bool = True, text_bars: bool = True) -> dict[str, str]:
    """Variables that every kernel gets: our kernel first, no network, no thread surprises, fixed hashes."""
    paths = [str(install_kernel(text_bars)), os.environ.get("JUPYTER_PATH", "")]
    imports = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "JUPYTER_PATH": os.pathsep.join(filter(None, paths)),
        "PYTHONPATH": os.pathsep.join(filter(None, imports)),
        "PYTHONHASHSEED": "0",
        "GOMP_SPINCOUNT": spin_count(),
        "TOKENIZERS_PARALLELISM": "false",
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **QUIET,
        **(OFFLINE if offline else {}),
    }


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def declared_parameters(source: Path) -> set[str]:
    """Names that a notebook's `parameters` cell assigns.

    Raises UserError when the notebook is missing or damaged, or has not exactly one such cell: papermill
    would then run it with its defaults, or with parameters that nothing reads.
    """
    try:
        notebook = nbformat.read(source, as_version=4)
    except FileNotFoundError as error:
        raise UserError(f"{source} is missing; restore it") from error
    except Exception as error:
        raise UserError(f"{source} is not a notebook ({type(error).__name__}); restore it") from error
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    if len(cells) != 1 or cells[0].cell_type != "code":
        raise UserError(f"{source.name} needs one code cell tagged parameters, it has {len(cells)}")
    nodes = ast.walk(ast.parse(cells[0].source))
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def execute(
    source: Path,
    parameters: Mapping[str, Any],
    *,
    label: str,
    timeout_s: float | None = None,
    offline: bool = True,
) -> Any:
    """Execute a notebook with parameters; returns the executed notebook node.

    `timeout_s` limits the whole notebook (None: no limit). Raises UserError before anything starts for a
    faulty source or an undeclared parameter, ExecutionError when a cell fails, hangs, or its kernel dies.
    """
    undeclared = sorted(parameters.keys() - declared_parameters(source))
    if undeclared:
        raise UserError(f"{source.name} has no parameter {', '.join(undeclared)}")
    clock = _Clock(timeout_s)
    with tempfile.TemporaryDirectory(prefix="pangu_hif8-") as directory:
        target = Path(directory) / "executed.ipynb"
        try:
            with _environ(environment(offline)):
                _papermill(source, target, parameters, label, clock)
        except Exception as error:
            raise ExecutionError(_explain(error, source, clock), _tidy(target)) from error
        return _tidy(target)


def _papermill(source: Path, target: Path, parameters: Any, label: str, clock: _Clock) -> None:
    import papermill

    out, err = Forwarder(f"{label} | "), Forwarder(f"{label} | ")
    try:
        papermill.execute_notebook(
            str(source),
            str(target),
            parameters=dict(parameters),
            kernel_name=KERNEL_NAME,
            language="python",
            cwd=str(ROOT),
            progress_bar=False,
            stdout_file=out,
            stderr_file=err,
            timeout_func=clock.remaining,
            coalesce_streams=True,
        )
    finally:
        out.close()
        err.close()


class _Clock:
    """Time left for a notebook, asked before each cell; remembers which cell that was."""

    def __init__(self, limit_s: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self.limit_s, self.now, self.start, self.cell = limit_s, now, now(), ""

    def remaining(self, cell: Any) -> float | None:
        """nbclient's `timeout_func`; None is no limit, and 0 would mean the same to it."""
        self.cell = cell.source.strip().partition("\n")[0]
        return None if self.limit_s is None else max(0.01, self.limit_s - (self.now() - self.start))


def _explain(error: Exception, source: Path, clock: _Clock) -> str:
    """One line for people: which notebook and cell (its first line), and the original words."""
    name = getattr(error, "ename", type(error).__name__)
    words = " ".join(str(getattr(error, "evalue", error)).split()) or "no message"
    if name in ("NotebookError", "UserError"):
        return words
    where = f"{source.name}, cell `{clock.cell}`"
    if isinstance(error, CellTimeoutError):
        return f"{where}: the notebook ran longer than its limit of {clock.limit_s:g} s; raise the timeout"
    if isinstance(error, DeadKernelError):
        return f"{where}: the kernel died, perhaps for want of memory; close other programs and run again"
    return f"{where}: {name}: {words}"


def _tidy(path: Path) -> Any:
    """Read what papermill wrote; name the kernel that ran, and drop paths of this machine."""
    if not path.exists():
        return None
    notebook = nbformat.read(path, as_version=4)
    shown = kernel_spec()
    notebook.metadata["kernelspec"] = {
        "name": KERNEL_NAME,
        "display_name": shown["display_name"],
        "language": shown["language"],
    }
    for name in ("input_path", "output_path"):
        notebook.metadata.get("papermill", {}).pop(name, None)
    return notebook
