"""One stream of tokens out of encoded batches, cut wherever a shard ends.

The stream knows at which row and token it stands, and says so in a form that does not depend on how rows were
batched: a run that was killed and resumed records the same positions as one that was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pangu_hif8.text_source import Position
from pangu_hif8.tokenize_pool import EncodedBatch


@dataclass
class Tally:
    """Rows that ended in a shard and were not plain text."""

    num_empty: int = 0
    num_invalid_utf8: int = 0
    num_same_as_heldout: int = 0


@dataclass(frozen=True)
class Piece:
    """Some tokens; `starts` are the indices in it at which documents begin, `digests` those documents'."""

    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    digests: list[str]


@dataclass
class TokenStream:
    """Tokens from `position` on. `batches` must begin at the position's row."""

    batches: Iterator[EncodedBatch]
    position: Position
    _batch: EncodedBatch | None = field(default=None, init=False)
    _cursor: int = field(default=0, init=False)  # in the batch's tokens
    _row: int = field(default=0, init=False)  # rows of the batch before this one are tallied

    def take(self, num_tokens: int, tally: Tally) -> Iterator[Piece]:
        """Yield pieces of `num_tokens` tokens in all, fewer when the text ends."""
        while num_tokens > 0:
            if self._batch is None or self._cursor == len(self._batch.tokens):
                if not self._next_batch(tally):
                    return
                continue
            piece = self._cut(self._batch, num_tokens, tally)
            num_tokens -= len(piece.tokens)
            yield piece

    def _next_batch(self, tally: Tally) -> bool:
        """The first batch starts inside a document when the position does."""
        if self._batch is not None:
            self._count(self._batch, len(self._batch.ends), tally)
        first, self._batch = self._batch is None, next(self.batches, None)
        self._cursor = self.position.token if first else 0
        self._row = 0
        return self._batch is not None

    def _cut(self, batch: EncodedBatch, num_tokens: int, tally: Tally) -> Piece:
        begin, end = self._cursor, min(self._cursor + num_tokens, len(batch.tokens))
        row_starts = np.concatenate(([0], batch.ends[:-1]))
        is_start = (row_starts >= begin) & (row_starts < end) & (row_starts < batch.ends)
        rows = np.flatnonzero(is_start)
        self._cursor = end
        self._advance(batch, tally)
        return Piece(batch.tokens[begin:end], row_starts[rows] - begin, [batch.digests[row] for row in rows])

    def _advance(self, batch: EncodedBatch, tally: Tally) -> None:
        """The position follows the last token used, so that skipped rows after it belong to the next cut."""
        row = int(np.searchsorted(batch.ends, self._cursor - 1, side="right"))
        row_start = int(batch.ends[row - 1]) if row else 0
        is_done = self._cursor == int(batch.ends[row])
        used = 0 if is_done else self._cursor - row_start
        self._count(batch, row + is_done, tally)
        self.position = Position(batch.file, batch.first_row + row + is_done, used)

    def _count(self, batch: EncodedBatch, row: int, tally: Tally) -> None:
        rows = slice(self._row, row)
        tally.num_empty += int(batch.empty[rows].sum())
        tally.num_invalid_utf8 += int(batch.invalid[rows].sum())
        tally.num_same_as_heldout += int(batch.excluded[rows].sum())
        self._row = row
