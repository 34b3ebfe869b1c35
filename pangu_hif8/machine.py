"""What a run was made on: library versions, processor, memory."""

from __future__ import annotations

import platform
import resource
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("torch", "transformers", "accelerate", "numpy", "safetensors")


def library_versions() -> dict[str, str]:
    """Versions that a run's numbers can depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def cpu_name() -> str:
    """The processor's name where Linux tells it, else what Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB (Linux reports KiB, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if platform.system() == "Darwin" else 1e3), 1)
