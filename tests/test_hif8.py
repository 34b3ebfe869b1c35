"""The format as a whole, against vectors, digests and a NumPy type that share no code with it."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pangu_hif8 import hif8
from pangu_hif8.hif8_tables import PIECE

DATA = Path(__file__).parent / "data"
MODES = {"inf": "inf", "sat": "saturate"}


def load(name: str):
    return json.loads((DATA / name).read_text())


def from_bits(bits) -> torch.Tensor:
    return torch.from_numpy(np.asarray(bits, dtype=np.uint32).view(np.int32)).view(torch.float32)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, every NaN counted as one."""
    return bool(torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)))


def test_all_256_codes_decode_and_encode_back():
    table = load("hif8_decode.json")
    codes = torch.tensor([row["code"] for row in table], dtype=torch.uint8)
    values = torch.tensor([float(row["value"]) for row in table])
    assert len(table) == 256
    assert same(hif8.decode(codes), values)
    assert torch.equal(hif8.encode(values), codes)


@pytest.mark.parametrize("mode", MODES)
def test_public_vectors(mode):
    vectors = load("hif8_vectors_public.json")["vectors"]
    x = from_bits([int(v["x_bits"], 16) for v in vectors])
    codes = torch.tensor([v[f"code_{mode}"] for v in vectors], dtype=torch.uint8)
    values = torch.tensor([float(v[f"qdq_{mode}"]) for v in vectors])
    assert len(vectors) == 397
    assert torch.equal(hif8.encode(x, overflow=MODES[mode]), codes)
    assert same(hif8.quantize_dequantize(x, overflow=MODES[mode]), values)


@pytest.mark.parametrize("sign", [0, 0x80000000])
def test_every_threshold_and_three_ulp_around_it(sign):
    entries = load("hif8_thresholds.json")["entries"]
    bits = np.array([int(e["threshold_bits"], 16) for e in entries], dtype=np.int64)
    codes = [0] + [e["code"] for e in entries]
    for offset in range(-3, 4):
        x = from_bits((bits + offset) | sign)
        expected = codes[1:] if offset >= 0 else codes[:-1]
        expected = [c | (0x80 if sign and c else 0) for c in expected]
        assert hif8.encode(x).tolist() == expected, offset


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_all_16_bit_inputs(name, dtype, mode):
    digests = load("hif8_digests.json")
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    codes = hif8.encode(x, overflow=MODES[mode])
    assert hashlib.sha256(codes.numpy().tobytes()).hexdigest() == digests[f"{name}_{mode}"]
    values = hif8.quantize_dequantize(x, overflow=MODES[mode])
    assert values.dtype == dtype
    wide = values.float()
    wide[wide.isnan()] = float("nan")
    assert hashlib.sha256(wide.numpy().tobytes()).hexdigest() == digests[f"{name}_qdq_{mode}"]
    assert same(hif8.decode(codes), values.float())


def test_against_an_independent_numpy_type_on_a_wide_sample():
    en_dtypes = pytest.importorskip("en_dtypes")
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 2_000_000, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(en_dtypes.hifloat8).astype(np.float32)
    assert same(hif8.quantize_dequantize(torch.from_numpy(x)), torch.from_numpy(expected))


def test_table_equals_the_scalar_definition_on_every_prefix_and_its_last_pattern():
    bits = np.arange(8192, dtype=np.uint32) << 19
    x = from_bits(np.concatenate([bits, bits | 0x7FFFF]))
    for overflow in ("inf", "saturate"):
        expected = [hif8.round_to_code(v, overflow) for v in x.tolist()]
        assert hif8.encode(x, overflow=overflow).tolist() == expected


def test_nan_stays_nan_and_touches_nothing_else():
    signalling = from_bits([0x7F800001, 0xFF800001])
    assert hif8.quantize_dequantize(signalling).isnan().all()
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    expected = hif8.quantize_dequantize(x)
    x[500] = float("nan")
    result = hif8.quantize_dequantize(x)
    assert result[500].isnan() and result.isnan().sum() == 1
    expected[500] = float("nan")
    assert same(result, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4), (1, 7)])
def test_shape_and_dtype_are_kept(shape, dtype):
    x = torch.randn(shape).to(dtype).requires_grad_()
    for result in (hif8.quantize_dequantize(x), hif8.decode(hif8.encode(x), dtype=dtype)):
        assert result.shape == x.shape and result.dtype == dtype


def test_strided_inputs_equal_their_contiguous_copies():
    x = torch.randn(64, 48)
    for view in (x.t(), x[::2, 1::3], x.expand(2, 64, 48), x[:, 5:6]):
        assert torch.equal(hif8.quantize_dequantize(view), hif8.quantize_dequantize(view.clone()))
        assert torch.equal(hif8.encode(view), hif8.encode(view.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_more", [0, 1, PIECE + 7])
def test_a_large_tensor_is_the_sum_of_its_parts(dtype, num_more):
    """Also where one piece of a large tensor ends and the next begins, with NaN there."""
    x = torch.randn(PIECE + num_more, generator=torch.Generator().manual_seed(0)).mul_(100)
    x[PIECE - 2 :: PIECE // 2] = float("nan")
    x = x.to(dtype)
    for function in (hif8.quantize_dequantize, hif8.encode):
        parts = torch.cat([function(part) for part in x.split(100_003)])
        assert same(function(x).float(), parts.float())
    codes = hif8.encode(x).view(1, -1)
    assert same(hif8.decode(codes, dtype=dtype), hif8.quantize_dequantize(x).view(1, -1))


def test_input_is_not_changed():
    x = torch.randn(100)
    before = x.clone()
    hif8.quantize_dequantize(x)
    hif8.encode(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool])
def test_types_that_would_round_twice_or_make_no_sense_are_refused(dtype):
    with pytest.raises(ValueError, match="float32"):
        hif8.encode(torch.zeros(2, dtype=dtype))
    with pytest.raises(ValueError, match="uint8"):
        hif8.decode(torch.zeros(2, dtype=dtype))
    with pytest.raises(ValueError, match="overflow"):
        hif8.encode(torch.zeros(2), overflow="wrap")


def test_constants_are_the_format_s():
    assert (hif8.HIF8.max, hif8.HIF8.tiny) == (hif8.MAX, hif8.TINY)
    assert hif8.decode_code(hif8.CODE_MAX) == hif8.MAX == 32768
    assert hif8.decode_code(0x7E) == hif8.SMALLEST_NORMAL
    assert hif8.decode_code(0x01) == hif8.TINY
    assert [hif8.decode_code(c) for c in (0x08, 0x2F, 0x40, 0x4F)] == [1, 15, 16, 224]


FINITE = st.floats(width=32, allow_nan=False)


@settings(max_examples=300, deadline=None)
@given(FINITE, FINITE)
def test_properties(a, b):
    low, high = hif8.quantize_dequantize(torch.tensor([min(a, b), max(a, b)])).tolist()
    assert low <= high  # monotone
    q = hif8.quantize_dequantize(torch.tensor([a]))
    assert torch.equal(hif8.quantize_dequantize(q), q)  # idempotent
    assert torch.equal(hif8.quantize_dequantize(torch.tensor([-a])), -q)  # odd: -0.0 equals 0.0 here


@settings(max_examples=300, deadline=None)
@given(st.floats(width=32, min_value=2.0**-22, max_value=32768.0))
def test_error_is_at_most_half_a_step(x):
    q = hif8.quantize_dequantize(torch.tensor(x)).item()
    exponent = math.frexp(x)[1] - 1
    bits = next(n for limit, n in ((3, 3), (7, 2), (15, 1), (22, 0)) if abs(exponent) <= limit)
    assert abs(q - x) <= 2.0 ** (exponent - bits) / 2


def test_there_is_no_negative_zero():
    x = torch.tensor([-0.0, 0.0, -(2.0**-24), 2.0**-24])
    assert not torch.signbit(hif8.quantize_dequantize(x)).any()
    assert hif8.encode(x).tolist() == [0, 0, 0, 0]
