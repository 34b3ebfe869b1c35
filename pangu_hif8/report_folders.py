"""Where the report of two profiles lies, and which two can stand side by side. Cheap to import."""

from __future__ import annotations

from pathlib import Path

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.paths import report_dir, results_dir

PREFIX = "beside-"


def beside_dir(profile: str, beside: str) -> Path:
    """Where the report of two profiles lies: in the first one's report."""
    return report_dir(profile) / f"{PREFIX}{beside}"


def check_beside(profile: str, beside: str) -> None:
    """Raises UserError for an unknown profile, one without results, and one beside itself."""
    for name in (profile, beside):
        load_profile(name)
    if profile == beside:
        raise UserError(f"{profile} can't stand beside itself; name another profile that has results")
    for name in (profile, beside):
        refuse_empty(name)


def refuse_empty(profile: str) -> None:
    """Raises UserError where no run of the paper's experiments has left its record."""
    base = results_dir() / profile
    if not any(base.glob("E[0-9]/seed*/run.json")):
        raise UserError(f"no results in {base}; run: make reproduce PROFILE={profile}")
