"""The doctor's questions, put to this machine. None needs the network to answer; torch may be absent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pangu_hif8.checkpoint_files import hub_refusal
from pangu_hif8.doctor_facts import Gpu, Source
from pangu_hif8.fetch import get_wheel, wheels_dir
from pangu_hif8.files import sha256_file
from pangu_hif8.paths import ROOT

HUB_TIMEOUT_S = 5.0
INDEX_TIMEOUT_S = 10
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_PIN = re.compile(r"([\w.\-]+)==([^\s;#]+)")


class Machine:
    """Answers `doctor.Probes` for the interpreter and machine that run this."""

    def __init__(self, root: Path = ROOT, cgroup_limit: Path = CGROUP_LIMIT) -> None:
        self.root, self.cgroup_limit = root, cgroup_limit

    def python(self) -> tuple[int, int]:
        return sys.version_info[:2]

    def pins(self) -> dict[str, str]:
        lock = self.root / "requirements.lock"
        lines = lock.read_text(encoding="utf-8").splitlines() if lock.is_file() else []
        return {found[1]: found[2] for line in lines if (found := _PIN.match(line))}

    def direct(self) -> frozenset[str]:
        """From pyproject.toml's dependencies."""
        path = self.root / "pyproject.toml"
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"] if path.is_file() else {}
        return frozenset(found[1] for line in project.get("dependencies", ()) if (found := _PIN.match(line)))

    def installed(self, package: str) -> str | None:
        """Without a local part: torch 2.13.0+cpu is 2.13.0."""
        try:
            return version(package).split("+")[0]
        except PackageNotFoundError:
            return None

    def gpus(self) -> list[Gpu]:
        try:
            import torch
        except ModuleNotFoundError:
            return []
        devices = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
        properties = [torch.cuda.get_device_properties(device) for device in devices]
        # bfloat16 in hardware begins with compute capability 8
        return [Gpu(found.name, found.total_memory, found.major >= 8) for found in properties]

    def memory_bytes(self) -> int:
        """Main memory, or what the container may use of it."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limit = self.cgroup_limit.read_text().strip() if self.cgroup_limit.is_file() else ""
        return min(total, int(limit)) if limit.isdigit() else total

    def filesystem(self, path: Path) -> tuple[int, int]:
        there = _existing(path)
        return there.stat().st_dev, shutil.disk_usage(there).free

    def write_fault(self, path: Path) -> str | None:
        """A file is written and removed; a directory that does not exist yet is tried where it would be."""
        try:
            with tempfile.TemporaryFile(dir=_existing(path)):
                return None
        except OSError as error:
            return error.strerror or str(error)

    def compiler(self) -> str | None:
        """The C++ compiler that torch.compile would take, in its order."""
        names = [os.environ.get("CXX", ""), "g++", "clang++", "c++"]
        return next((found for name in names if name and (found := shutil.which(name))), None)

    def cached(self, source: Source) -> bool:
        from huggingface_hub import constants

        folder = f"{source.repo_type}s--{source.name.replace('/', '--')}"
        return any((Path(constants.HF_HUB_CACHE) / folder / "snapshots").glob("*/*"))

    def has_wheel(self, name: str) -> bool:
        wheel = get_wheel(name)
        path = wheels_dir() / wheel.file
        return path.is_file() and sha256_file(path) == wheel.sha256

    def index_fault(self, name: str) -> str | None:
        """Asked through pip, with its own settings of index and proxy. It tells a dead index from one without
        the package in no reliable way."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "0"]
        command = [*pip, "--timeout", str(INDEX_TIMEOUT_S), "index", "versions", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=3 * INDEX_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"pip's index did not answer in {3 * INDEX_TIMEOUT_S} s"
        if done.returncode:
            return "pip finds none on its index, or can't reach it"
        wanted = get_wheel(name).version
        return None if wanted in re.findall(r"[\w.]+", done.stdout) else f"pip's index has no {wanted}"

    def hub_fault(self, source: Source) -> str | None:
        from huggingface_hub import HfApi

        try:
            HfApi().repo_info(source.name, repo_type=source.repo_type, timeout=HUB_TIMEOUT_S)
        except Exception as error:  # HTTP, validation and connection errors without a common parent
            return hub_refusal(error)
        return None


def _existing(path: Path) -> Path:
    """The nearest directory above `path` that exists."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.is_dir())
