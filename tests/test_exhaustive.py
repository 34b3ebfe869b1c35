"""The proof over all 2^32 inputs, on a few of its chunks: its expectation is right, and it can fail."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import numpy as np
import pytest
import torch

from pangu_hif8 import hif8
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json
from pangu_hif8.paths import ROOT


@pytest.fixture(scope="module")
def exhaustive() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exhaustive", ROOT / "benchmarks" / "exhaustive.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SIZE = 2**12
STARTS = [  # around 0, a denormal's threshold, 1.0, 16.0, 32768, 40960, Inf, and the negative ones
    *(0, 0x34000000 - 100, 0x3F800000, 0x417FFF00, 0x47000000, 0x47200000 - 100, 0x7F800000 - 100),
    *(0x7FFFFFFF - 100, 0xB3FFFF00, 0xC7200000 - 100, 0xFF800000 - 100, 2**32 - SIZE),
]


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
@pytest.mark.parametrize("start", STARTS)
def test_expected_codes_by_definition(exhaustive: ModuleType, start: int, overflow: hif8.Overflow) -> None:
    codes = exhaustive.expected_codes(start, start + SIZE, overflow)
    assert codes.shape == (SIZE,) and codes.dtype == np.uint8
    x = torch.from_numpy((np.arange(SIZE) + start).astype(np.uint32).view(np.float32))
    assert codes.tolist() == [hif8.round_to_code(value, overflow) for value in x.tolist()]


def test_runs_cover_every_pattern_once(exhaustive: ModuleType) -> None:
    for overflow in ("inf", "saturate"):
        starts, codes = exhaustive.runs(overflow)
        assert starts[0] == 0 and (np.diff(starts) > 0).all() and starts[-1] < 2**32
        assert set(codes.tolist()) == set(range(256)) - (set() if overflow == "inf" else {0x6F, 0xEF})


def test_every_code_s_value(exhaustive: ModuleType) -> None:
    assert exhaustive.expected_values().keys() == set(range(256))
    exhaustive.check_decode()


def test_chunks_come_in_order_and_the_digest_is_theirs(exhaustive: ModuleType) -> None:
    threads = torch.get_num_threads()
    try:
        found = exhaustive.digests(num_patterns=2 * exhaustive.CHUNK + 5, num_threads=2)
    finally:
        torch.set_num_threads(threads)
    zeros = np.zeros(2 * exhaustive.CHUNK + 5, dtype=np.uint8)  # all of these patterns are tiny
    expected = exhaustive.hashlib.sha256(zeros.data).hexdigest()
    assert found == {"sha256_inf": expected, "sha256_saturate": expected}


@pytest.mark.parametrize("name", ["encode", "quantize_dequantize"])
def test_one_wrong_pattern_is_found(
    exhaustive: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(hif8, name)

    def wrong(x: torch.Tensor, *, overflow: hif8.Overflow) -> torch.Tensor:
        result = right(x, overflow=overflow).clone()
        result[77] = 3
        return result

    monkeypatch.setattr(hif8, name, wrong)
    with pytest.raises(UserError, match=f"^{name}, overflow inf, at pattern 0x3F80004D: "):
        exhaustive.check_chunk(0x3F800000, 0x3F800000 + SIZE)


def test_the_record_is_complete() -> None:
    record = read_json(ROOT / "benchmarks" / "exhaustive.json")
    assert record["num_patterns"] == 2**32
    assert all(len(record[f"sha256_{mode}"]) == 64 for mode in ("inf", "saturate"))
