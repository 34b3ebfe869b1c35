"""A run's checkpoints: written whole or not at all, the last few and the best kept, damaged ones passed over.

    <root>/step-00000020/       a checkpoint (stored_checkpoint.py says what is in it)
    <root>/step-00000020.old/   the one that is being replaced: it counts while step-00000020 is not there
    <root>/.step-*.tmp/         being written or removed; the next save clears what a killed writer left

At every moment at least one complete checkpoint stands under a name that is read, whenever the writer is
killed. One process writes: the caller gathers over ranks, and rank 0 saves.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from pangu_hif8.durable import sync_directory
from pangu_hif8.errors import UserError
from pangu_hif8.files import digest
from pangu_hif8.new_directory import new_directory
from pangu_hif8.stored_checkpoint import (
    CHECKPOINT_VERSION,
    FACTS_FILE,
    Checkpoint,
    DamagedCheckpoint,
    read_checkpoint,
    refuse_other,
    write_checkpoint,
)

__all__ = [
    "CHECKPOINT_VERSION",
    "Checkpoint",
    "DamagedCheckpoint",
    "checkpoints",
    "latest",
    "open_checkpoint",
    "refuse_other",
    "save_checkpoint",
]
_NAME = re.compile(r"step-([0-9]{8,})(\.old)?")
_TEMPORARY = re.compile(r"\.step-.*\.tmp")
_SPARE = 1.05  # of the tensors' bytes: headers, checkpoint.json, the file system's own


def save_checkpoint(
    root: Path,
    step: int,
    parts: dict[str, dict[str, Tensor]],
    facts: dict[str, Any],
    *,
    keep_last: int = 2,
    score: float | None = None,
) -> Path:
    """Write a checkpoint, replacing that step's if there is one; then prune. Returns its directory.

    Of the steps up to this one the newest `keep_last` stay, and the one with the lowest `score` (of equal
    ones the newest); a score that is not finite counts as none. Later steps, which an earlier attempt left,
    are not touched. Raises UserError when the disk won't take it: all other checkpoints then stand as before.
    """
    _check_arguments(step, keep_last, parts)
    digest(facts)  # what JSON can't hold is refused before anything is written
    final = root / f"step-{step:08d}"
    score = score if score is not None and math.isfinite(score) else None
    try:
        root.mkdir(parents=True, exist_ok=True)
        _tidy(root)
        _require_space(root, parts)
        with _set_aside(final), new_directory(final) as temporary:
            write_checkpoint(temporary, step, parts, facts, score)
            sync_directory(temporary)
        sync_directory(root)
        _tidy(root)
        _prune(root, step, keep_last)
    except OSError as error:
        raise UserError(
            f"cannot write {final}: {error.strerror or error}. Check permissions and free space."
        ) from error
    return final


def _check_arguments(step: int, keep_last: int, parts: dict[str, dict[str, Tensor]]) -> None:
    if step < 0 or keep_last < 1:
        raise UserError(f"a checkpoint needs step >= 0 and keep_last >= 1, not {step} and {keep_last}")
    for part in parts:
        assert re.fullmatch(r"\w+", part), f"{part!r} is no name for a file"


def _tidy(root: Path) -> None:
    """Undo what a killed writer left half done, and finish what only has to be removed."""
    for path in sorted(root.iterdir()):
        final = path.with_name(path.name.removesuffix(".old"))
        if _TEMPORARY.fullmatch(path.name):
            shutil.rmtree(path)
        elif _NAME.fullmatch(path.name) and final != path:
            if final.exists():
                _remove(path)
            else:
                path.rename(final)


def _require_space(root: Path, parts: dict[str, dict[str, Tensor]]) -> None:
    needed = _SPARE * sum(tensor.nbytes for tensors in parts.values() for tensor in tensors.values())
    free = shutil.disk_usage(root).free
    if free < needed:
        raise UserError(
            f"a checkpoint in {root} needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free; "
            "free some space, then resume the run"
        )


@contextmanager
def _set_aside(final: Path) -> Iterator[None]:
    """While a checkpoint is replaced, the one that stood there counts under its .old name."""
    old = final.with_name(f"{final.name}.old")
    if final.exists():
        final.rename(old)
    try:
        yield
    except BaseException:
        if old.exists() and not final.exists():
            old.rename(final)
        raise


def _prune(root: Path, step: int, keep_last: int) -> None:
    past = [checkpoint for checkpoint in checkpoints(root) if checkpoint.step <= step]
    scored = [(c.score, -c.step) for c in past if c.score is not None]
    best = {-min(scored)[1]} if scored else set()
    for checkpoint in past[keep_last:]:
        if checkpoint.step not in best:
            _remove(checkpoint.path)


def _remove(directory: Path) -> None:
    """Under a temporary name first: a checkpoint that is half gone is never seen."""
    temporary = tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}.", suffix=".tmp")
    os.replace(directory, temporary)
    shutil.rmtree(temporary)


def _candidates(root: Path) -> list[tuple[int, Path]]:
    """Step and directory of whatever bears a checkpoint's name, newest first."""
    found: dict[int, Path] = {}
    for path in sorted(root.iterdir()) if root.is_dir() else []:  # "step-1.old" comes after "step-1"
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            found.setdefault(int(match[1]), path)
    return sorted(found.items(), reverse=True)


def _read(step: int, path: Path) -> Checkpoint:
    checkpoint = read_checkpoint(path)
    if checkpoint.step != step:
        raise DamagedCheckpoint(f"{path} holds step {checkpoint.step}, not what its name says; rename it")
    return checkpoint


def checkpoints(root: Path) -> list[Checkpoint]:
    """The complete checkpoints, newest first. Their files' sizes were looked at, not yet their contents."""
    complete = []
    for step, path in _candidates(root):
        try:
            complete.append(_read(step, path))
        except DamagedCheckpoint:
            continue  # `latest` is the one that tells
    return complete


def latest(root: Path) -> Checkpoint | None:
    """The newest checkpoint that is sound in every byte; None where there is none at all.

    Prints a line for every damaged one that it passes over. Raises UserError when all are damaged, or when
    one is of a newer version of this program.
    """
    faults = []
    for step, path in _candidates(root):
        try:
            checkpoint = _read(step, path)
            checkpoint.verify()
            return checkpoint
        except DamagedCheckpoint as error:
            faults.append(str(error))
            print(f"passed over the checkpoint of step {step}: {error}", flush=True)
    if faults:
        raise UserError(f"no checkpoint in {root} is sound ({faults[0]}). Remove {root} to start anew")
    return None


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at a path that a user named, sound in every byte. Raises UserError otherwise."""
    if not path.is_dir():
        fault = "is a file" if path.exists() else "does not exist"
        raise UserError(f"{path} {fault}; name a checkpoint's directory, such as step-00000020")
    if not (path / FACTS_FILE).is_file():
        inner = _candidates(path)
        hint = f"name one of those inside, such as {inner[0][1].name}" if inner else f"it has no {FACTS_FILE}"
        raise UserError(f"{path} is no checkpoint; {hint}")
    checkpoint = read_checkpoint(path)
    checkpoint.verify()
    return checkpoint
