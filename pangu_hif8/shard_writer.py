"""Token shards at full scale: many files, built once in hours, killed and resumed without a trace.

The manifest is written again after every file and is the only state. A file whose entry is there and whose
bytes are as recorded stays; any other is made from the position at which it begins, so a resume, a damaged
file and a larger or smaller request are one case. The bytes are those of an uninterrupted run.

Held-out sequences come from the first documents of the source. Training starts at the document after the last
one of them (whose rest is dropped), and leaves out every later document with the same text as a held-out one.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from pangu_hif8.corpus import MANIFEST, SPLITS
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json, write_json
from pangu_hif8.freshness import exclusive
from pangu_hif8.shard_file import Entry, Request, ShardPlan, entry_fault, entry_position, write_shard
from pangu_hif8.text_source import Listing, Position, TextSource
from pangu_hif8.token_stream import TokenStream
from pangu_hif8.tokenize_pool import Encoding, encode_all, load_encoding

BYTES_PER_FILE = 256 << 20
WAIT_S = 14 * 24 * 3600.0  # for another process that prepares the same: it may need days
STARTS_SHARE = 0.02  # of the tokens' bytes: 8 bytes a document, enough when documents have 100 tokens or more
LOG_INTERVAL_S = 30.0  # between two lines of progress in a log file
SCRATCH = "downloads"


def build_shards(
    source: TextSource,
    tokenizer_dir: Path,
    target: Path,
    *,
    sequence_length: int,
    num_train_sequences: int,
    num_heldout_sequences: int,
    second_domain: TextSource | None = None,
    num_second_domain_sequences: int = 0,
    workers: int | None = None,
    sequences_per_file: int | None = None,
) -> dict[str, Any]:
    """Make the shards in `target`, or what is missing of them, and return the manifest.

    `TokenShards.open` reads them. `target` must stay the same between calls: it holds the progress. `workers`
    are tokenizing processes (None: one for each core; 0: in this process). The tokenizer is that of a model
    directory; it decides about BOS.
    Raises UserError for a damaged or too short source, a full disk, another tokenizer or sequence length than
    the manifest's; finished files are kept.
    """
    encoding, facts = load_encoding(tokenizer_dir)
    counts = {
        "heldout": num_heldout_sequences,
        "train": num_train_sequences,
        "second_domain": num_second_domain_sequences if second_domain else 0,
    }
    default_size = max(1, BYTES_PER_FILE // (sequence_length * np.dtype(facts.dtype).itemsize))
    request = Request(sequence_length, sequences_per_file or default_size, counts, facts)
    sources = {"text": source} | ({"second_domain": second_domain} if second_domain else {})
    with exclusive(target, f"the token shards in {target}", WAIT_S):
        builder = _Builder(target, request, encoding, sources, _cores() if workers is None else workers)
        builder.build()
        return builder.manifest()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Builder:
    """One preparation under the lock. `entries` are the files that exist, by split, in order."""

    def __init__(
        self,
        target: Path,
        request: Request,
        encoding: Encoding,
        sources: dict[str, TextSource],
        workers: int,
    ) -> None:
        self.target, self.request, self.encoding = target, request, encoding
        self.sources, self.workers = sources, workers
        self.entries: dict[str, list[Entry]] = {split: [] for split in SPLITS}
        self.is_complete = False
        recorded: dict[str, Any] = {}
        if (target / MANIFEST).exists():
            recorded = read_json(target / MANIFEST)
            self._check_identity(recorded)
            self.entries = {split: recorded["splits"][split]["files"] for split in SPLITS}
        self.listings = {name: self._listing(name, recorded.get("sources", {})) for name in sources}

    def _check_identity(self, recorded: dict[str, Any]) -> None:
        for key, value in self.request.identity().items():
            if recorded.get(key) != value:
                raise UserError(
                    f"{self.target} holds shards with {key} {recorded.get(key)!r}, now it is {value!r}; "
                    "delete that folder, or prepare into another one"
                )

    def _listing(self, name: str, recorded: dict[str, Any]) -> Listing:
        before = Listing.from_json(recorded[name]) if recorded.get(name) else None
        listing = self.sources[name].listing(before)
        if before is not None and before.files != listing.files:
            pairs = zip_longest(before.files, listing.files)
            changed = next((old or new).path for old, new in pairs if old != new)
            raise UserError(
                f"{listing.name} has changed since {self.target} was begun (first at {changed}); restore the "
                "text, or delete that folder and prepare it anew"
            )
        return listing

    def build(self) -> None:
        """Make every file that is missing, damaged or of another size than asked for."""
        for leftover in self.target.glob(".*.tmp"):
            leftover.unlink()
        if num_files := sum(map(len, self.entries.values())):
            print(f"{self.target}: checking the {num_files} files that are there ...", flush=True)
        missing = [plan for split in SPLITS for plan in self._missing(split)]
        if missing:
            self._check_disk(missing)
            with self._progress(missing) as progress:
                for split in ("heldout", "train", "second_domain"):
                    self._build_split(split, [p for p in missing if p.split == split], progress)
        self._remove_surplus()
        self.is_complete = True
        self._save()
        shutil.rmtree(self.target / SCRATCH, ignore_errors=True)

    def _missing(self, split: str) -> Iterator[ShardPlan]:
        """Plans of the files to make; one that was recorded must come out as it was."""
        for plan in self.request.plans(split):
            entry = next(iter(self.entries[split][plan.index : plan.index + 1]), None)
            if entry is None or entry["num_sequences"] != plan.num_sequences:
                yield plan
            elif fault := entry_fault(self.target, entry, plan.sequence_length, plan.dtype, verify=True):
                print(f"{fault}; it is made again", flush=True)
                yield replace(plan, expected=entry["sha256"])

    def _build_split(self, split: str, missing: list[ShardPlan], progress: Any) -> None:
        """Neighbours come from one stream; after a gap a new one starts."""
        while missing:
            begin = self._begin(split, missing[0].index)
            with closing(self._encoded(split, begin)) as batches:
                stream = TokenStream(batches, begin)
                index = missing[0].index
                while missing and missing[0].index == index:
                    entry = write_shard(stream, missing.pop(0), self.target, progress)
                    self.entries[split][index : index + 1] = [entry]
                    self._save()
                    index += 1

    def _begin(self, split: str, index: int) -> Position:
        if index:
            return entry_position(self.entries[split][index - 1], "end")
        if split != "train" or not self.entries["heldout"]:
            return Position()
        end = entry_position(self.entries["heldout"][-1], "end")
        return Position(end.file, end.row + 1) if end.token else end

    def _encoded(self, split: str, begin: Position) -> Any:
        name = "second_domain" if split == "second_domain" else "text"
        held = self.entries["heldout"] if split == "train" else []
        encoding = replace(self.encoding, heldout=frozenset(d for entry in held for d in entry["documents"]))
        rows = self.sources[name].batches(self.listings[name], begin, self.target / SCRATCH)
        return encode_all(rows, encoding, self.workers)

    def _check_disk(self, missing: list[ShardPlan]) -> None:
        num_tokens = sum(plan.num_sequences for plan in missing) * self.request.sequence_length
        token_bytes = num_tokens * np.dtype(self.request.facts.dtype).itemsize
        scratch = max(source.scratch_bytes(self.listings[name]) for name, source in self.sources.items())
        needed, free = token_bytes * (1 + STARTS_SHARE) + scratch, shutil.disk_usage(self.target).free
        said = f"{num_tokens / 1e9:.3f} billion tokens need {needed / 1e9:.2f} GB in {self.target}"
        if free < needed:
            raise UserError(f"{said}, {free / 1e9:.2f} GB are free; free some, or set PANGU_HIF8_CACHE")
        print(f"{said}; {free / 1e9:.2f} GB are free", flush=True)

    def _progress(self, missing: list[ShardPlan]) -> Any:
        from tqdm.auto import tqdm

        length = self.request.sequence_length
        total = sum(self.request.num_sequences.values()) * length
        done = total - sum(plan.num_sequences for plan in missing) * length
        interval = 0.2 if sys.stderr.isatty() else LOG_INTERVAL_S
        return tqdm(
            desc="tokenizing", total=total, initial=done, unit="tok", unit_scale=True, mininterval=interval
        )

    def _remove_surplus(self) -> None:
        """Files beyond a request that has become smaller."""
        for split in SPLITS:
            wanted = len(list(self.request.plans(split)))
            for entry in self.entries[split][wanted:]:
                (self.target / entry["tokens"]).unlink(missing_ok=True)
                (self.target / entry["starts"]).unlink(missing_ok=True)
            del self.entries[split][wanted:]

    def _save(self) -> None:
        write_json(self.target / MANIFEST, self.manifest())

    def manifest(self) -> dict[str, Any]:
        """As it stands now."""
        sources = {name: listing.to_json() for name, listing in self.listings.items()}
        splits = {split: self._split_facts(split) for split in SPLITS}
        return {**self.request.identity(), "complete": self.is_complete, "sources": sources, "splits": splits}

    def _split_facts(self, split: str) -> dict[str, Any]:
        entries = self.entries[split]
        keys = ("num_sequences", "num_documents", "num_empty", "num_invalid_utf8", "num_same_as_heldout")
        totals = {key: sum(entry[key] for entry in entries) for key in keys}
        name = "second_domain" if split == "second_domain" else "text"
        listing = self.listings.get(name)
        return totals | {
            "dtype": self.request.facts.dtype,
            "sequence_length": self.request.sequence_length,
            "num_tokens": totals["num_sequences"] * self.request.sequence_length,
            "source": f"{listing.name}, revision {listing.revision}" if listing else "none",
            "files": entries,
        }
