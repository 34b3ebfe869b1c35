"""A FineWeb-shaped preparation of ten small files, and what to compare it with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from fineweb_files import documents, save_tokenizer, write_fineweb

from pangu_hif8.corpus import TokenShards, pack
from pangu_hif8.models import load_tokenizer
from pangu_hif8.shard_writer import build_shards
from pangu_hif8.text_source import Documents, ParquetFolder
from pangu_hif8.texts import encoder

LENGTH, HELDOUT, TRAIN, SECOND = 32, 9, 50, 4
COUNTS = {"heldout": HELDOUT, "train": TRAIN, "second_domain": SECOND}
SECOND_TEXT = Documents("invented abstracts", documents(20, seed=5))
DOCUMENTS = documents(300)


def build(inputs: Path, target: Path, *, tokenizer: str = "tokenizer", **changes: Any) -> dict[str, Any]:
    """The preparation that most tests look at: 2 + 7 + 1 files."""
    settings: dict[str, Any] = {
        "sequence_length": LENGTH,
        "num_train_sequences": TRAIN,
        "num_heldout_sequences": HELDOUT,
        "second_domain": SECOND_TEXT,
        "num_second_domain_sequences": SECOND,
        "workers": 0,
        "sequences_per_file": 8,
    }
    source = changes.pop("source", ParquetFolder(inputs / "fineweb"))
    return build_shards(source, inputs / tokenizer, target, **settings | changes)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.name != ".lock"}


def assert_equals_pack(
    target: Path, tokenizer_dir: Path, bos: bool, train: list[str], heldout: list[str] | None = None
) -> None:
    """Compare with the small texts' own packing of the same documents."""
    tokenizer = load_tokenizer(tokenizer_dir)
    shards, encode = TokenShards.open(target), encoder(tokenizer, bos)
    stream = map(encode, train)
    texts = {
        "heldout": stream if heldout is None else map(encode, heldout),
        "train": stream,
        "second_domain": map(encode, SECOND_TEXT.documents),
    }
    for split, count in COUNTS.items():
        packed = pack(texts[split], tokenizer.eos_token_id, LENGTH, count)
        assert np.array_equal(getattr(shards, split), packed.tokens), split
        assert np.array_equal(shards.boundaries[split], packed.starts), split


def num_files(target: Path) -> int:
    """Training files that the manifest knows."""
    try:
        return len(json.loads((target / "manifest.json").read_text())["splits"]["train"]["files"])
    except FileNotFoundError:
        return 0


def make_inputs(base: Path) -> Path:
    """A folder with a tokenizer, one that sets BOS, and a FineWeb-shaped folder."""
    save_tokenizer(base / "tokenizer")
    save_tokenizer(base / "tokenizer-bos", bos=True)
    write_fineweb(base / "fineweb", DOCUMENTS)
    return base
