"""Token shards: text tokenized once, packed into equal sequences, checked on opening.

Documents are joined with one EOS after each and cut into sequences; nothing is padded, so a sequence may
hold the end of one document and the start of the next, and attention may look across. Where documents
start is recorded. The manifest holds sources, the tokenizer's digest, counts and a sha256 for every file;
equal inputs give equal bytes. `TrainingOrder` says which sequences a step sees: a pure function of seed and
step, so that all experiments of a seed see the same tokens in the same order and a resume is an index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pangu_hif8.errors import UserError
from pangu_hif8.files import atomic_path, read_json, sha256_file, write_json

SCHEMA_VERSION = 1
SPLITS = ("train", "heldout", "second_domain")
MANIFEST = "manifest.json"


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

    `boundaries[split]` are the flat positions (int64) at which documents start.
    """

    train: npt.NDArray[Any]
    heldout: npt.NDArray[Any]
    second_domain: npt.NDArray[Any]
    boundaries: dict[str, npt.NDArray[np.int64]]
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: Path, verify: bool = True) -> TokenShards:
        """Map the shards in `directory`. Raises UserError that names a missing or damaged file."""
        manifest = read_json(directory / MANIFEST)
        try:
            entries = {name: manifest["splits"][name] for name in SPLITS}
            for entry in entries.values():
                _check_files(directory, entry["sha256"], verify)
            tokens = {name: _map_tokens(directory, name, entry) for name, entry in entries.items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{directory / MANIFEST} lacks {error}; {_remedy(directory)}") from error
        starts = {n: np.fromfile(directory / f"{n}.starts.bin", "<i8").astype(np.int64) for n in SPLITS}
        return cls(**tokens, boundaries=starts, manifest=manifest)


def _map_tokens(directory: Path, name: str, entry: dict[str, Any]) -> npt.NDArray[Any]:
    path, shape = directory / f"{name}.tokens.bin", (entry["num_sequences"], entry["sequence_length"])
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    if path.stat().st_size != shape[0] * shape[1] * dtype.itemsize:
        raise UserError(f"{path} is truncated or does not fit the manifest; {_remedy(directory)}")
    return np.memmap(path, dtype=dtype, mode="r", shape=shape)


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
        epochs = positions // self.num_sequences
        orders = {int(epoch): self._permutation(int(epoch)) for epoch in np.unique(epochs)}
        return np.array(
            [orders[int(e)][p % self.num_sequences] for e, p in zip(epochs, positions, strict=True)], np.int64
        )

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        """Philox is counter-based and its bit stream is stable; `permutation` of it is what numpy keeps."""
        return np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(self.num_sequences)
