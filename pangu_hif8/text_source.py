"""Where documents come from, in an order that can be recorded and entered at any row.

A source is a list of files, in a fixed order with a fingerprint each, and rows in them. A `Position` names
the next token to read: file, row, and how many tokens of that row's document are already used. Row groups are
decoded in small batches, so memory does not grow with a file. Text stays bytes here: it is decoded where it
is tokenized, in parallel, and there invalid UTF-8 is replaced and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pangu_hif8.errors import UserError
from pangu_hif8.files import digest

if TYPE_CHECKING:
    import pyarrow.parquet as pq

ROWS_PER_BATCH = 64  # about 200 kB of web text: coarse enough for a worker process, small in memory
_READ_BUFFER = 1 << 20  # bytes; with it, and without pre_buffer, a row group's column is read in pieces
_MAGIC, _FOOTER_TAIL = b"PAR1", 8  # a Parquet file ends with its footer, the footer's length and PAR1


@dataclass(frozen=True)
class Position:
    """The next token: file (index in the listing), row in that file, tokens of that row already used."""

    file: int = 0
    row: int = 0
    token: int = 0


@dataclass(frozen=True)
class SourceFile:
    """One file of a source. `sha256` is the content's where the hub states it, else the Parquet footer's."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Listing:
    """What a source consists of. Two equal listings give the same documents in the same order."""

    name: str
    revision: str
    files: tuple[SourceFile, ...]

    def to_json(self) -> dict[str, Any]:
        """As the manifest holds it."""
        return {"name": self.name, "revision": self.revision, "files": [asdict(file) for file in self.files]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Listing:
        """Inverse of `to_json`."""
        files = tuple(SourceFile(**file) for file in value["files"])
        return cls(value["name"], value["revision"], files)


@dataclass(frozen=True)
class RowBatch:
    """Consecutive rows of one file; None where the text is null."""

    file: int
    first_row: int
    texts: list[bytes | None]


class TextSource(Protocol):
    """A source of documents. Both methods raise UserError that names the file and the remedy."""

    def listing(self, recorded: Listing | None = None) -> Listing:
        """What there is to read. `recorded` is what an earlier, unfinished preparation read."""

    def batches(self, listing: Listing, start: Position, scratch: Path) -> Iterator[RowBatch]:
        """Rows from `start.row` on. `scratch` may hold downloads; its owner removes it in the end."""

    def scratch_bytes(self, listing: Listing) -> int:
        """Disk that `batches` takes in `scratch` at any one time."""


@dataclass(frozen=True)
class Documents:
    """Documents in memory, for a small second domain. `name` says in the manifest where they come from."""

    name: str
    documents: Sequence[str]

    def listing(self, recorded: Listing | None = None) -> Listing:
        """One file, with the documents' digest."""
        size = sum(map(len, self.documents))
        sha256 = digest(list(self.documents))
        return Listing(self.name, sha256, (SourceFile("documents", size, sha256),))

    def batches(self, listing: Listing, start: Position, scratch: Path) -> Iterator[RowBatch]:
        """Rows are the documents' indices."""
        for first in range(start.row, len(self.documents), ROWS_PER_BATCH):
            rows = self.documents[first : first + ROWS_PER_BATCH]
            yield RowBatch(0, first, [text.encode("utf-8", "surrogatepass") for text in rows])

    def scratch_bytes(self, listing: Listing) -> int:
        """Nothing."""
        return 0


@dataclass(frozen=True)
class ParquetFolder:
    """All `*.parquet` in a folder and its sub-folders, sorted by path: the hub's layout on a local disk."""

    folder: Path
    column: str = "text"

    def listing(self, recorded: Listing | None = None) -> Listing:
        """Reads every footer, so that a truncated file is found before hours of work."""
        if not self.folder.is_dir():
            raise UserError(f"{self.folder} is no folder; give the one that holds the Parquet files")
        paths = sorted(self.folder.rglob("*.parquet"), key=self._name)
        if not paths:
            raise UserError(f"{self.folder} holds no *.parquet file; give the folder that holds them")
        files = tuple(self._describe(path) for path in paths)
        return Listing(self.folder.name, digest([asdict(file) for file in files]), files)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _describe(self, path: Path) -> SourceFile:
        open_parquet(path, self.column).close()
        return SourceFile(self._name(path), path.stat().st_size, _footer_sha256(path))

    def batches(self, listing: Listing, start: Position, scratch: Path) -> Iterator[RowBatch]:
        """Rows of the folder's files, read in place."""
        return read_files(listing, start, lambda file: self.folder / file.path, self.column)

    def scratch_bytes(self, listing: Listing) -> int:
        """Nothing: the files are read where they lie."""
        return 0


def _footer_sha256(path: Path) -> str:
    """The footer holds every column chunk's place, size and statistics; the data need not be read for it."""
    with path.open("rb") as handle:
        handle.seek(-_FOOTER_TAIL, 2)
        length = int.from_bytes(handle.read(4), "little")
        handle.seek(-_FOOTER_TAIL - length, 2)
        return hashlib.sha256(handle.read(length)).hexdigest()


def read_files(
    listing: Listing, start: Position, locate: Callable[[SourceFile], Path], column: str
) -> Iterator[RowBatch]:
    """Rows from `start.row` of file `start.file` to the last row of the last file.

    `locate` gives a file's local path when its turn comes (it may download it).
    """
    for index in range(start.file, len(listing.files)):
        path = locate(listing.files[index])
        yield from _read_rows(path, index, start.row if index == start.file else 0, column)


def open_parquet(path: Path, column: str) -> pq.ParquetFile:
    """Open a Parquet file that has a text `column`. Raises UserError for any other."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        parquet = pq.ParquetFile(
            path, buffer_size=_READ_BUFFER, pre_buffer=False, page_checksum_verification=True
        )
        schema = parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    if column not in schema.names:
        raise UserError(
            f"{path} has no column {column!r} (it has {', '.join(schema.names)}); remove the file"
        )
    kind = schema.field(column).type
    if kind not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        raise UserError(f"{path}: column {column!r} is {kind}, not text; remove the file")
    return parquet


def _damaged(path: Path, error: Exception) -> UserError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return UserError(f"{path} is truncated or damaged ({reason}); fetch it again, then run this again")


def _read_rows(path: Path, index: int, first_row: int, column: str) -> Iterator[RowBatch]:
    import pyarrow as pa

    with open_parquet(path, column) as parquet:
        try:
            for begin, group in _row_groups(parquet, first_row):
                yield from _read_group(parquet, group, index, begin, first_row, column)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(path, error) from error


def _row_groups(parquet: pq.ParquetFile, first_row: int) -> Iterator[tuple[int, int]]:
    """(first row, index) of the row groups that hold rows from `first_row` on."""
    begin = 0
    for group in range(parquet.metadata.num_row_groups):
        end = begin + parquet.metadata.row_group(group).num_rows
        if end > first_row:
            yield begin, group
        begin = end


def _read_group(
    parquet: pq.ParquetFile, group: int, index: int, begin: int, first_row: int, column: str
) -> Iterator[RowBatch]:
    """The rows before `first_row` are decoded too (a group can't be entered midway) and dropped."""
    import pyarrow as pa

    for batch in parquet.iter_batches(
        ROWS_PER_BATCH, row_groups=[group], columns=[column], use_threads=False
    ):
        # as bytes: a string column is not validated on reading, and to_pylist would stop at invalid UTF-8
        texts = batch.column(0).cast(pa.large_binary()).to_pylist()
        skipped = min(max(0, first_row - begin), len(texts))
        if skipped < len(texts):
            yield RowBatch(index, begin + skipped, texts[skipped:])
        begin += len(texts)
