"""Killed, damaged, made twice at once, on a full disk: the shards are those of an undisturbed run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_builds import (
    TRAIN,
    build,
    contents,
    num_files,
)

from pangu_hif8 import shard_writer
from pangu_hif8.corpus import TokenShards
from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT
from pangu_hif8.text_source import ParquetFolder
from pangu_hif8.token_stream import Tally


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


@pytest.mark.parametrize("survived", range(10))
def test_resumed_after_any_file(
    shard_inputs: Path, finished_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """Stopped in the middle of each of the ten files in turn: the same bytes, the manifest's too."""
    write, calls = shard_writer.write_shard, []

    def write_then_die(stream: Any, plan: Any, directory: Path, progress: Any) -> Any:
        if len(calls) == survived:
            (directory / f".{plan.tokens_name}.left.tmp").write_bytes(b"half")
            next(stream.take(5, Tally()))
            raise Killed
        calls.append(plan)
        return write(stream, plan, directory, progress)

    monkeypatch.setattr(shard_writer, "write_shard", write_then_die)
    with pytest.raises(Killed):
        build(shard_inputs, tmp_path / "shards")
    if survived:
        with pytest.raises(UserError, match="not finished; run the prepare step again"):
            TokenShards.open(tmp_path / "shards")
    monkeypatch.undo()
    build(shard_inputs, tmp_path / "shards")
    assert contents(tmp_path / "shards") == contents(finished_shards)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path

if __name__ == "__main__":
    from shard_builds import build

    inputs, target, num_train = sys.argv[2:]
    build(Path(inputs), Path(target), workers=1, num_train_sequences=int(num_train), sequences_per_file=2)
"""


def start(shard_inputs: Path, target: Path, script: Path, num_train: int) -> subprocess.Popen[str]:
    """A preparation in a process of its own."""
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        str(script),
        str(ROOT / "tests"),
        str(shard_inputs),
        str(target),
        str(num_train),
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def descendants(pid: int) -> list[int]:
    """Children of a process, from /proc."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds child processes by /proc")
def test_kill_9_leaves_no_trace(shard_inputs: Path, tmp_path: Path) -> None:
    """Killed twice in a run with a worker; the worker ends too; the bytes are the uninterrupted run's."""
    num_train = 260
    for survived in (3, 40):
        process = start(shard_inputs, tmp_path / "shards", tmp_path / "make.py", num_train)
        while num_files(tmp_path / "shards") < survived and process.poll() is None:
            time.sleep(0.005)
        children = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()  # not for the end of its output, which a worker that lives on would keep open
        assert num_files(tmp_path / "shards") < num_train // 2, "it was over before it was killed"
        assert children
        wait_for_end(children)
    build(shard_inputs, tmp_path / "shards", num_train_sequences=num_train, sequences_per_file=2)
    build(shard_inputs, tmp_path / "whole", num_train_sequences=num_train, sequences_per_file=2)
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")


def wait_for_end(pids: list[int], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_two_at_once_make_it_once(shard_inputs: Path, tmp_path: Path) -> None:
    both = [start(shard_inputs, tmp_path / "shards", tmp_path / f"make{n}.py", TRAIN) for n in range(2)]
    said = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("billion tokens need" in out for out, _ in said) == 1
    build(shard_inputs, tmp_path / "whole", sequences_per_file=2)
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    "file", ["train-00003.tokens.bin", "train-00000.starts.bin", "heldout-00001.tokens.bin"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_only_a_damaged_file_is_made_again(
    shard_inputs: Path, finished_shards: Path, shards_copy: Path, file: str, damage: str
) -> None:
    path, before = shards_copy / file, {p.name: p.stat().st_mtime_ns for p in shards_copy.glob("*.bin")}
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    {
        "flip": lambda: path.write_bytes(content),
        "truncate": lambda: path.write_bytes(content[:-2]),
        "remove": path.unlink,
    }[damage]()
    with pytest.raises(UserError, match=file):
        TokenShards.open(shards_copy)
    build(shard_inputs, shards_copy)
    assert contents(shards_copy) == contents(finished_shards)
    made_again = {p.name for p in shards_copy.glob("*.bin") if p.stat().st_mtime_ns != before[p.name]}
    stem = file.split(".")[0]
    assert made_again == {f"{stem}.tokens.bin", f"{stem}.starts.bin"}


def test_sizes_are_checked_without_hashing(shards_copy: Path) -> None:
    path = shards_copy / "train-00002.tokens.bin"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(UserError, match=r"train-00002\.tokens\.bin is truncated"):
        TokenShards.open(shards_copy, verify=False)


@pytest.mark.parametrize("num_train", [8, 20, 49, 51, 77])
def test_more_or_fewer_sequences(
    shard_inputs: Path, shards_copy: Path, tmp_path: Path, num_train: int
) -> None:
    """The files that fit stay; the bytes are those of a preparation that asked for the number at once."""
    kept = {path.name: path.stat().st_mtime_ns for path in shards_copy.glob("train-*.bin")}
    build(shard_inputs, shards_copy, num_train_sequences=num_train)
    build(shard_inputs, tmp_path / "fresh", num_train_sequences=num_train)
    assert contents(shards_copy) == contents(tmp_path / "fresh")
    whole = [f"train-{n:05d}.tokens.bin" for n in range(min(num_train, TRAIN) // 8)]
    assert all((shards_copy / name).stat().st_mtime_ns == kept[name] for name in whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 80 kB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=80k", "none", str(mount)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_disk_that_fills_up(
    shard_inputs: Path, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something else takes the space meanwhile. What was finished stays, and is gone on with."""
    with monkeypatch.context() as patch:
        patch.setattr(shard_writer.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 10**12))
        with pytest.raises(UserError, match=r"cannot write .*No space left on device"):
            build(shard_inputs, small_disk / "shards", num_train_sequences=260, sequences_per_file=4)
    survived = num_files(small_disk / "shards")
    assert survived > 0
    shutil.copytree(small_disk / "shards", tmp_path / "shards")
    build(shard_inputs, tmp_path / "shards", num_train_sequences=260, sequences_per_file=4)
    build(shard_inputs, tmp_path / "whole", num_train_sequences=260, sequences_per_file=4)
    assert contents(tmp_path / "shards") == contents(tmp_path / "whole")


def test_a_dead_worker_is_a_clear_error(shard_inputs: Path, tmp_path: Path) -> None:
    """As the kernel ends one when memory runs out."""
    import multiprocessing

    class Deadly(ParquetFolder):
        def batches(self, *rest: Any) -> Iterator[Any]:
            yield from super().batches(*rest)
            for child in multiprocessing.active_children():
                os.kill(child.pid or 0, signal.SIGKILL)
                child.join()
            yield from super().batches(*rest)

    with pytest.raises(UserError, match=r"ended unexpectedly .* fewer workers"):
        build(
            shard_inputs,
            tmp_path / "shards",
            source=Deadly(shard_inputs / "fineweb"),
            num_train_sequences=900,
            workers=1,
        )
    build(shard_inputs, tmp_path / "shards", num_train_sequences=100)
    assert len(TokenShards.open(tmp_path / "shards").train) == 100
