"""Documents to token ids in several processes, results in order, never more in memory than a few batches.

Workers get the fast tokenizer as its own JSON and run it without transformers or torch, so that a hundred of
them start quickly and stay small. They are spawned, not forked (the parent has threads), and end when the
parent dies, also by SIGKILL. A document is always encoded whole, however long: pieces would differ at the
seams, and a million characters take half a second and 100 MB.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pangu_hif8.errors import UserError
from pangu_hif8.files import sha256_file
from pangu_hif8.text_source import RowBatch

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
BATCHES_PER_WORKER = 3  # in flight: one being encoded, one waiting, one on its way back


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens; goes to every worker. `heldout` are digests of documents to leave out."""

    tokenizer_json: str
    add_special_tokens: bool
    end: tuple[int, ...]  # appended to each document: EOS, or nothing where the tokenizer adds EOS itself
    dtype: str
    heldout: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TokenizerFacts:
    """What the manifest holds about the tokenizer."""

    tokenizer_sha256: str
    add_bos_token: bool
    eos_id: int
    vocab_size: int  # the largest id plus one

    @property
    def dtype(self) -> str:
        """By the vocabulary, not by what a text happens to use: all shards of a tokenizer are alike."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"


def load_encoding(tokenizer_dir: Path) -> tuple[Encoding, TokenizerFacts]:
    """The tokenizer of a model directory. Raises UserError when it is damaged, slow or has no EOS."""
    from pangu_hif8.models import bos_rule, load_tokenizer

    tokenizer = load_tokenizer(tokenizer_dir)
    if not tokenizer.is_fast or tokenizer.eos_token_id is None:
        raise UserError(
            f"the tokenizer in {tokenizer_dir} has no fast version or no EOS token; use one that has"
        )
    add_bos, eos_id = bos_rule(tokenizer), int(tokenizer.eos_token_id)
    ends_itself = add_bos and tokenizer("a").input_ids[-1] == eos_id
    facts = TokenizerFacts(
        tokenizer_sha256=_tokenizer_sha256(tokenizer_dir),
        add_bos_token=add_bos,
        eos_id=eos_id,
        vocab_size=max(tokenizer.get_vocab().values()) + 1,
    )
    text = tokenizer.backend_tokenizer.to_str()
    return Encoding(text, add_bos, () if ends_itself else (eos_id,), facts.dtype), facts


def _tokenizer_sha256(tokenizer_dir: Path) -> str:
    path = next((tokenizer_dir / n for n in _TOKENIZER_FILES if (tokenizer_dir / n).is_file()), None)
    if path is None:
        raise UserError(
            f"{tokenizer_dir} has neither {' nor '.join(_TOKENIZER_FILES)}; prepare the model first"
        )
    return sha256_file(path)


@dataclass(frozen=True)
class EncodedBatch:
    """A RowBatch's tokens end to end. `ends[i]` is where row i ends; a skipped row has no tokens."""

    file: int
    first_row: int
    tokens: npt.NDArray[Any]
    ends: npt.NDArray[np.int64]
    empty: npt.NDArray[np.bool_]  # null, white space alone, or nothing left by the tokenizer
    invalid: npt.NDArray[np.bool_]  # invalid UTF-8, replaced by U+FFFD
    excluded: npt.NDArray[np.bool_]  # the same text as a held-out document
    digests: list[str]  # of every row's text, to be recorded for held-out ones


def text_digest(text: bytes) -> str:
    """64 bits: among 15 million documents a false match with one of 10,000 has a chance of 1 in 10^8."""
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def encode_batch(batch: RowBatch, encoding: Encoding) -> EncodedBatch:
    """Encode a batch in this process."""
    raw = [text or b"" for text in batch.texts]
    digests = [text_digest(text) for text in raw]
    texts = [text.decode("utf-8", "replace") for text in raw]
    excluded = [digest in encoding.heldout for digest in digests]
    used = [bool(text.strip()) and not out for text, out in zip(texts, excluded, strict=True)]
    kept = iter(_encode([text for text, use in zip(texts, used, strict=True) if use], encoding))
    pieces = [next(kept) if use else np.empty(0, encoding.dtype) for use in used]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    return EncodedBatch(
        batch.file,
        batch.first_row,
        np.concatenate(pieces),
        np.cumsum(lengths),
        (lengths == 0) & ~np.array(excluded, np.bool_),
        np.array([_is_invalid(*pair) for pair in zip(raw, texts, strict=True)], np.bool_),
        np.array(excluded, np.bool_),
        digests,
    )


def _encode(texts: list[str], encoding: Encoding) -> list[npt.NDArray[Any]]:
    tokenizer = _tokenizer(encoding.tokenizer_json)
    rows = tokenizer.encode_batch_fast(texts, add_special_tokens=encoding.add_special_tokens)
    return [np.array([*row.ids, *encoding.end] if row.ids else [], encoding.dtype) for row in rows]


def _is_invalid(raw: bytes, text: str) -> bool:
    return "\ufffd" in text and text.encode("utf-8") != raw


@cache
def _tokenizer(tokenizer_json: str) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()  # some tokenizer.json ship with a maximum length
    tokenizer.no_padding()
    return tokenizer


_worker_encoding: Encoding | None = None


def _start_worker(encoding: Encoding) -> None:
    global _worker_encoding
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parallelism is the processes'
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _worker_encoding = encoding
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode_in_worker(batch: RowBatch) -> EncodedBatch:
    assert _worker_encoding is not None
    return encode_batch(batch, _worker_encoding)


def encode_all(batches: Iterable[RowBatch], encoding: Encoding, workers: int) -> Iterator[EncodedBatch]:
    """Encode batches in `workers` processes, in order; 0 encodes in this one."""
    if workers == 0:
        yield from (encode_batch(batch, encoding) for batch in batches)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(encoding,))
    try:
        yield from _in_order(batches, lambda batch: pool.submit(_encode_in_worker, batch), workers)
    except BrokenProcessPool as error:
        raise UserError(
            "a tokenizing process ended unexpectedly (out of memory, or a script without the guard "
            '`if __name__ == "__main__"`); run this again with fewer workers, or 0; finished shards are kept'
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    batches: Iterable[RowBatch], submit: Callable[[RowBatch], Future[EncodedBatch]], workers: int
) -> Iterator[EncodedBatch]:
    waiting: deque[Future[EncodedBatch]] = deque()
    for batch in batches:
        waiting.append(submit(batch))
        if len(waiting) >= BATCHES_PER_WORKER * workers:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()
