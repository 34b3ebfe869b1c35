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
        if not (results_dir() / name).is_dir():
            raise UserError(f"no results in {results_dir() / name}; run: make reproduce PROFILE={name}")
