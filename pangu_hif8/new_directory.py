"""A new directory, made whole or not at all: written under a temporary name beside it, flushed, then renamed.

The counterpart of `files.atomic_path` for several files that mean something only together. What exists is
never overwritten.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pangu_hif8.errors import UserError


def refuse_existing(final: Path) -> None:
    """Raises UserError when something has the name already, be it a link to nowhere."""
    if os.path.lexists(final):
        raise UserError(f"{final} exists already; name another directory, or remove that one")


@contextmanager
def new_directory(final: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `final`; rename it there on success, remove it on failure."""
    refuse_existing(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}.", suffix=".tmp"))
    except OSError as error:
        raise UserError(
            f"cannot write {final}: {error.strerror}. Check permissions and free space."
        ) from error
    try:
        yield temporary
        _settle(temporary)
        refuse_existing(final)
        temporary.rename(final)
    except OSError as error:
        raise UserError(f"cannot write {final}: {error.strerror or error}. Check free space.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _settle(directory: Path) -> None:
    """On disk, and readable as any new file is (temporary ones are private)."""
    for path in sorted(directory.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.is_file():
            with path.open("rb") as handle:
                os.fsync(handle.fileno())
    directory.chmod(0o755)
