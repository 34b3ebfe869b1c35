"""What the doctor is told (the needs), what it asks (probes of the machine) and what it says (findings)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

GIB = 1 << 30


@dataclass(frozen=True)
class Finding:
    """One line of the report. `remedy` is empty when nothing is to be done."""

    status: Literal["ok", "warning", "missing"]
    topic: str
    text: str
    remedy: str = ""

    def line(self) -> str:
        """As printed."""
        what = f"{self.status:<9}{self.topic + ':':<11}{self.text}"
        return what + (f"; {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class Source:
    """A model or data set: by hub name, or a local file or folder that stands for it."""

    name: str
    repo_type: Literal["model", "dataset"]
    local: Path | None = None


@dataclass(frozen=True)
class Needs:
    """What a profile asks of a machine. Bytes; zero where it asks for nothing."""

    cache_dir: Path
    results_dir: Path
    cache_bytes: int = 0
    results_bytes: int = 0
    memory_bytes: int = 0
    num_gpus: int = 0
    gpu_memory_bytes: int = 0
    sources: tuple[Source, ...] = ()
    wheels: tuple[str, ...] = ()  # names in wheels.yaml
    wheel_sets: tuple[str, ...] = ()  # the model and data sets in them, as `licences` names them
    faults: tuple[str, ...] = ()  # of the profile's benchmarks: what can't be scored here, and why
    notes: tuple[str, ...] = ()  # what could not be worked out
    whole_model_bytes: int = 0  # of a GPU that holds the float32 model before FSDP shards it


@dataclass(frozen=True)
class Gpu:
    """One accelerator."""

    name: str
    memory_bytes: int
    has_bfloat16: bool


class Probes(Protocol):
    """Questions about the machine. `doctor_probes.Machine` asks this one; tests answer what they like."""

    def python(self) -> tuple[int, int]: ...

    def pins(self) -> dict[str, str]:
        """Pinned version by package, from requirements.lock; empty when there is no such file."""

    def direct(self) -> frozenset[str]:
        """The packages that the project itself imports; without them nothing runs."""

    def installed(self, package: str) -> str | None: ...

    def gpus(self) -> list[Gpu]: ...

    def memory_bytes(self) -> int: ...

    def filesystem(self, path: Path) -> tuple[int, int]:
        """Identity of the file system that `path` is or would be on, and its free bytes."""

    def write_fault(self, path: Path) -> str | None:
        """Why `path` can't be written, or None."""

    def compiler(self) -> str | None: ...

    def cached(self, source: Source) -> bool:
        """Whether the hub's cache has a copy."""

    def has_wheel(self, name: str) -> bool:
        """Whether the cache holds the pinned wheel, with the right sha256."""

    def index_fault(self, name: str) -> str | None:
        """Why pip's index does not offer the pinned wheel, or None. Takes seconds."""

    def hub_fault(self, source: Source) -> str | None:
        """Why the hub does not give `source`, or None. Takes seconds at most."""
