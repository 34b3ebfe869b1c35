"""What a notebook imports: one call that runs its experiment, and refuses parameters that nobody knows.

papermill only warns about an unknown `-p` name, hands over `true` and `fast` as strings, and injects a cell
of plain assignments. So the globals of the notebook are the truth: every global that holds plain data must
be a parameter, and the values are validated strictly, before any work starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.overrides import Overrides

if TYPE_CHECKING:
    from pangu_hif8.run import Run

KNOWN = ("profile", "seed", *Overrides.model_fields)
IPYTHON_NAMES = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})
PLAIN_TYPES = (bool, int, float, complex, str, bytes, list, dict, tuple, set, type(None))


class NotebookError(UserError):
    """A UserError that Jupyter shows as one line, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"UserError: {self}"]


def check_parameters(namespace: Mapping[str, Any], known: Collection[str] = KNOWN) -> dict[str, Any]:
    """The parameters among a notebook's globals.

    Modules, functions and results are left alone, so that all cells can be run again; names with an
    underscore and IPython's own are not parameters. Raises UserError for plain data under another name.
    """
    plain = {name: value for name, value in namespace.items() if _is_parameter(name, value)}
    unknown = sorted(plain.keys() - set(known))
    if unknown:
        raise UserError(f"unknown parameter {', '.join(unknown)}; valid: {', '.join(known)}")
    odd = sorted(name for name in known if name in namespace and name not in plain)
    if odd:
        raise UserError(f"parameter {', '.join(odd)} must be a plain value")
    return plain


def _is_parameter(name: str, value: object) -> bool:
    return not name.startswith("_") and name not in IPYTHON_NAMES and type(value) in PLAIN_TYPES


def run_from_notebook(experiment: str, namespace: Mapping[str, Any]) -> Run:
    """Run an experiment with the parameters found in `namespace` (pass `globals()`).

    The parameters cell declares `profile` and `seed`, and `lr` and `steps` where the run is trained; an
    override that is None means: as the paper and the profile say. A run that is up to date is returned at
    once. Raises NotebookError (one line).
    """
    from pangu_hif8.run import run_experiment

    try:
        parameters = check_parameters(namespace)
        lost = [name for name in _declared_by(experiment) if name not in parameters]
        if lost:  # papermill injects its own even where there is no parameters cell, and only warns
            raise UserError(f"the notebook declares no {', '.join(lost)}; restore its parameters cell")
        return run_experiment(experiment, **parameters)
    except (UserError, Preempted) as error:
        raise NotebookError(str(error)) from None


def _declared_by(experiment: str) -> tuple[str, ...]:
    return ("profile", "seed") if experiment == "E0" else ("profile", "seed", "lr", "steps")
