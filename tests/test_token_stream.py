"""Cuts of a token stream, against a list of tokens that knows where each came from."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pytest

from pangu_hif8.text_source import Position
from pangu_hif8.token_stream import Tally, TokenStream
from pangu_hif8.tokenize_pool import EncodedBatch


@dataclass(frozen=True)
class Row:
    """A document by hand."""

    file: int
    row: int
    tokens: list[int]
    flags: tuple[bool, bool, bool]  # empty, invalid, excluded


def make_rows(random: np.random.Generator) -> list[Row]:
    """Three files of twelve rows of zero to five tokens, many of them odd."""
    rows = []
    for file in range(3):
        for row in range(12):
            count = int(random.integers(0, 6))
            tokens = [10_000 * file + 100 * row + n for n in range(count)]
            excluded = count == 0 and random.random() < 0.5
            rows.append(
                Row(file, row, tokens, (count == 0 and not excluded, random.random() < 0.4, excluded))
            )
    return rows


def encoded(rows: list[Row], start: Position, random: np.random.Generator) -> list[EncodedBatch]:
    """The rows from `start` on, in batches of one to four that stay within a file."""
    todo = [row for row in rows if (row.file, row.row) >= (start.file, start.row)]
    batches = []
    while todo:
        size = int(random.integers(1, 5))
        part = [row for row in todo[:size] if row.file == todo[0].file]
        todo = todo[len(part) :]
        flags = np.array([row.flags for row in part], np.bool_)
        batches.append(
            EncodedBatch(
                part[0].file,
                part[0].row,
                np.array([token for row in part for token in row.tokens], np.uint16),
                np.cumsum([len(row.tokens) for row in part], dtype=np.int64),
                flags[:, 0],
                flags[:, 1],
                flags[:, 2],
                [f"{row.file}/{row.row}" for row in part],
            )
        )
    return batches


def by_hand(rows: list[Row], begin: int, end: int) -> tuple[Any, ...]:
    """Tokens, starts, digests, end position and tally of the cut [begin, end) of all tokens."""
    flat = [(row, n) for row in rows for n in range(len(row.tokens))]
    cut = flat[begin:end]
    last, used = cut[-1]
    done = used + 1 == len(last.tokens)
    position = Position(last.file, last.row + 1, 0) if done else Position(last.file, last.row, used + 1)
    first = flat[begin - 1] if begin else None
    # rows that ended in this cut: behind those that had ended with the cut before, up to the last whole one
    before = -1 if first is None else rows.index(first[0]) - (first[1] + 1 < len(first[0].tokens))
    ended = rows[before + 1 : rows.index(last) + done]
    return (
        [row.tokens[n] for row, n in cut],
        [index for index, (_, n) in enumerate(cut) if n == 0],
        [f"{row.file}/{row.row}" for row, n in cut if n == 0],
        position,
        tuple(sum(row.flags[kind] for row in ended) for kind in range(3)),
    )


def taken(stream: TokenStream, num_tokens: int) -> tuple[Any, ...]:
    """The same of a stream."""
    tally, tokens, starts, digests = Tally(), [], [], []
    for piece in stream.take(num_tokens, tally):
        starts += [len(tokens) + int(start) for start in piece.starts]
        tokens += piece.tokens.tolist()
        digests += piece.digests
    return tokens, starts, digests, stream.position, astuple(tally)


@pytest.mark.parametrize("seed", range(40))
def test_cuts_do_not_depend_on_batches_or_restarts(seed: int) -> None:
    random = np.random.default_rng(seed)
    rows = make_rows(random)
    total = sum(len(row.tokens) for row in rows)
    stream = TokenStream(iter(encoded(rows, Position(), random)), Position())
    begin = 0
    while begin < total:
        end = min(total, begin + int(random.integers(1, 9)))
        if random.random() < 0.5:
            stream = TokenStream(iter(encoded(rows, stream.position, random)), stream.position)
        assert taken(stream, end - begin) == by_hand(rows, begin, end)
        begin = end
    assert taken(stream, 1)[0] == []
