"""A disk that takes no more, made by the system itself: past a file's size limit a write fails half done."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_larger_than(num_bytes: int) -> Iterator[None]:
    """Python ignores the signal, so the write ends as it does on a full disk: short, then an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
