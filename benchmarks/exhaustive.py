"""Proof over all inputs: every one of the 4,294,967,296 float32 bit patterns, in both overflow modes.

The expected codes come from a table of 126 rounding thresholds (tests/data/hif8_thresholds.json), which was
computed from the format's definition by other means and shares no code with `pangu_hif8.hif8`. Between two
thresholds all bit patterns have the same code, so that expanding the table needs no arithmetic on floats:
a run of consecutive patterns, then the next.

For each pattern: `encode` gives the expected code, and `quantize_dequantize` the bits of decode(encode(x)).
What `decode` gives for each of the 256 codes is compared with the table's values first. The sha256 of all
codes, in the order of the bit pattern as an unsigned number, is compared with exhaustive.json.

    python benchmarks/exhaustive.py            exits 1 and names the first pattern that differs
    python benchmarks/exhaustive.py --write    writes exhaustive.json anew, when no pattern differs
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from pangu_hif8 import hif8
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json, write_json
from pangu_hif8.hif8 import Overflow

ROOT = Path(__file__).resolve().parent.parent
THRESHOLDS = ROOT / "tests" / "data" / "hif8_thresholds.json"
RECORD = Path(__file__).with_suffix(".json")
NUM_PATTERNS, CHUNK = 2**32, 2**22  # a chunk's tensors take 16 MB each
MODES: tuple[Overflow, ...] = ("inf", "saturate")
CODE_MAX, CODE_INF, CODE_NAN, NEGATIVE = 0x6E, 0x6F, 0x80, 0x80
FIRST_NAN, HALF = 0x7F800001, 2**31

Codes = NDArray[np.uint8]


@cache
def runs(overflow: Overflow) -> tuple[NDArray[np.int64], Codes]:
    """The first pattern of each run of equal codes, rising, and the run's code; over all 2^32 patterns."""
    table = json.loads(THRESHOLDS.read_text(encoding="utf-8"))
    entries = [(int(entry["threshold_bits"], 16), entry["code"]) for entry in table["entries"]]
    beyond = CODE_INF if overflow == "inf" else CODE_MAX
    positive = [(0, 0), *entries, (int(table["overflow_threshold_bits"], 16), beyond), (FIRST_NAN, CODE_NAN)]
    negative = [(start + HALF, code | NEGATIVE if code else 0) for start, code in positive]
    starts, codes = zip(*positive, *negative, strict=True)
    return np.array(starts, dtype=np.int64), np.array(codes, dtype=np.uint8)


def expected_codes(start: int, stop: int, overflow: Overflow) -> Codes:
    """The codes of the bit patterns start, start + 1, ..., stop - 1, by the table of thresholds alone."""
    starts, codes = runs(overflow)
    edges = np.append(starts, NUM_PATTERNS).clip(start, stop)
    return np.repeat(codes, np.diff(edges))


def expected_values() -> dict[int, float]:
    """The value of each of the 256 codes, by the table of thresholds."""
    table = json.loads(THRESHOLDS.read_text(encoding="utf-8"))
    values = {entry["code"]: float(entry["value"]) for entry in table["entries"]} | {CODE_INF: math.inf}
    return values | {code | NEGATIVE: -v for code, v in values.items()} | {0: 0.0, CODE_NAN: math.nan}


def check_decode() -> None:
    """Raises UserError for the first of the 256 codes whose value is not the table's."""
    values = expected_values()
    decoded = hif8.decode(torch.arange(256, dtype=torch.uint8)).tolist()
    for code, value in enumerate(decoded):
        if not (value == values[code] or (math.isnan(value) and math.isnan(values[code]))):
            raise UserError(f"decode(0x{code:02X}) is {value}, expected {values[code]}")


def check_chunk(start: int, stop: int) -> list[Codes]:
    """The codes of patterns start..stop-1 in each mode. UserError for the first pattern that differs."""
    patterns = torch.from_numpy(np.arange(start, stop, dtype=np.int64).astype(np.uint32).view(np.int32))
    x = patterns.view(torch.float32)
    found = []
    for mode in MODES:
        codes = hif8.encode(x, overflow=mode)
        there_and_back = hif8.decode(codes).view(torch.int32)
        direct = hif8.quantize_dequantize(x, overflow=mode).view(torch.int32)
        expected = torch.from_numpy(expected_codes(start, stop, mode))
        _fail_at_first(start, mode, "encode", codes, expected)
        _fail_at_first(start, mode, "quantize_dequantize", direct, there_and_back)
        found.append(codes.numpy())
    return found


def _fail_at_first(start: int, mode: Overflow, what: str, found: Tensor, expected: Tensor) -> None:
    if torch.equal(found, expected):
        return
    index = int((found != expected).nonzero()[0])
    got, wanted = (int(tensor[index]) & 0xFFFFFFFF for tensor in (found, expected))
    where = f"{what}, overflow {mode}, at pattern 0x{start + index:08X}"
    raise UserError(f"{where}: 0x{got:X}, expected 0x{wanted:X}")


def checked_chunks(num_patterns: int, num_threads: int) -> Iterator[list[Codes]]:
    """The chunks' codes in order, computed by threads that stay at most two chunks ahead of the reader."""
    with ThreadPoolExecutor(num_threads) as pool:
        waiting: deque[Future[list[Codes]]] = deque()
        for start in range(0, num_patterns, CHUNK):
            waiting.append(pool.submit(check_chunk, start, min(start + CHUNK, num_patterns)))
            if len(waiting) > num_threads + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def digests(num_patterns: int = NUM_PATTERNS, num_threads: int | None = None) -> dict[str, str]:
    """sha256 of all codes for each mode, after every chunk has been checked; shows progress."""
    torch.set_num_threads(1)  # whole chunks run side by side instead
    hashes = [hashlib.sha256() for _ in MODES]
    with tqdm(total=num_patterns, unit=" patterns", unit_scale=True, mininterval=1.0) as bar:
        for chunk in checked_chunks(num_patterns, num_threads or os.cpu_count() or 1):
            for running, codes in zip(hashes, chunk, strict=True):
                running.update(codes.data)
            bar.update(len(chunk[0]))
    return {f"sha256_{mode}": running.hexdigest() for mode, running in zip(MODES, hashes, strict=True)}


def prove(write: bool) -> str:
    """Check everything; returns the closing line. UserError for a mismatch, also with the record."""
    record = {} if write else read_json(RECORD)
    check_decode()
    found: dict[str, object] = {"num_patterns": NUM_PATTERNS, **digests()}
    if write:
        write_json(RECORD, found)
    elif found != record:
        raise UserError(f"the digests are {found}, {RECORD.name} has {record}")
    done = "written" if write else "equal to the record"
    return f"all {NUM_PATTERNS:,} float32 patterns are right in both modes; digests {done}"


def main() -> None:
    """Entry point: `python benchmarks/exhaustive.py [--write]`."""
    parser = argparse.ArgumentParser(description="Prove encode and quantize_dequantize for every float32.")
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name} instead of comparing")
    try:
        print(prove(parser.parse_args().write))
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
