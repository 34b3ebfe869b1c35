"""Seconds for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """ "8 s", "3 min 12 s", "1 h 4 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )
