"""Packing, shards that notice damage, and an order that is a function of seed and step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pangu_hif8.corpus import Packed, TokenShards, TrainingOrder, pack, write_shards
from pangu_hif8.errors import UserError
from pangu_hif8.sharded_array import ShardedArray

EOS = 9


def test_pack_joins_with_eos_and_records_starts() -> None:
    packed = pack([[1, 2, 3], [], [4, 5], [6, 7, 8]], EOS, sequence_length=4, num_sequences=2)
    assert packed.tokens.tolist() == [[1, 2, 3, EOS], [4, 5, EOS, 6]]
    assert packed.starts.tolist() == [0, 4, 7]


def test_pack_reads_no_further_than_needed() -> None:
    documents = iter([[1, 2, 3], [4, 5, 6], [7, 8]])
    pack(documents, EOS, sequence_length=4, num_sequences=1)
    assert next(documents) == [4, 5, 6]


def test_one_stream_gives_disjoint_splits() -> None:
    documents = iter([[n] * 3 for n in range(1, 8)])
    first = pack(documents, EOS, 4, 2).tokens
    second = pack(documents, EOS, 4, 2).tokens
    assert set(first.ravel()) & set(second.ravel()) <= {EOS}


def test_pack_refuses_a_text_that_is_too_short() -> None:
    with pytest.raises(UserError, match="gives 1 sequences of 4 tokens, 2 were asked for"):
        pack([[1, 2, 3, 4, 5]], EOS, 4, 2)


@pytest.mark.parametrize(("largest", "dtype"), [(65535, np.uint16), (65536, np.uint32)])
def test_tokens_keep_their_value(largest: int, dtype: type) -> None:
    packed = pack([[largest, 1, 2]], EOS, 4, 1)
    assert packed.tokens.dtype == dtype
    assert packed.tokens[0, 0] == largest


def _splits() -> dict[str, Packed]:
    documents = [[n, n + 1, n + 2] for n in range(10, 60, 3)]
    return {
        name: pack(documents, EOS, 4, n) for name, n in [("train", 8), ("heldout", 3), ("second_domain", 2)]
    }


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    write_shards(tmp_path / "shards", _splits(), dict.fromkeys(_splits(), "a test"), eos_id=EOS)
    return tmp_path / "shards"


def test_shards_come_back_as_written(shards: Path) -> None:
    opened = TokenShards.open(shards)
    for name, packed in _splits().items():
        assert np.array_equal(getattr(opened, name), packed.tokens)
        assert np.array_equal(opened.boundaries[name], packed.starts)
    assert not opened.train.flags.writeable
    assert opened.manifest["splits"]["train"]["num_documents"] == 8
    assert opened.manifest["eos_id"] == EOS


def test_equal_inputs_give_equal_bytes(shards: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "again", _splits(), dict.fromkeys(_splits(), "a test"), eos_id=EOS)
    for path in shards.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


@pytest.mark.parametrize("file", ["train.tokens.bin", "heldout.starts.bin", "second_domain.tokens.bin"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
def test_damage_is_found_and_named(shards: Path, file: str, damage: str) -> None:
    path = shards / file
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    {
        "truncate": lambda: path.write_bytes(path.read_bytes()[:-2]),
        "flip": lambda: path.write_bytes(content),
        "remove": path.unlink,
    }[damage]()
    with pytest.raises(UserError, match=file) as error:
        TokenShards.open(shards)
    assert "run the prepare step again" in str(error.value)


def test_a_truncated_shard_is_found_without_hashing(shards: Path) -> None:
    path = shards / "train.tokens.bin"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"train\.tokens\.bin is truncated"):
        TokenShards.open(shards, verify=False)


def test_a_manifest_without_a_split_is_a_clear_error(shards: Path) -> None:
    manifest = json.loads((shards / "manifest.json").read_text())
    del manifest["splits"]["heldout"]
    (shards / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="heldout"):
        TokenShards.open(shards)
    (shards / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        TokenShards.open(shards)


def test_many_files_read_as_one_array() -> None:
    whole = np.arange(60, dtype=np.uint16).reshape(20, 3)
    array = ShardedArray([whole[:8], whole[8:8], whole[8:16], whole[16:]], (3,), np.uint16)
    assert array.shape == whole.shape and array.dtype == whole.dtype and len(array) == 20
    for key in (0, 7, 8, 19, -1, -20, slice(None), slice(5, 18, 4), slice(18, 2, -3), slice(30, 40)):
        assert np.array_equal(array[key], whole[key]), key
    for indices in ([19, 0, 8, 8, 7, -3], [], list(range(20))):
        assert np.array_equal(array[np.array(indices, np.int64)], whole[np.array(indices, np.int64)])
    assert array[np.array([15, 16])].dtype == np.uint16
    assert np.array_equal(np.asarray(array), whole)


@pytest.mark.parametrize("key", [20, -21, [3, 20]])
def test_an_index_outside_of_all_files(key: int | list[int]) -> None:
    with pytest.raises(IndexError, match="outside of 20 rows"):
        ShardedArray([np.zeros((12, 3)), np.zeros((8, 3))], (3,), np.float64)[key]


@pytest.mark.parametrize("key", [1.0, [True] * 20, (0, 1), [[0, 1]], None])
def test_an_index_that_is_none(key: object) -> None:
    """A tuple would mean two axes to numpy; it is refused and not read as two rows."""
    with pytest.raises(TypeError, match="integer array is needed"):
        ShardedArray([np.zeros((20, 3))], (3,), np.float64)[key]


@pytest.mark.parametrize(("num_sequences", "batch_size"), [(12, 4), (10, 4), (3, 8)])
def test_every_epoch_sees_every_sequence_once(num_sequences: int, batch_size: int) -> None:
    order = TrainingOrder(num_sequences, batch_size, seed=5)
    steps = 3 * num_sequences
    stream = np.concatenate([order.indices(step) for step in range(1, steps + 1)])
    epochs = stream[: len(stream) // num_sequences * num_sequences].reshape(-1, num_sequences)
    assert all(sorted(epoch) == list(range(num_sequences)) for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


def test_order_is_a_function_of_seed_and_step() -> None:
    order = TrainingOrder(100, 8, seed=1)
    assert order.indices(17).tolist() == TrainingOrder(100, 8, seed=1).indices(17).tolist()
    assert order.indices(17).tolist() != TrainingOrder(100, 8, seed=2).indices(17).tolist()
    assert order.indices(3).dtype == np.int64


def test_order_is_pinned() -> None:
    """A change of numpy or of ours that reorders the data must be seen."""
    assert TrainingOrder(10, 4, seed=0).indices(1).tolist() == [0, 7, 8, 6]


def test_order_is_the_permutations_joined() -> None:
    """Against the definition, over the end of an epoch, in any order of steps, seeds apart."""
    for seed, step in [(3, 5), (4, 5), (3, 1), (3, 2), (4, 1), (3, 5)]:
        joined = np.concatenate(
            [np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(10) for epoch in range(4)]
        )
        assert TrainingOrder(10, 4, seed).indices(step).tolist() == joined[4 * step - 4 : 4 * step].tolist()


def test_an_epoch_is_shuffled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten million sequences take a third of a second; the order is asked for in every step."""
    order, made = TrainingOrder(1_003, 100, seed=77), []
    philox = np.random.Philox
    monkeypatch.setattr(np.random, "Philox", lambda key: made.append(key) or philox(key=key))
    for step in range(1, 22):
        order.indices(step)
    assert made == [[77, 0], [77, 1], [77, 2]]


def test_steps_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        TrainingOrder(10, 2, 0).indices(0)
