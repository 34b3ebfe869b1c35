"""What the audit's and the sweeps' notebooks import: one call that makes the runs and returns the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pangu_hif8.errors import Preempted, UserError
from pangu_hif8.notebook import NotebookError, check_parameters
from pangu_hif8.sections import Page

PARAMETERS = ("profile", "seeds", "fresh")


def audit_from_notebook(namespace: Mapping[str, Any]) -> Page:
    """Make the audit's runs and measurements, and build its page (pass `globals()`).

    The parameters cell declares `profile`, `seeds` (a string as "0 1") and `fresh` (runs that came with the
    repository are made again). What is up to date is taken as it is. Raises NotebookError (one line).
    """
    return _page("audit", namespace)


def beyond_from_notebook(namespace: Mapping[str, Any]) -> Page:
    """The same for the sweeps beyond the paper."""
    return _page("beyond", namespace)


def _page(page: str, namespace: Mapping[str, Any]) -> Page:
    try:
        profile, seeds, fresh = _checked(check_parameters(namespace, PARAMETERS))
        if page == "audit":
            from pangu_hif8.audit import build_audit, measure_audit

            measure_audit(profile, seeds, fresh=fresh)
            return build_audit(profile)
        from pangu_hif8.beyond import build_beyond, measure_beyond

        measure_beyond(profile, seeds, fresh=fresh)
        return build_beyond(profile)
    except (UserError, Preempted) as error:
        raise NotebookError(str(error)) from None


def _checked(given: Mapping[str, Any]) -> tuple[str, list[int], bool]:
    lost = [name for name in PARAMETERS if name not in given]
    if lost:
        raise UserError(f"the notebook declares no {', '.join(lost)}; restore its parameters cell")
    profile, seeds, fresh = (given[name] for name in PARAMETERS)
    if not isinstance(profile, str):
        raise UserError(f"profile must be a name, got {profile!r}")
    if not isinstance(fresh, bool):
        raise UserError(f"fresh must be true or false, got {fresh!r}")
    return profile, _seeds(seeds), fresh


def _seeds(given: object) -> list[int]:
    words = str(given).replace(",", " ").split() if isinstance(given, str | int) else []
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise UserError(f'seeds must be whole numbers, as "0 1 2", got {given!r}')
    return sorted({int(word) for word in words})
