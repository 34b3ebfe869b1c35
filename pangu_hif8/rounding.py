"""Stochastic and hybrid rounding to HiF8, which `hif8.encode` and `hif8.quantize_dequantize` take by name.

A rounding chooses between the two HiF8 values around x. Those are found in the bits: the exponent field says
how many mantissa bits the binade keeps (3, 2, 1, or none for denormals), cutting the rest off gives the
neighbour nearer zero, one unit of the last kept bit more gives the other. Below 2^-22 they are 0 and 2^-22.

ta          the format's own: nearest, ties away from zero (`hif8_tables`).
stochastic  away from zero with the probability (abs(x) - low) / (high - low), so that the mean over draws
            is x. The probability is compared exactly, in units of 2^-48; only below abs(x) = 2^-47, where it
            no longer fits, is it rounded up to the next unit (the mean is then off by less than 2^-70).
            A value on the grid never moves. Beyond the largest finite value, 32768, there is no second
            neighbour to weigh, so TA's rule holds: 32768 below 40960, `overflow` from there on.
hybrid      the format paper's (arXiv 2409.16626), optional there and for the backward pass only (its
            language-model experiments used TA alone): for a float32, TA where abs(E) < 4, elsewhere
            away from zero when the 14 leading discarded bits reach a threshold, the 14 trailing bits of
            the mantissa. "Reach" means >=, so that a value on the grid, whose discarded and trailing bits
            are all zero, moves away from zero by one step, and 32768 overflows. This is implemented as
            written; it's no rounding for values that may be rounded twice. Two points that the description
            leaves open are settled here as TA does: abs(x) < 2^-23 gives 0, and between 2^-23 and 2^-22,
            where 0 is the lower neighbour, the hidden one leads the discarded bits.
            It needs the trailing bits of a float32; a bfloat16's are zero there, which would round
            everything away from zero. So other types are refused.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from pangu_hif8.hif8_codes import TINY, Overflow
from pangu_hif8.hif8_tables import nearest_values

Rounding = Literal["ta", "stochastic", "hybrid"]

_SIGN, _MAGNITUDE, _MANTISSA = -(2**31), 2**31 - 1, 2**23 - 1  # of a float32's bits, as int32
_BIAS, _NUM_MANTISSA_BITS = 127, 23
_TINY_BITS = (_BIAS - 22) << _NUM_MANTISSA_BITS  # 2^-22, the smallest HiF8 value
_HALF_TINY_BITS = (_BIAS - 23) << _NUM_MANTISSA_BITS
_MAX_BITS = (_BIAS + 15) << _NUM_MANTISSA_BITS  # 32768
_OVERFLOW_BITS = _MAX_BITS + (1 << 21)  # 40960 = 1.25 * 32768
_DRAW = 2**24  # stochastic rounding draws two digits to this base
_NUM_HYBRID_BITS = 14


class _Neighbours(NamedTuple):
    """The two HiF8 values around abs(x) and what lies between, all as float32 bits in int32 [shape of x].

    `discarded` are the bits that `low` cuts off, the first of them worth half a step, in `num_discarded`
    bits. It has a meaning where low is a HiF8 value other than 0.
    """

    magnitude: Tensor
    low: Tensor
    high: Tensor
    discarded: Tensor
    num_discarded: Tensor


def check_rounding(rounding: Rounding, dtype: torch.dtype, generator: torch.Generator | None) -> None:
    """ValueError for an unknown name, an idle generator, or "hybrid" of anything but float32."""
    if rounding not in get_args(Rounding):
        raise ValueError(f"rounding is 'ta', 'stochastic' or 'hybrid', not {rounding!r}")
    if generator is not None and rounding != "stochastic":
        raise ValueError(f"rounding {rounding!r} draws nothing; leave out the generator")
    if rounding == "hybrid" and dtype != torch.float32:
        raise ValueError(f"hybrid rounding reads the trailing bits of a float32, which {dtype} does not have")


def rounded_values(
    x: Tensor, rounding: Rounding, overflow: Overflow, generator: torch.Generator | None
) -> Tensor:
    """x [any shape, without a gradient] by "stochastic" or "hybrid", in x's dtype; NaN stays NaN."""
    nearest = nearest_values(x, overflow)  # refuses types and overflows that are unknown
    if rounding == "stochastic":
        return _stochastic(x.float(), nearest.float(), generator).to(x.dtype)
    return _hybrid(x, nearest, overflow)


def _neighbours(x: Tensor) -> _Neighbours:
    magnitude = x.contiguous().view(torch.int32) & _MAGNITUDE
    exponent = ((magnitude >> _NUM_MANTISSA_BITS) - _BIAS).abs_()
    num_discarded = 20 + (exponent > 3).int() + (exponent > 7).int() + (exponent > 15).int()
    step = torch.ones_like(magnitude) << num_discarded
    discarded = magnitude & (step - 1)
    below_tiny = magnitude < _TINY_BITS
    low = (magnitude - discarded).masked_fill_(below_tiny, 0)
    high = (magnitude - discarded + step).masked_fill_(below_tiny, _TINY_BITS)
    return _Neighbours(magnitude, low, high, discarded, num_discarded)


def _with_sign(magnitude: Tensor, x: Tensor) -> Tensor:
    """float32 of the chosen bits with x's sign; HiF8's only zero is positive."""
    sign = x.contiguous().view(torch.int32) & _SIGN
    return torch.where(magnitude == 0, magnitude, magnitude | sign).view(torch.float32)


def _stochastic(x: Tensor, nearest: Tensor, generator: torch.Generator | None) -> Tensor:
    near = _neighbours(x)
    in_tiny = x.abs().clamp(max=TINY) * (_DRAW / TINY)  # for low = 0; a power of two: exact
    first = torch.where(near.low == 0, in_tiny.int(), near.discarded << (24 - near.num_discarded))
    second = torch.where(near.low == 0, in_tiny.frac() * _DRAW, 0.0)
    draws = [
        torch.randint(_DRAW, x.shape, generator=generator, device=x.device, dtype=torch.int32)
        for _ in range(2)
    ]
    away = (draws[0] < first) | ((draws[0] == first) & (draws[1] < second))
    chosen = _with_sign(torch.where(away, near.high, near.low), x)
    return torch.where(near.magnitude < _MAX_BITS, chosen, nearest)


def _hybrid(x: Tensor, nearest: Tensor, overflow: Overflow) -> Tensor:
    near = _neighbours(x)
    leading = near.discarded >> (near.num_discarded - _NUM_HYBRID_BITS)
    hidden_one = (1 << (_NUM_HYBRID_BITS - 1)) | ((near.magnitude & _MANTISSA) >> 10)
    leading = torch.where(near.low == 0, hidden_one, leading)
    threshold = near.magnitude & ((1 << _NUM_HYBRID_BITS) - 1)
    chosen = _with_sign(torch.where(leading >= threshold, near.high, near.low), x)
    chosen = nearest_values(chosen, overflow)  # one step above 32768 overflows
    exponent = (near.magnitude >> _NUM_MANTISSA_BITS) - _BIAS
    inside = (near.magnitude >= _HALF_TINY_BITS) & (near.magnitude < _OVERFLOW_BITS)
    return torch.where(inside & (exponent.abs() >= 4), chosen, nearest)
