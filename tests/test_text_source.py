"""Reading documents from any row of a folder, and one clear line for what can't be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fineweb_files import documents, write_fineweb, write_parquet

from pangu_hif8.errors import UserError
from pangu_hif8.text_source import ROWS_PER_BATCH, Documents, Listing, ParquetFolder, Position, TextSource

TEXTS = documents(40)


@pytest.fixture
def fineweb(tmp_path: Path) -> Path:
    """Forty documents in three files of row groups of seven."""
    return write_fineweb(tmp_path / "fineweb", TEXTS)


def read(source: TextSource, start: Position | None = None) -> list[Any]:
    """(file, row, text) of everything from `start` on."""
    listing = source.listing()
    return [
        (batch.file, batch.first_row + n, text.decode() if text is not None else None)
        for batch in source.batches(listing, start or Position(), Path())
        for n, text in enumerate(batch.texts)
    ]


def test_files_and_rows_come_in_order(fineweb: Path) -> None:
    rows = read(ParquetFolder(fineweb))
    assert [text for _, _, text in rows] == TEXTS
    assert [row[:2] for row in rows] == [(n // 14, n % 14) for n in range(40)]


def test_every_row_can_be_entered(fineweb: Path) -> None:
    rows = read(ParquetFolder(fineweb))
    for n, (file, row, _) in enumerate(rows):
        assert read(ParquetFolder(fineweb), Position(file, row)) == rows[n:]
    assert read(ParquetFolder(fineweb), Position(0, 14)) == rows[14:]
    assert read(ParquetFolder(fineweb), Position(2, 12)) == []


def test_a_row_group_is_read_in_pieces(tmp_path: Path) -> None:
    """Thirty megabytes in one row group, of which pyarrow holds a few pages at any one time."""
    write_parquet(tmp_path / "a.parquet", [f"text {n}" for n in range(1000)], row_group_size=1000)
    source = ParquetFolder(tmp_path)
    batches = list(source.batches(source.listing(), Position(0, 130), tmp_path))
    assert max(len(batch.texts) for batch in batches) <= ROWS_PER_BATCH
    random = np.random.default_rng(0)
    table = pa.table({"text": [random.bytes(15_000).hex() for _ in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, write_batch_size=10)
    del table
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() for _ in source.batches(source.listing(), Position(), tmp_path)]
    assert max(held) - before < 8e6
    assert [text for batch in batches for text in batch.texts] == [
        f"text {n}".encode() for n in range(130, 1000)
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_any_kind_of_text_column(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array([b"one", None, "zw\u00f6lf".encode()], pa.binary()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(ParquetFolder(tmp_path)) == [(0, 0, "one"), (0, 1, None), (0, 2, "zw\u00f6lf")]


def test_documents_in_memory_are_a_source() -> None:
    rows = read(Documents("memory", TEXTS))
    assert [text for _, _, text in rows] == TEXTS
    assert read(Documents("memory", TEXTS), Position(0, 17)) == rows[17:]
    assert Documents("memory", TEXTS).listing() != Documents("memory", TEXTS[:-1]).listing()


def test_the_listing_tells_files_apart(fineweb: Path) -> None:
    before = ParquetFolder(fineweb).listing()
    assert Listing.from_json(before.to_json()) == before
    path = fineweb / before.files[1].path
    pq.write_table(pq.read_table(path).slice(0, 13), path)
    after = ParquetFolder(fineweb).listing()
    assert [new == old for new, old in zip(after.files, before.files, strict=True)] == [True, False, True]
    assert after.revision != before.revision


@pytest.mark.parametrize("lost", [1, 9, 5000])
def test_a_truncated_file_is_found_before_anything_is_read(fineweb: Path, lost: int) -> None:
    path = fineweb / "sample/10BT/002_00000.parquet"
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(UserError, match=r"002_00000\.parquet is truncated or damaged .*fetch it again"):
        ParquetFolder(fineweb).listing()


@pytest.mark.parametrize("content", [b"", b"not Parquet at all", b"PAR1"])
def test_a_file_that_is_not_parquet(fineweb: Path, content: bytes) -> None:
    (fineweb / "sample/10BT/001_00000.parquet").write_bytes(content)
    with pytest.raises(UserError, match=r"001_00000\.parquet is truncated or damaged"):
        ParquetFolder(fineweb).listing()


def test_a_damaged_page_is_named(fineweb: Path) -> None:
    """The footer is whole, so it is found when the page is read."""
    path = fineweb / "sample/10BT/000_00000.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"000_00000\.parquet is truncated or damaged"):
        read(ParquetFolder(fineweb))


@pytest.mark.parametrize(
    ("column", "said"),
    [({"body": ["a"]}, "no column 'text' .it has body"), ({"text": [1]}, "column 'text' is int64, not text")],
)
def test_a_file_without_text(fineweb: Path, column: dict[str, list[Any]], said: str) -> None:
    pq.write_table(pa.table(column), fineweb / "sample/10BT/003_00000.parquet")
    with pytest.raises(UserError, match=rf"003_00000\.parquet.*{said}.*remove the file"):
        ParquetFolder(fineweb).listing()


def test_no_folder_or_nothing_in_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no folder; give the one"):
        ParquetFolder(tmp_path / "absent").listing()
    with pytest.raises(UserError, match=r"holds no \*\.parquet file"):
        ParquetFolder(tmp_path).listing()
