"""Whether a parallel make runs this process beside others, and what a process does then."""

from __future__ import annotations

import os

# GNU OpenMP's threads spin at a barrier, for so long by default that a second program on the same cores slows
# a step eightfold. A shorter spin costs nothing on an idle machine; beside a sibling, which has threads of
# its own on the same cores, not to spin at all is faster still (benchmarks/threads.md).
SPINS_ALONE, SPINS_BESIDE = 10_000, 0


def has_siblings() -> bool:
    """Whether `make -j` started this process, maybe beside others."""
    return "jobserver" in os.environ.get("MAKEFLAGS", "")


def spin_count() -> str:
    """What GOMP_SPINCOUNT is to be, unless the user has set it; read when torch is loaded."""
    return os.environ.get("GOMP_SPINCOUNT", str(SPINS_BESIDE if has_siblings() else SPINS_ALONE))
