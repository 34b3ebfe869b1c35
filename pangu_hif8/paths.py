"""Where things live. Everything follows from the repository's root, never from the working directory."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROFILES_DIR = Path(__file__).resolve().parent / "profiles"
NOTEBOOKS_DIR = ROOT / "notebooks"


def results_dir() -> Path:
    """Root of the results (`PANGU_HIF8_RESULTS` moves it; tests use that)."""
    return Path(os.environ.get("PANGU_HIF8_RESULTS", ROOT / "results")).resolve()


def cache_dir() -> Path:
    """Root of downloads, prepared models and token shards (`PANGU_HIF8_CACHE` moves it)."""
    return Path(os.environ.get("PANGU_HIF8_CACHE", ROOT / ".cache")).resolve()


def prepared_dir(profile: str) -> Path:
    """What the prepare step makes for a profile: base model, token shards, benchmark items."""
    return cache_dir() / "prepared" / profile


def run_dir(profile: str, experiment: str, seed: int) -> Path:
    """The directory that one run owns."""
    return results_dir() / profile / experiment / f"seed{seed}"


def report_dir(profile: str) -> Path:
    """Figures, tables and the HTML page of a profile's report."""
    return results_dir() / profile / "report"
