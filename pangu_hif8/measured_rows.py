"""A measurement that is no run: rows in a CSV file, and beside it a JSON record of what decides them.

The rows come key by key (a block, a dose). Each key's are appended to a partial file as soon as they are
there, so that a killed measurement goes on where it stopped. The CSV gets its name when all are there and the
record comes last; a CSV that does not fit its record, or a record of other settings, model or code, is
measured again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json, sha256_file, write_json, write_text
from pangu_hif8.freshness import write_stamp
from pangu_hif8.machine import cpu_name, library_versions

SCHEMA_VERSION = 1
Row = Sequence[int | float | str]


@dataclass(frozen=True)
class MeasuredRows:
    """`name`.csv and `name`.json in `directory`; `columns` of the CSV."""

    name: str
    directory: Path
    columns: tuple[str, ...]

    @property
    def csv(self) -> Path:
        return self.directory / f"{self.name}.csv"

    @property
    def record(self) -> Path:
        return self.directory / f"{self.name}.json"

    @property
    def stamp(self) -> Path:
        """Never committed: it says that this machine measured."""
        return self.directory / f"{self.name}.stamp"

    @property
    def partial(self) -> Path:
        return self.directory / f"{self.name}.partial.tmp"

    def fault(self, inputs: Mapping[str, str]) -> str | None:
        """Why the file can't be used, or None; `inputs` are those of its inputs that are known here."""
        try:
            record = read_json(self.record)
            known = record["inputs"]
            changed = [name for name, value in inputs.items() if known.get(name) != value]
            if changed:
                return f"{', '.join(sorted(changed))} changed"
            if not self.csv.is_file() or sha256_file(self.csv) != record["sha256"]:
                return f"{self.csv.name} is missing or damaged"
        except (UserError, KeyError, TypeError, AttributeError):
            return "not measured yet" if not self.record.exists() else f"{self.record.name} is damaged"
        return None

    def read(self, inputs: Mapping[str, str]) -> pd.DataFrame | None:
        """The rows; None where `fault` finds one."""
        return None if self.fault(inputs) else pd.read_csv(self.csv)

    def make(
        self, inputs: Mapping[str, str], keys: Iterable[str], measure: Callable[[str], Iterable[Row]]
    ) -> None:
        """Measure what the partial file of the same inputs lacks, and write CSV, record and stamp."""
        started, keys = time.monotonic(), list(keys)
        found = self._begun(inputs)
        for index, key in enumerate(key for key in keys if key not in found):
            print(f"{self.name}: {key} ({index + 1} of {len(keys) - len(found) + index})", flush=True)
            found[key] = [list(row) for row in measure(key)]
            self._append({"key": key, "rows": found[key]})
        self._finish(inputs, [row for key in keys for row in found[key]], time.monotonic() - started)

    def _begun(self, inputs: Mapping[str, str]) -> dict[str, list[Any]]:
        """The keys that are done; the partial file is left with these and no torn line."""
        text = self.partial.read_text("utf-8", "replace") if self.partial.is_file() else ""
        entries = list(_whole(text.splitlines()))
        head = {"inputs": dict(inputs), "columns": list(self.columns), "versions": library_versions()}
        done = entries[1:] if entries and entries[0] == head else []
        write_text(self.partial, "".join(json.dumps(entry) + "\n" for entry in (head, *done)))
        return {entry["key"]: entry["rows"] for entry in done}

    def _append(self, entry: dict[str, Any]) -> None:
        try:
            with self.partial.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(entry) + "\n")
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise UserError(f"cannot write {self.partial}: {error.strerror}. Check free space.") from error

    def _finish(self, inputs: Mapping[str, str], rows: list[Any], seconds: float) -> None:
        table = pd.DataFrame(rows, columns=list(self.columns))
        write_text(self.csv, table.to_csv(index=False, lineterminator="\n", float_format="%.9g"))
        record = {
            "schema_version": SCHEMA_VERSION,
            "inputs": dict(inputs),
            "versions": library_versions(),
            "machine": cpu_name(),
            "seconds": round(seconds, 1),
            "num_rows": len(rows),
            "sha256": sha256_file(self.csv),
        }
        write_json(self.record, record)
        write_stamp(self.stamp, dict(inputs), [self.csv])
        self.partial.unlink(missing_ok=True)


def _whole(lines: list[str]) -> Iterable[dict[str, Any]]:
    """The entries up to the first line that is no whole one."""
    for number, line in enumerate(lines):
        try:
            entry = json.loads(line)
        except ValueError:
            return
        if not isinstance(entry, dict) or (number and not {"key", "rows"} <= entry.keys()):
            return
        yield entry
