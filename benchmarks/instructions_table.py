"""Counted instructions as instructions.csv and instructions.md, and which kernels have become costlier.

What is compared with the committed table is instructions per element: vectors have 256 bits on every machine.
The bound is 1.5, as compilers differ: beside g++ 12's counts for the format, g++ 11's were 0.79 to 1.00 times
as many, and clang 19's 0.52 to 1.14. With any of the three, the format computed twice over, which has its
loads and stores once, counts 1.69 to 2.00 times g++ 12's format. Ratios to the copy are in the table but not
compared: they hang on whether a compiler takes 5 instructions (both g++) or 8 (clang) to copy a vector.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COPY, FORMAT, TWICE = "copy", "format", "format twice over"
LIMIT = 1.5  # times the committed count; a kernel above it has become costlier
COLUMNS = ["kernel", "dtype", "instructions_per_element", "ratio_to_copy"]


@dataclass(frozen=True)
class Count:
    """A line of the table: instructions per element, and those over the copy's of the same type."""

    kernel: str
    dtype: str
    instructions: float
    ratio: float


def counts(found: Mapping[tuple[str, str], float]) -> list[Count]:
    """Instructions per element by kernel and type, beside the copy of the same type."""
    return [Count(*key, value, value / found[COPY, key[1]]) for key, value in found.items()]


def costlier(found: Sequence[Count], committed: Sequence[Count], limit: float = LIMIT) -> list[str]:
    """A line for each kernel, but the copy, that executes over `limit` times as many instructions as the
    committed one; KeyError where none is committed."""
    before = {(c.kernel, c.dtype): c.instructions for c in committed}
    pairs = [(c, before[c.kernel, c.dtype]) for c in found if c.kernel != COPY]
    return [
        f"{now.kernel}, {now.dtype}: {now.instructions:.2f} instructions per element, {then:.2f} before"
        for now, then in pairs
        if now.instructions > limit * then
    ]


def as_csv(found: Sequence[Count]) -> str:
    """One line a kernel and type."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([c.kernel, c.dtype, f"{c.instructions:.4f}", f"{c.ratio:.4f}"] for c in found)
    return sink.getvalue()


def read_csv(text: str) -> list[Count]:
    """The table again."""
    kernel, dtype, instructions, ratio = COLUMNS
    rows = csv.DictReader(io.StringIO(text))
    return [Count(row[kernel], row[dtype], float(row[instructions]), float(row[ratio])) for row in rows]


def as_markdown(table: str, head: Sequence[str]) -> str:
    """The text of the CSV, below `head`."""
    lines = ["# Instructions of the compiled kernels", "", *head, ""]
    lines += ["| kernel | type | instructions per element | times the copy's |", "|---" * 4 + "|"]
    for c in read_csv(table):
        lines.append(f"| {c.kernel} | {c.dtype} | {c.instructions:.2f} | {c.ratio:.2f} |")
    return "\n".join(lines) + "\n"
