"""Shards in many files: the tokens of `pack`, bit for bit, and one clear line for what can't be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fineweb_files import documents, write_fineweb
from shard_builds import (
    DOCUMENTS,
    HELDOUT,
    LENGTH,
    TRAIN,
    assert_equals_pack,
    build,
    contents,
)
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pangu_hif8 import shard_writer
from pangu_hif8.corpus import TokenShards, pack
from pangu_hif8.errors import UserError
from pangu_hif8.models import load_tokenizer
from pangu_hif8.shard_writer import build_shards
from pangu_hif8.text_source import Documents, ParquetFolder
from pangu_hif8.texts import encoder
from pangu_hif8.tokenize_pool import TokenizerFacts


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tokenizer", ["tokenizer", "tokenizer-bos"])
def test_the_tokens_are_those_of_pack(
    shard_inputs: Path, tmp_path: Path, tokenizer: str, workers: int
) -> None:
    manifest = build(shard_inputs, tmp_path / "shards", tokenizer=tokenizer, workers=workers)
    bos = tokenizer == "tokenizer-bos"
    assert manifest["add_bos_token"] is bos
    assert_equals_pack(tmp_path / "shards", shard_inputs / tokenizer, bos, DOCUMENTS)


def test_the_manifest_says_what_was_made(finished_shards: Path, shard_inputs: Path) -> None:
    manifest = json.loads((finished_shards / "manifest.json").read_text())
    train = manifest["splits"]["train"]
    assert manifest["complete"] is True
    assert [file["path"] for file in manifest["sources"]["text"]["files"]] == [
        f"sample/10BT/{n:03d}_00000.parquet" for n in range(3)
    ]
    assert (
        len(train["files"]) == 7 and train["num_sequences"] == TRAIN and train["num_tokens"] == TRAIN * LENGTH
    )
    assert [entry["end"] for entry in train["files"][:-1]] == [entry["begin"] for entry in train["files"][1:]]
    assert manifest["dtype"] == "uint16" and manifest["vocab_size"] == 400


def test_a_document_that_is_held_out_is_not_trained_on(shard_inputs: Path, tmp_path: Path) -> None:
    """The held-out documents stand three times more in the text, the last time behind what is needed."""
    num_heldout = build(shard_inputs, tmp_path / "first")["splits"]["heldout"]["num_documents"]
    heldout, rest = DOCUMENTS[:num_heldout], DOCUMENTS[num_heldout:]
    text = [*DOCUMENTS[:12], *heldout, *DOCUMENTS[12:15], *heldout, *DOCUMENTS[15:], *heldout]
    source = ParquetFolder(write_fineweb(tmp_path / "fineweb", text))
    manifest = build(shard_inputs, tmp_path / "shards", source=source)
    assert manifest["splits"]["train"]["num_same_as_heldout"] == 2 * num_heldout
    assert_equals_pack(tmp_path / "shards", shard_inputs / "tokenizer", False, rest, heldout)


def test_documents_that_are_none(shard_inputs: Path, tmp_path: Path) -> None:
    """Null, empty and white space are skipped; invalid bytes become U+FFFD; all are counted."""
    odd = [None, "", " \n\t ", b"broken \xff\xfe bytes " * 9, "a valid \ufffd of the author's own"]
    text = [*DOCUMENTS[:12], *odd, *DOCUMENTS[12:]]
    read = [*DOCUMENTS[:12], "broken \ufffd\ufffd bytes " * 9, odd[-1], *DOCUMENTS[12:]]
    source = ParquetFolder(write_fineweb(tmp_path / "fineweb", text))
    train = build(shard_inputs, tmp_path / "shards", source=source)["splits"]["train"]
    assert (train["num_empty"], train["num_invalid_utf8"]) == (3, 1)
    assert_equals_pack(tmp_path / "shards", shard_inputs / "tokenizer", False, read)


def test_a_document_of_a_million_characters(shard_inputs: Path, tmp_path: Path) -> None:
    """It is encoded whole, fills many files, and a file inside it has no document start."""
    long = " ".join(documents(6000, seed=9))[:1_000_000]
    assert len(long) == 1_000_000
    text = [*DOCUMENTS[:20], long, *DOCUMENTS[20:]]
    source = ParquetFolder(write_fineweb(tmp_path / "fineweb", text, num_files=1))
    target, tokenizer = tmp_path / "shards", load_tokenizer(shard_inputs / "tokenizer")
    count = len(tokenizer(" ".join(text), verbose=False).input_ids) // LENGTH - 40
    manifest = build(shard_inputs, target, source=source, num_train_sequences=count, sequences_per_file=1000)
    shards, encode = TokenShards.open(target), encoder(tokenizer, False)
    stream = map(encode, text)
    pack(stream, tokenizer.eos_token_id, LENGTH, HELDOUT)
    packed = pack(stream, tokenizer.eos_token_id, LENGTH, count)
    assert np.array_equal(shards.train, packed.tokens) and np.array_equal(
        shards.boundaries["train"], packed.starts
    )
    assert 0 in [entry["num_documents"] for entry in manifest["splits"]["train"]["files"]]


@pytest.mark.parametrize(("size", "dtype"), [(65536, "uint16"), (65537, "uint32")])
def test_the_width_follows_the_vocabulary(size: int, dtype: str) -> None:
    assert TokenizerFacts("", False, 0, size).dtype == dtype


def test_a_large_vocabulary(shard_inputs: Path, tmp_path: Path) -> None:
    """Tokens above 2^16 keep their value; the width is that of the vocabulary, not of the text."""
    words = {f"w{n}": n for n in range(70_000)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w1").save_pretrained(tmp_path / "words")
    text = Documents("words", [f"w{n} w{69_999 - n}" for n in range(200)])
    build_shards(
        text,
        tmp_path / "words",
        tmp_path / "shards",
        sequence_length=6,
        num_train_sequences=10,
        num_heldout_sequences=1,
        workers=0,
        sequences_per_file=3,
    )
    shards = TokenShards.open(tmp_path / "shards")
    assert shards.train[0].tolist() == [2, 69_997, 1, 3, 69_996, 1]
    assert shards.train.dtype == shards.heldout.dtype == np.uint32
    assert shards.second_domain.shape == (0, 6)


def test_a_text_that_is_too_short(shard_inputs: Path, tmp_path: Path) -> None:
    """The error says how many there are; asked for so many, the finished files are used."""
    with pytest.raises(UserError, match=r"text ends after \d+ train sequences of 32 tokens") as error:
        build(shard_inputs, tmp_path / "shards", num_train_sequences=10_000)
    there = int(str(error.value).split("after ")[1].split()[0])
    kept = (tmp_path / "shards" / "train-00000.tokens.bin").stat().st_mtime_ns
    build(shard_inputs, tmp_path / "shards", num_train_sequences=there)
    assert len(TokenShards.open(tmp_path / "shards").train) == there
    assert (tmp_path / "shards" / "train-00000.tokens.bin").stat().st_mtime_ns == kept
    with pytest.raises(UserError, match=f"after {there} train"):
        build(shard_inputs, tmp_path / "shards", num_train_sequences=there + 1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokenizer": "tokenizer-bos"}, "tokenizer"),
        ({"sequence_length": 16}, "sequence_length 32, now it is 16"),
        ({"num_heldout_sequences": 8}, "num_heldout_sequences"),
        ({"sequences_per_file": 9}, "sequences_per_file"),
    ],
)
def test_shards_of_another_kind_are_refused(
    shard_inputs: Path, shards_copy: Path, changes: dict[str, Any], named: str
) -> None:
    before = contents(shards_copy)
    with pytest.raises(UserError, match=named) as error:
        build(shard_inputs, shards_copy, **changes)
    assert "delete that folder" in str(error.value)
    assert contents(shards_copy) == before


def test_opening_for_another_use_is_refused(finished_shards: Path) -> None:
    manifest = TokenShards.open(finished_shards, sequence_length=LENGTH).manifest
    TokenShards.open(finished_shards, tokenizer_sha256=manifest["tokenizer_sha256"])
    with pytest.raises(UserError, match="another tokenizer"):
        TokenShards.open(finished_shards, tokenizer_sha256="0" * 64)
    with pytest.raises(UserError, match=r"32.* not 64"):
        TokenShards.open(finished_shards, sequence_length=64)


def test_a_changed_text_is_refused(shard_inputs: Path, shards_copy: Path, tmp_path: Path) -> None:
    changed = write_fineweb(tmp_path / "fineweb", [*DOCUMENTS[:-1], "another end"])
    with pytest.raises(UserError, match=r"has changed .* sample/10BT/002_00000\.parquet"):
        build(shard_inputs, shards_copy, source=ParquetFolder(changed))


def test_a_file_that_comes_out_otherwise_is_refused(
    shard_inputs: Path, shards_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing is as recorded and yet the rows differ: a damaged file stays missing."""
    (shards_copy / "train-00002.tokens.bin").unlink()
    other = Documents("other", documents(120, seed=3))
    monkeypatch.setattr(ParquetFolder, "batches", lambda _, *rest: other.batches(*rest))
    with pytest.raises(UserError, match=r"train-00002\.tokens\.bin can't be made again"):
        build(shard_inputs, shards_copy)
    assert not (shards_copy / "train-00002.tokens.bin").exists()


def test_too_little_disk_is_said_before_the_start(
    shard_inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,240,000 sequences of 1,024 tokens of a vocabulary of 153,376 need 42.8 GB."""
    monkeypatch.setattr(
        shard_writer.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 40 * 10**9)
    )
    monkeypatch.setattr(TokenizerFacts, "dtype", "uint32")
    with pytest.raises(UserError, match=r"10\.486 billion tokens need 42\.78 GB .* 40\.00 GB are free"):
        build(
            shard_inputs,
            tmp_path / "s",
            sequence_length=1024,
            num_train_sequences=10_240_000,
            sequences_per_file=65536,
        )
    assert not list((tmp_path / "s").glob("*.bin"))


def test_a_damaged_manifest_is_a_clear_error(shard_inputs: Path, shards_copy: Path) -> None:
    (shards_copy / "manifest.json").write_text((shards_copy / "manifest.json").read_text()[:-40])
    with pytest.raises(UserError, match=r"manifest\.json is damaged .*delete it and run again"):
        build(shard_inputs, shards_copy)
