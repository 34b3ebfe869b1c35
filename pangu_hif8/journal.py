"""A run's append-only record: one JSON object a line, one line an optimizer step, from step 1 on.

What grows with the steps stands here and not in the checkpoints, which therefore keep their size. A resumed
run cuts the journal back to its checkpoint's step and writes the same lines again, so its files equal those
of a run that never stopped.

Values come back exactly: a finite float is written as Python's shortest repr, which reads back to the same
bits; JSON has no NaN and no infinity, so these are written as {"$float": "nan"}, "inf" or "-inf", a tag that
no entry may use for itself. Keys are strings; a tuple comes back as a list.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from pangu_hif8.durable import sync_directory
from pangu_hif8.errors import UserError
from pangu_hif8.files import atomic_path

_TAG = "$float"
_REMEDY = "resume from an earlier checkpoint, or start the run anew"


class Journal:
    """The journal being written. Every line goes to the system at once: a killed process loses none."""

    def __init__(self, path: Path) -> None:
        """Start a new journal. Raises UserError when `path` holds one already: that is `resume`'s."""
        if path.exists() and path.stat().st_size:
            raise UserError(f"{path} holds a run's journal already; resume that run, or remove the file")
        self._open(path, 0)

    @classmethod
    def resume(cls, path: Path, step: int) -> Journal:
        """Go on after `step`: steps 1 to `step` stay byte for byte, all later lines and a torn one go.

        With step 0 it starts anew. Raises UserError, and changes nothing, when one of these steps is
        missing, twice or damaged.
        """
        if step and not path.is_file():
            raise UserError(f"{path} is missing, so steps 1 to {step} can't be resumed; {_REMEDY}")
        if path.is_file():
            with atomic_path(path) as temporary, temporary.open("wb") as kept:
                kept.writelines(_lines_up_to(path, step))
        journal = cls.__new__(cls)
        journal._open(path, step)
        return journal

    def _open(self, path: Path, last_step: int) -> None:
        self.path, self._last_step = path, last_step
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            sync_directory(path.parent)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}. Check permissions.") from error

    def append(self, entry: dict[str, Any]) -> None:
        """Write the next step's entry. Raises UserError when the disk is full; earlier lines stay whole."""
        if type(entry.get("step")) is not int or entry["step"] != self._last_step + 1:
            raise ValueError(f"step {entry.get('step')!r} can't follow step {self._last_step} in {self.path}")
        line = json.dumps(_tagged(entry), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        before = os.fstat(self._file.fileno()).st_size
        try:
            self._write(line)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), before)  # the half line that went in
            raise UserError(f"cannot write {self.path}: {error.strerror}. Check free space.") from error
        self._last_step += 1

    def _write(self, line: bytes) -> None:
        while line:  # a system may take less than it was given
            line = line[os.write(self._file.fileno(), line) :]

    def sync(self) -> None:
        """Wait until all lines are on disk. Call it before a checkpoint that counts on them."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}. Check free space.") from error

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Every complete entry in order; a torn last line is left out. Raises UserError: missing or damaged."""
    try:
        with path.open("rb") as lines:
            return [_entry(path, n, line) for n, line in enumerate(lines, start=1) if line.endswith(b"\n")]
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}; name a run's journal") from error


def _lines_up_to(path: Path, step: int) -> Iterator[bytes]:
    number = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if number <= step:
                _entry(path, number, line)
                yield line
            elif (_decoded(line) or {"step": number})["step"] <= step:  # later lines need not be whole
                raise UserError(f"{path}: line {number} repeats a step up to {step}; {_REMEDY}")
    if number < step:
        raise UserError(f"{path} ends at step {number}, before step {step}; {_REMEDY}")


def _entry(path: Path, number: int, line: bytes) -> dict[str, Any]:
    entry = _decoded(line)
    if entry is None:
        raise UserError(f"{path}: line {number} is damaged or cut short; {_REMEDY}")
    if entry["step"] != number:
        raise UserError(
            f"{path}: line {number} has step {entry['step']}, so one is missing or there twice; {_REMEDY}"
        )
    return entry


def _decoded(line: bytes) -> dict[str, Any] | None:
    """None for what `append` can't have written."""
    try:
        entry = json.loads(line, object_hook=_untagged, parse_constant=_refuse_constant)
    except (ValueError, TypeError, RecursionError):
        return None
    whole = line.endswith(b"\n") and isinstance(entry, dict) and type(entry.get("step")) is int
    return entry if whole else None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _tagged(value: Any) -> Any:
    """The value with what JSON lacks tagged. Raises ValueError for what would not come back as it went in."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: str(float(value))}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or key == _TAG:
                raise ValueError(f"{key!r} can't be a key of a journal's entry")
        return {key: _tagged(inner) for key, inner in value.items()}
    return [_tagged(inner) for inner in value] if isinstance(value, list | tuple) else value


def _untagged(value: dict[str, Any]) -> Any:
    return float(value[_TAG]) if value.keys() == {_TAG} else value
