"""A profile's text from Parquet files: its data section turned into sources, and the shards made of them."""

from __future__ import annotations

from pathlib import Path

from pangu_hif8.config import DataConfig, ParquetConfig
from pangu_hif8.files import digest, sha256_file
from pangu_hif8.freshness import source_digest
from pangu_hif8.text_source import TextSource


def source_of(text: ParquetConfig) -> TextSource:
    """A folder where there is one of that name, else the hub."""
    folder = Path(text.dataset).expanduser()
    if folder.is_dir():
        from pangu_hif8.text_source import ParquetFolder

        return ParquetFolder(folder, text.column)
    from pangu_hif8.fineweb import HubParquet

    return HubParquet(text.dataset, text.subset or "default", text.revision, text.split, text.column)


def inputs(data: DataConfig, model_dir: Path) -> dict[str, str]:
    """What decides the tokens. A branch of the hub is followed when shards are made, not afterwards."""
    return {
        "settings": digest(data.identity()),
        "tokenizer": sha256_file(model_dir / "tokenizer.json"),
        "code": source_digest("shard_writer", "fineweb"),
    }


def build(data: DataConfig, model_dir: Path, target: Path) -> None:
    """Make the shards, or what is missing of them (see `shard_writer.build_shards`)."""
    from pangu_hif8.shard_writer import build_shards

    assert data.text and data.second_domain_text
    build_shards(
        source_of(data.text),
        model_dir,
        target,
        sequence_length=data.sequence_length,
        num_train_sequences=data.num_train_sequences,
        num_heldout_sequences=data.num_heldout_sequences,
        second_domain=source_of(data.second_domain_text),
        num_second_domain_sequences=data.num_second_domain_sequences,
    )
