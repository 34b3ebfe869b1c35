"""What reaches the terminal of a kernel's output."""

from __future__ import annotations

import io

import pytest

from pangu_hif8 import terminal
from pangu_hif8.terminal import Forwarder, is_live


def forwarded(pieces: list[str], live: bool) -> str:
    stream = io.StringIO()
    forwarder = Forwarder("E5 | ", stream, live=live)
    for piece in pieces:
        forwarder.write(piece)
    forwarder.close()
    return stream.getvalue()


@pytest.mark.parametrize("live", [True, False])
def test_lines_are_passed_on_whole_however_they_arrive(live: bool) -> None:
    assert forwarded(["conv", "erted 3/4\nne", "xt\n", "\n", "last"], live) == (
        "E5 | converted 3/4\nE5 | next\nE5 | last\n"
    )


def test_a_bar_stays_one_line_on_a_terminal() -> None:
    text = forwarded(["\r 0%", "\r50% 00:05 left", "\r100%\n", "done\n"], live=True)
    assert text.count("\n") == 2
    assert text.endswith("\r\x1b[KE5 | 100%\nE5 | done\n")
    assert "E5 | 50% 00:05 left" in text


def test_a_bar_in_a_log_is_a_line_every_ten_seconds_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 105.0, 111.0, 112.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    text = forwarded(["\r 0%", "\r 1%", "\r 5%", "\r11%", "\r12%", "\r100%\n"], live=False)
    assert text == "E5 | 0%\nE5 | 11%\nE5 | 100%\n"


def test_a_terminal_shared_by_a_parallel_make_is_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("MAKEFLAGS", raising=False)
    assert is_live(Terminal())
    assert not is_live(io.StringIO())
    monkeypatch.setenv("MAKEFLAGS", " -j2 --jobserver-auth=3,4")
    assert not is_live(Terminal())
