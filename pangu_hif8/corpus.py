"""Token shards: text tokenized once, packed into equal sequences, checked on opening.

Documents are joined with one EOS after each and cut into sequences; nothing is padded, so a sequence may
hold the end of one document and the start of the next, and attention may look across. Where documents
start is recorded. The manifest holds sources, the tokenizer's digest, counts and a sha256 for every file;
equal inputs give equal bytes. Small texts are one file a split (written here), large ones many files
(`shard_writer`); `TokenShards` opens both. `TrainingOrder` says which sequences a step sees: a pure function
of seed and step, so that all experiments of a seed see the same tokens in the same order and a resume is an
index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pangu_hif8.errors import UserError
from pangu_hif8.files import atomic_path, read_json, sha256_file, write_json
from pangu_hif8.sharded_array import ShardedArray

SCHEMA_VERSION = 1
SPLITS = ("train", "heldout", "second_domain")
MANIFEST = "manifest.json"
Tokens = npt.NDArray[Any] | ShardedArray


@dataclass(frozen=True)
class Packed:
    """`tokens` [num_sequences, sequence_length]; `starts` [num_documents]: flat positions of first tokens."""

    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]


def pack(documents: Iterable[list[int]], eos_id: int, sequence_length: int, num_sequences: int) -> Packed:
    """Join documents with EOS and cut `num_sequences` sequences; reads no more documents than needed.

    The last document is cut off where the last sequence ends. Raises UserError when the text is too short.
    """
    needed = sequence_length * num_sequences
    stream: list[int] = []
    starts: list[int] = []
    for document in documents:
        if document:
            starts.append(len(stream))
            stream += [*document, eos_id]
        if len(stream) >= needed:
            break
    if len(stream) < needed:
        raise UserError(
            f"the text gives {len(stream) // sequence_length} sequences of {sequence_length} tokens, "
            f"{num_sequences} were asked for; ask for fewer in the profile's data section"
        )
    tokens = np.asarray(stream[:needed], dtype=np.int64)
    dtype = np.uint16 if tokens.max() < 1 << 16 else np.uint32
    return Packed(tokens.astype(dtype).reshape(num_sequences, sequence_length), np.asarray(starts, np.int64))


def write_shards(directory: Path, splits: dict[str, Packed], sources: dict[str, str], **facts: Any) -> None:
    """Write one token file and one file of document starts a split, then the manifest (last)."""
    entries = {
        name: _write_split(directory, name, packed) | {"source": sources[name]}
        for name, packed in splits.items()
    }
    write_json(directory / MANIFEST, {"schema_version": SCHEMA_VERSION, "splits": entries, **facts})


def _write_split(directory: Path, name: str, packed: Packed) -> dict[str, Any]:
    files = {f"{name}.tokens.bin": packed.tokens, f"{name}.starts.bin": packed.starts}
    for file, values in files.items():
        with atomic_path(directory / file) as temporary:
            little = values.astype(values.dtype.newbyteorder("<"))
            temporary.write_bytes(little.tobytes())
    return {
        "dtype": packed.tokens.dtype.name,
        "num_sequences": packed.tokens.shape[0],
        "sequence_length": packed.tokens.shape[1],
        "num_documents": len(packed.starts),
        "num_tokens": packed.tokens.size,
        "sha256": {file: sha256_file(directory / file) for file in files},
    }


@dataclass(frozen=True)
class TokenShards:
    """Open shards. The three splits are memory-mapped, read-only, [num_sequences, sequence_length].

    Indexing with an int64 array gives those sequences in that order. `boundaries[split]` are the flat
    positions (int64) at which documents start.
    """

    train: Tokens
    heldout: Tokens
    second_domain: Tokens
    boundaries: dict[str, Tokens]
    manifest: dict[str, Any]

    @classmethod
    def open(
        cls,
        directory: Path,
        verify: bool = True,
        *,
        sequence_length: int | None = None,
        tokenizer_sha256: str | None = None,
    ) -> TokenShards:
        """Map the shards in `directory`. Raises UserError that names a missing or damaged file.

        Sizes are always checked, contents with `verify` (which reads everything: minutes for 40 GB). Where
        `sequence_length` or `tokenizer_sha256` is given, shards made with another are refused.
        """
        manifest = read_json(directory / MANIFEST)
        try:
            _check_use(directory, manifest, sequence_length, tokenizer_sha256)
            splits = {name: _open_split(directory, name, manifest["splits"][name], verify) for name in SPLITS}
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{directory / MANIFEST} lacks {error}; {_remedy(directory)}") from error
        tokens = {name: split[0] for name, split in splits.items()}
        return cls(**tokens, boundaries={n: split[1] for n, split in splits.items()}, manifest=manifest)


def _check_use(
    directory: Path, manifest: dict[str, Any], sequence_length: int | None, tokenizer_sha256: str | None
) -> None:
    if not manifest.get("complete", True):
        raise UserError(f"the shards in {directory} are not finished; run the prepare step again")
    if tokenizer_sha256 not in (None, manifest.get("tokenizer_sha256")):
        raise UserError(f"{directory} was tokenized with another tokenizer; {_remedy(directory)}")
    lengths = {manifest["splits"][name]["sequence_length"] for name in SPLITS}
    if sequence_length is not None and lengths != {sequence_length}:
        raise UserError(
            f"{directory} holds sequences of {lengths} tokens, not {sequence_length}; {_remedy(directory)}"
        )


def _open_split(directory: Path, name: str, entry: dict[str, Any], verify: bool) -> tuple[Tokens, Tokens]:
    """Tokens and document starts of one split, of either layout."""
    if "files" in entry:
        return _open_files(directory, entry, verify)
    _check_files(directory, entry["sha256"], verify)
    shape = (entry["num_sequences"], entry["sequence_length"])
    tokens = _map(directory / f"{name}.tokens.bin", shape, entry["dtype"])
    return tokens, np.fromfile(directory / f"{name}.starts.bin", "<i8").astype(np.int64)


def _open_files(directory: Path, entry: dict[str, Any], verify: bool) -> tuple[Tokens, Tokens]:
    tokens, starts = [], []
    for file in entry["files"]:
        _check_files(directory, file["sha256"], verify)
        shape = (file["num_sequences"], entry["sequence_length"])
        tokens.append(_map(directory / file["tokens"], shape, entry["dtype"]))
        starts.append(_map(directory / file["starts"], (file["num_documents"],), "int64"))
    return (
        ShardedArray(tokens, (entry["sequence_length"],), entry["dtype"]),
        ShardedArray(starts, (), np.int64),
    )


def _map(path: Path, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
    dtype = np.dtype(name).newbyteorder("<")
    size = int(np.prod(shape)) * dtype.itemsize
    if path.stat().st_size != size:
        raise UserError(f"{path} is truncated or does not fit the manifest; {_remedy(path.parent)}")
    # an empty file can't be mapped: a shard inside one long document has no document start
    return np.memmap(path, dtype=dtype, mode="r", shape=shape) if size else np.empty(shape, dtype)


def _check_files(directory: Path, known: dict[str, str], verify: bool) -> None:
    for file, expected in known.items():
        path = directory / file
        if not path.is_file():
            raise UserError(f"{path} is missing; {_remedy(directory)}")
        if verify and sha256_file(path) != expected:
            raise UserError(f"{path} is damaged (wrong sha256); {_remedy(directory)}")


def _remedy(directory: Path) -> str:
    return f"delete {directory} and run the prepare step again"


@dataclass(frozen=True)
class TrainingOrder:
    """Which sequences a step trains on: every epoch a new permutation, steps cut from their concatenation."""

    num_sequences: int
    batch_size: int
    seed: int

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """int64 [batch_size] for `step` (from 1); a batch may span two epochs."""
        if step < 1:
            raise ValueError(f"steps count from 1, got {step}")
        positions = np.arange((step - 1) * self.batch_size, step * self.batch_size)
        epochs, within = np.divmod(positions, self.num_sequences)
        indices = np.empty(self.batch_size, np.int64)
        for epoch in np.unique(epochs):
            order = _permutation(self.num_sequences, self.seed, int(epoch))
            indices[epochs == epoch] = order[within[epochs == epoch]]
        return indices


@lru_cache(maxsize=2)  # a batch may span two epochs; ten million sequences take 82 MB and a third of a second
def _permutation(num_sequences: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Philox is counter-based and its bit stream is stable; `permutation` of it is what numpy keeps."""
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_sequences)
    order.flags.writeable = False
    return order
