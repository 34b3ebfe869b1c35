"""What a person sees while a notebook runs: the kernel's prints and progress bars, with the run's name.

A bar redraws itself with carriage returns. On a terminal of its own it stays one line that moves. In a log,
or when make runs several notebooks at once, it becomes a new line every ten seconds. Long lines of libraries
are passed on as they are: nothing that a run says is dropped, except the redrawings of a bar.
"""

from __future__ import annotations

import io
import shutil
import sys
import time
from typing import TextIO

from pangu_hif8.siblings import has_siblings

SECONDS_BETWEEN_LINES = 10.0  # a log of an hour then has at most 360 lines of progress


def is_live(stream: TextIO) -> bool:
    """Whether a line may be redrawn: a terminal, and no sibling of a parallel make writing to it."""
    return stream.isatty() and not has_siblings()


class Forwarder(io.TextIOBase):
    """A writable stream for papermill that shows a kernel's output under a prefix."""

    def __init__(self, prefix: str, stream: TextIO | None = None, live: bool | None = None) -> None:
        self.prefix = prefix
        self.stream = sys.stderr if stream is None else stream
        self.live = is_live(self.stream) if live is None else live
        self._buffer = ""  # the line being written, after its last carriage return
        self._drawn = False  # whether an unfinished bar stands on the terminal's last line
        self._last_line = -SECONDS_BETWEEN_LINES

    def writable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """Whether lines may be redrawn."""
        return self.live

    def write(self, text: str) -> int:
        """Take a piece of output, which may end anywhere in a line."""
        *lines, rest = (self._buffer + text.replace("\r\n", "\n")).split("\n")
        for line in lines:
            self._line(_last_drawing(line))
        self._buffer = _last_drawing(rest) if "\r" in rest else rest
        if "\r" in rest:
            self._bar(self._buffer)
        return len(text)

    def flush(self) -> None:
        """Pass on what stands so far."""
        self.stream.flush()

    def close(self) -> None:
        """End the last line, if it has not ended. The stream behind stays open."""
        if not self.closed:
            self._line(self._buffer)
            self._buffer = ""
            self.flush()
        super().close()

    def _line(self, text: str) -> None:
        if text.strip():
            self._write(f"{self._erase()}{self.prefix}{text.rstrip()}\n")
        elif self._drawn:
            self._write("\n")
        self._drawn = False

    def _bar(self, text: str) -> None:
        if not text.strip():
            return
        now = time.monotonic()
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self._write(self._erase() + f"{self.prefix}{text}"[:width])
            self._drawn = True
        elif now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._write(f"{self.prefix}{text.strip()}\n")
            self._last_line = now

    def _erase(self) -> str:
        return "\r\x1b[K" if self._drawn else ""

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _last_drawing(line: str) -> str:
    """What a terminal shows of a line with carriage returns (a bar's trailing \\r shows the bar)."""
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def use_text_bars() -> None:
    """Make `tqdm.auto` draw text in a kernel, where it would draw widgets that no terminal shows.

    Runs when a kernel of the driver starts, before any library imports tqdm's class by name.
    """
    import tqdm.auto
    import tqdm.std

    tqdm.auto.tqdm, tqdm.auto.trange = tqdm.std.tqdm, tqdm.std.trange
