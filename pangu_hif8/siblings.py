"""Whether a parallel make runs this process beside others, and how its threads wait then."""

from __future__ import annotations

import os

# Turns that GNU OpenMP's threads spin at a barrier before they sleep. By default there are so many that a
# second program on the same cores slows a step eightfold. With 10,000 a run alone is as fast; beside a run
# that wants the same cores none at all is better still (benchmarks/README.md has the measurement).
SPINS_ALONE, SPINS_BESIDE = 10_000, 0
ENOUGH_CORES = 4  # for two runs of two threads, each with cores of its own


def has_siblings() -> bool:
    """Whether a parallel make (`-j2`, `-j`) started this process, maybe beside others."""
    options = os.environ.get("MAKEFLAGS", "").split(" -- ")[0].split()
    return any(option == "-j" or "jobserver" in option for option in options)


def spin_count() -> str:
    """What GOMP_SPINCOUNT is to be, unless the user has set it; read when torch is loaded."""
    short = has_siblings() and num_cores() < ENOUGH_CORES
    return os.environ.get("GOMP_SPINCOUNT", str(SPINS_BESIDE if short else SPINS_ALONE))


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
