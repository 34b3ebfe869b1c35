"""The other roundings: stochastic is unbiased and reproducible, hybrid does what its description says."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Sequence

import pytest
import torch

from pangu_hif8 import hif8
from pangu_hif8.hif8 import Rounding, encode, quantize_dequantize

NUM_DRAWS = 1_000_000
BINADES = range(-26, 15)  # four below the smallest value, all of HiF8's up to its largest finite one
GRID = hif8.decode(torch.arange(256, dtype=torch.uint8))
FINITE_GRID = GRID[GRID.isfinite()]
SPECIALS = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e38, -1e38, 40960.0, 32768.0, 1e-45])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def from_bits(bits: Sequence[int]) -> torch.Tensor:
    return torch.tensor([struct.unpack("<f", struct.pack("<I", b))[0] for b in bits])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, every NaN counted as one."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.nan_to_num(7.0, math.inf, -math.inf), b.nan_to_num(7.0, math.inf, -math.inf)
    )


def wide_sample(num: int) -> torch.Tensor:
    """All exponents, both signs, NaN and Inf among them."""
    bits = torch.randint(-(2**31), 2**31, (num,), generator=seeded(1), dtype=torch.int64)
    return bits.to(torch.int32).view(torch.float32)


# ---- by name -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ta_by_name_and_by_default_is_the_definition_s(dtype: torch.dtype, overflow: hif8.Overflow) -> None:
    x = wide_sample(20_000).to(dtype)
    expected = [hif8.round_to_code(value, overflow) for value in x.tolist()]
    assert encode(x, overflow=overflow).tolist() == expected
    assert encode(x, overflow=overflow, rounding="ta").tolist() == expected
    by_name = quantize_dequantize(x, overflow=overflow, rounding="ta")
    assert same(by_name, GRID[torch.tensor(expected)].to(dtype))


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
@pytest.mark.parametrize(
    ("rounding", "dtype"),
    [
        *itertools.product(("ta", "stochastic"), (torch.float32, torch.bfloat16, torch.float16)),
        ("hybrid", torch.float32),
    ],
)
def test_decode_of_encode_has_the_bits_of_quantize_dequantize(
    rounding: Rounding, dtype: torch.dtype, overflow: hif8.Overflow
) -> None:
    x = torch.cat([wide_sample(50_000), SPECIALS, torch.randn(50_000, generator=seeded(2))]).to(dtype)
    generators = [seeded(8), seeded(8)] if rounding == "stochastic" else [None, None]
    codes = encode(x, overflow=overflow, rounding=rounding, generator=generators[0])
    values = quantize_dequantize(x, overflow=overflow, rounding=rounding, generator=generators[1])
    kind = torch.int32 if dtype == torch.float32 else torch.int16
    assert codes.dtype == torch.uint8 and values.dtype == dtype
    assert torch.equal(hif8.decode(codes, dtype=dtype).view(kind), values.view(kind))


# ---- stochastic --------------------------------------------------------------------------------------


def rungs_around(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The neighbours of x on the sorted grid, found by search: shares no code with the bits."""
    grid = FINITE_GRID.unique(sorted=True)
    above = torch.searchsorted(grid, x)  # the first rung >= x
    return grid[(above - (grid[above] != x).long())], grid[above]


def test_stochastic_gives_one_of_the_two_neighbours() -> None:
    x = wide_sample(200_000)
    x = x[x.abs() <= hif8.MAX]
    low, high = rungs_around(x)
    q = quantize_dequantize(x, rounding="stochastic", generator=seeded())
    assert ((q == low) | (q == high)).all()
    assert torch.equal(q[low == high], x[low == high])


@pytest.mark.parametrize("exponent", BINADES)
def test_stochastic_is_unbiased_in_each_binade(exponent: int) -> None:
    generator = seeded(100 + exponent)
    x = torch.rand(NUM_DRAWS, generator=generator).add_(1.0).mul_(2.0**exponent)
    error = quantize_dequantize(x, rounding="stochastic", generator=generator).double() - x
    assert error.mean().abs() <= 4 * error.std() / math.sqrt(NUM_DRAWS)
    assert error.std() > 0


@pytest.mark.parametrize("x", [1.01, -3.9, 200.3, -20_000.0, 2.0**-22 * 1.5, -(2.0**-24), 1e-3, 32_000.0])
def test_stochastic_is_unbiased_at_a_point(x: float) -> None:
    q = quantize_dequantize(torch.full((NUM_DRAWS,), x), rounding="stochastic", generator=seeded(5)).double()
    exact = float(torch.tensor(x))
    assert len(q.unique()) == 2
    assert (q.mean() - exact).abs() <= 4 * q.std() / math.sqrt(NUM_DRAWS)


def test_stochastic_leaves_the_grid_alone() -> None:
    x = FINITE_GRID.repeat(1000)
    for overflow in ("inf", "saturate"):
        q = quantize_dequantize(x, rounding="stochastic", overflow=overflow, generator=seeded())
        assert torch.equal(q, x)


def test_stochastic_repeats_with_the_seed_and_only_with_it() -> None:
    x = torch.randn(10_000, generator=seeded(9))
    runs = [quantize_dequantize(x, rounding="stochastic", generator=seeded(s)) for s in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    torch.manual_seed(3)
    first = quantize_dequantize(x, rounding="stochastic")
    torch.manual_seed(3)
    assert torch.equal(first, quantize_dequantize(x, rounding="stochastic"))
    codes = encode(x, rounding="stochastic", generator=seeded(1))
    assert torch.equal(hif8.decode(codes), runs[0])


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
def test_stochastic_beyond_the_largest_value_does_as_ta(overflow: hif8.Overflow) -> None:
    x = torch.tensor([32768.0, 33000.0, 40959.0, 40960.0, 1e38, math.inf]).repeat(100)
    x = torch.cat([x, -x])
    q = quantize_dequantize(x, rounding="stochastic", overflow=overflow, generator=seeded())
    assert torch.equal(q, hif8.quantize_dequantize(x, overflow=overflow))


def test_float32_denormals_and_signalling_nan() -> None:
    tiny = from_bits([1, 0x80000001, 0x007FFFFF, 0x807FFFFF])
    q = quantize_dequantize(tiny.repeat(1000), rounding="stochastic", generator=seeded())
    assert not q.any() and not torch.signbit(q).any()  # below 2^-126 the chance to rise is under 2^-48 * 2
    signalling = torch.tensor([0x7F800001, -0x7FFFFF], dtype=torch.int32).view(torch.float32)
    for rounding in ("stochastic", "hybrid"):
        assert quantize_dequantize(signalling, rounding=rounding).isnan().all()


# ---- hybrid ------------------------------------------------------------------------------------------


def hybrid_by_words(x: float) -> float:
    """The description, one number at a time, from the decimal value rather than from shifted fields."""
    magnitude = abs(x)
    exponent = math.frexp(magnitude)[1] - 1 if magnitude else -200
    if math.isnan(x) or magnitude >= 40960 or exponent < -23 or abs(exponent) < 4:
        return float(hif8.quantize_dequantize(torch.tensor(x)))
    step = 2.0 ** (exponent - next(b for e, b in ((7, 2), (15, 1), (23, 0)) if abs(exponent) <= e))
    if exponent == -23:
        step = 2.0**-22
    low = math.floor(magnitude / step) * step
    leading = math.floor((magnitude - low) / step * 2**14)
    trailing = int(magnitude / 2.0**exponent * 2**23) % 2**14
    chosen = low + step if leading >= trailing else low
    return math.copysign(math.inf if chosen > 32768 else chosen, x) if chosen else 0.0


def test_hybrid_follows_its_description() -> None:
    exponents = torch.randint(-26, 17, (3000,), generator=seeded(2))
    x = (torch.rand(3000, generator=seeded(3)) + 1) * 2.0**exponents * torch.tensor([1.0, -1.0]).repeat(1500)
    x = torch.cat([x, FINITE_GRID, SPECIALS])
    expected = torch.tensor([hybrid_by_words(v) for v in x.tolist()])
    assert same(quantize_dequantize(x, rounding="hybrid"), expected)


def test_hybrid_moves_values_that_are_on_the_grid_as_its_description_says() -> None:
    x = torch.tensor([1.0, 15.0, 16.0, -16.0, 256.0, 2.0**-22, 32768.0])
    expected = [1.0, 15.0, 20.0, -20.0, 384.0, 2.0**-21]
    assert quantize_dequantize(x, rounding="hybrid").tolist() == [*expected, math.inf]
    assert quantize_dequantize(x, rounding="hybrid", overflow="saturate").tolist() == [*expected, 32768.0]


def test_hybrid_is_nearly_unbiased_on_numbers_with_random_trailing_bits() -> None:
    x = (torch.rand(NUM_DRAWS, generator=seeded(4), dtype=torch.float64) + 1).float() * 32
    error = quantize_dequantize(x, rounding="hybrid").double() - x
    extra = 8.0 * 2.0**-14  # >= instead of >: up once in 2^14 too often, by a step of 8
    assert error.mean().abs() <= extra + 4 * error.std() / math.sqrt(NUM_DRAWS)


# ---- all of them -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ["ta", "stochastic", "hybrid"])
def test_nan_inf_zero_shapes_strides_and_the_input(rounding: Rounding) -> None:
    q = quantize_dequantize(SPECIALS, rounding=rounding)
    assert q[0].isnan() and q[1:7].tolist() == [math.inf, -math.inf, 0, 0, math.inf, -math.inf]
    assert not torch.signbit(q[3:5]).any()
    assert encode(SPECIALS, rounding=rounding)[:4].tolist() == [0x80, 0x6F, 0xEF, 0]
    for shape in ((), (0,), (3, 0, 2), (2, 3, 4)):
        x = torch.randn(shape).requires_grad_()
        out = quantize_dequantize(x, rounding=rounding)
        assert out.shape == x.shape and out.dtype == x.dtype and not out.requires_grad
    x = torch.randn(6, 8)
    before = x.clone()
    generator = (lambda: seeded(1)) if rounding == "stochastic" else (lambda: None)
    strided = quantize_dequantize(x.t(), rounding=rounding, generator=generator())
    assert torch.equal(
        strided, quantize_dequantize(x.t().contiguous(), rounding=rounding, generator=generator())
    )
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_types(dtype: torch.dtype) -> None:
    x = torch.randn(4096, generator=seeded()).to(dtype)
    q = quantize_dequantize(x, rounding="stochastic", generator=seeded(1))
    assert q.dtype == dtype
    assert torch.equal(q.float(), quantize_dequantize(x.float(), rounding="stochastic", generator=seeded(1)))
    with pytest.raises(ValueError, match="trailing bits"):
        quantize_dequantize(x, rounding="hybrid")


def test_bad_arguments_are_refused() -> None:
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="rounding is 'ta', 'stochastic' or 'hybrid', not 'nearest'"):
        quantize_dequantize(x, rounding="nearest")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overflow"):
        quantize_dequantize(x, rounding="stochastic", overflow="wrap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="float32"):
        encode(x.double(), rounding="stochastic")
    for rounding in ("ta", "hybrid"):
        with pytest.raises(ValueError, match="leave out the generator"):
            quantize_dequantize(x, rounding=rounding, generator=seeded())
        with pytest.raises(ValueError, match="leave out the generator"):
            encode(x, rounding=rounding, generator=seeded())
