"""One file of a many-file token shard set: written in one pass, described by an entry, checked by it.

An entry holds the counts and digests of the token file and of the file of document starts beside it, and the
positions in the source at which it begins and ends: all that is needed to make this file again, and no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pangu_hif8.errors import UserError
from pangu_hif8.files import atomic_path, sha256_file
from pangu_hif8.text_source import Position
from pangu_hif8.token_stream import Tally, TokenStream
from pangu_hif8.tokenize_pool import TokenizerFacts

SCHEMA_VERSION = 2
Entry = dict[str, Any]


@dataclass(frozen=True)
class ShardPlan:
    """What one file shall hold. `expected` are the sha256 of a damaged file that is made again."""

    split: str
    index: int
    first_sequence: int
    num_sequences: int
    sequence_length: int
    dtype: str
    expected: dict[str, str] | None = None

    @property
    def tokens_name(self) -> str:
        """File name of the tokens."""
        return f"{self.split}-{self.index:05d}.tokens.bin"

    @property
    def starts_name(self) -> str:
        """File name of the document starts (int64, flat positions in the split)."""
        return f"{self.split}-{self.index:05d}.starts.bin"


@dataclass(frozen=True)
class Request:
    """What is asked for; but for the numbers of sequences, a change of it changes every file."""

    sequence_length: int
    sequences_per_file: int
    num_sequences: dict[str, int]
    facts: TokenizerFacts

    def identity(self) -> dict[str, Any]:
        """What existing shards must agree with to be kept; training and second domain may grow."""
        return {
            "schema_version": SCHEMA_VERSION,
            "sequence_length": self.sequence_length,
            "sequences_per_file": self.sequences_per_file,
            "num_heldout_sequences": self.num_sequences["heldout"],
            "tokenizers": version("tokenizers"),
            "dtype": self.facts.dtype,
            **asdict(self.facts),
        }

    def plans(self, split: str) -> Iterator[ShardPlan]:
        """The files of a split; the last one may be shorter."""
        total, size = self.num_sequences[split], self.sequences_per_file
        for index, first in enumerate(range(0, total, size)):
            count = min(size, total - first)
            yield ShardPlan(split, index, first, count, self.sequence_length, self.facts.dtype)


@dataclass
class _Written:
    """What has gone into a file so far."""

    sha256: Any
    starts: list[npt.NDArray[np.int64]]
    digests: list[str]
    num_tokens: int = 0


def write_shard(stream: TokenStream, plan: ShardPlan, directory: Path, progress: Any) -> Entry:
    """Write the next tokens of `stream` as `plan` says; returns the entry.

    Raises UserError when the text ends too early, the disk is full, or a file that is made again does not
    come out as it was; then nothing is written.
    """
    begin, tally = stream.position, Tally()
    with atomic_path(directory / plan.tokens_name) as temporary:
        written = _write_tokens(stream, plan, temporary, tally, progress)
        _check_length(plan, written.num_tokens)
        starts = np.concatenate([np.empty(0, np.int64), *written.starts]).astype("<i8")
        sha256 = {
            plan.tokens_name: written.sha256.hexdigest(),
            plan.starts_name: hashlib.sha256(starts.tobytes()).hexdigest(),
        }
        if plan.expected not in (None, sha256):
            raise UserError(
                f"{directory / plan.tokens_name} can't be made again: the source now gives another text. "
                f"Restore the source, or delete {directory} and prepare it anew"
            )
    with atomic_path(directory / plan.starts_name) as temporary:
        temporary.write_bytes(starts.tobytes())
    return {
        "tokens": plan.tokens_name,
        "starts": plan.starts_name,
        "num_sequences": plan.num_sequences,
        "num_documents": len(starts),
        "sha256": sha256,
        "begin": asdict(begin),
        "end": asdict(stream.position),
        **asdict(tally),
    } | ({"documents": written.digests} if plan.split == "heldout" else {})


def _write_tokens(
    stream: TokenStream, plan: ShardPlan, temporary: Path, tally: Tally, progress: Any
) -> _Written:
    written, offset = _Written(hashlib.sha256(), [], []), plan.first_sequence * plan.sequence_length
    little = np.dtype(plan.dtype).newbyteorder("<")
    with temporary.open("wb") as handle:
        for piece in stream.take(plan.num_sequences * plan.sequence_length, tally):
            content = piece.tokens.astype(little).tobytes()
            handle.write(content)
            written.sha256.update(content)
            written.starts.append(piece.starts + offset + written.num_tokens)
            written.digests += piece.digests
            written.num_tokens += len(piece.tokens)
            progress.update(len(piece.tokens))
    return written


def _check_length(plan: ShardPlan, num_tokens: int) -> None:
    if num_tokens < plan.num_sequences * plan.sequence_length:
        there = plan.first_sequence + num_tokens // plan.sequence_length
        raise UserError(
            f"the text ends after {there} {plan.split} sequences of {plan.sequence_length} tokens; ask for "
            f"{there} or fewer (training repeats them) or give more text; finished shards are kept"
        )


def entry_position(entry: Entry, key: str) -> Position:
    """The position `begin` or `end` of an entry."""
    return Position(**entry[key])


def entry_fault(directory: Path, entry: Entry, sequence_length: int, dtype: str, verify: bool) -> str | None:
    """None when both files of an entry are as recorded, else which one is not and why.

    Sizes are always compared; contents with `verify`, which reads them whole.
    """
    sizes = {
        entry["tokens"]: entry["num_sequences"] * sequence_length * np.dtype(dtype).itemsize,
        entry["starts"]: entry["num_documents"] * 8,
    }
    for name, size in sizes.items():
        path = directory / name
        if not path.is_file():
            return f"{path} is missing"
        if path.stat().st_size != size:
            return f"{path} is truncated or does not fit the manifest"
        if verify and sha256_file(path) != entry["sha256"][name]:
            return f"{path} is damaged (wrong sha256)"
    return None
