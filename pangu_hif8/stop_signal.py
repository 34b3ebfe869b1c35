"""SIGTERM, a cluster's notice that the job is about to end: training finishes its step and saves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """Set by SIGTERM, a cluster's notice that the job is about to end."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self) -> bool:
        return self.seen

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        # Not print: the signal may have come in the middle of one, which must not be entered twice.
        os.write(1, b"SIGTERM: finishing this step, then writing a checkpoint\n")


@contextmanager
def stop_signal() -> Iterator[StopSignal]:
    """Catch SIGTERM while training runs (in the main thread, the only one that Python lets do so)."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, stop._handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
