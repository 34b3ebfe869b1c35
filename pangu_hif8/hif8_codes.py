"""HiFloat8 (HiF8) by definition: what its 256 codes mean and how a number is rounded; without torch.

Source: Ascend HiFloat8 Format for Deep Learning, arXiv 2409.16626. A code has, from the top bit, a sign, a
prefix code (the dot) that says how many exponent bits D follow, the exponent as sign and magnitude with a
hidden leading 1, and the mantissa in what is left:

    dot   11    10    01    001   0001   0000
    D      4     3     2     1      0    denormal: 2^(M-23), M = 1..7

So precision tapers: 3 mantissa bits for abs(E) <= 3, 2 up to abs(E) = 7, 1 up to abs(E) = 15.
Rounding is TA, to nearest with ties away from zero. It looks at no bit below the fourth mantissa bit, so
the top 13 bits of a float32, its prefix, decide the result (NaN against Inf aside).
Everything that `hif8_tables` looks up is computed here, slowly; `hif8` is what other modules import.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from functools import cache
from typing import Literal

Overflow = Literal["inf", "saturate"]

MAX = 32768.0  # code 0x6E
SMALLEST_NORMAL = 2.0**-15  # code 0x7E
TINY = 2.0**-22  # code 0x01, the smallest denormal
OVERFLOW_THRESHOLD = 40960.0  # from here on a value rounds to Inf; below it, to 32768
CODE_NAN, CODE_INF, CODE_MAX, SIGN_BIT = 0x80, 0x6F, 0x6E, 0x80
PREFIX_SHIFT, NUM_PREFIXES = 19, 8192  # a float32's top 13 bits
_DOTS = ((0b11, 2, 4), (0b10, 2, 3), (0b01, 2, 2), (0b001, 3, 1), (0b0001, 4, 0))


def decode_code(code: int) -> float:
    """The value of one code, 0..255, from the fields of the format. Codes 0x80, 0x6F, 0xEF are special."""
    if code in (0x00, CODE_NAN):
        return 0.0 if code == 0 else float("nan")
    sign, body = (-1.0 if code & SIGN_BIT else 1.0), code & 0x7F
    if body == CODE_INF:
        return sign * float("inf")
    for dot, width, num_exponent_bits in _DOTS:
        if body >> (7 - width) == dot:
            return sign * _normal(body, 7 - width, num_exponent_bits)
    return sign * 2.0 ** ((body & 0x07) - 23)


def _normal(body: int, num_bits_left: int, num_exponent_bits: int) -> float:
    num_mantissa_bits = num_bits_left - num_exponent_bits
    field = (body >> num_mantissa_bits) & ((1 << num_exponent_bits) - 1)
    mantissa = body & ((1 << num_mantissa_bits) - 1)
    exponent = 0
    if num_exponent_bits:
        hidden_one = 1 << (num_exponent_bits - 1)
        magnitude = hidden_one | (field & (hidden_one - 1))
        exponent = -magnitude if field & hidden_one else magnitude
    return 2.0**exponent * (1 + mantissa / (1 << num_mantissa_bits))


def round_to_code(x: float, overflow: Overflow = "inf") -> int:
    """The code of one number by definition: nearest, ties away from zero. Slow; it builds the table."""
    if x != x:
        return CODE_NAN
    sign, magnitude = (SIGN_BIT if x < 0 else 0), abs(x)
    if magnitude >= OVERFLOW_THRESHOLD:
        return sign | (CODE_INF if overflow == "inf" else CODE_MAX)
    codes, thresholds = _ladder()
    body = codes[bisect_right(thresholds, magnitude)]
    return sign | body if body else 0


@cache
def _ladder() -> tuple[list[int], list[float]]:
    """The finite non-negative codes by rising value, and the midpoints between neighbours."""
    rungs = sorted((decode_code(code), code) for code in range(0x80) if code != CODE_INF)
    values = [value for value, _ in rungs]
    midpoints = [(low + high) / 2 for low, high in zip(values, values[1:], strict=False)]
    return [code for _, code in rungs], midpoints


@cache
def prefix_codes(overflow: Overflow) -> tuple[int, ...]:
    """The code for each value of a float32's top 13 bits (of a NaN, they can be Inf's)."""
    patterns = (prefix << PREFIX_SHIFT for prefix in range(NUM_PREFIXES))
    return tuple(
        round_to_code(struct.unpack("<f", struct.pack("<I", bits))[0], overflow) for bits in patterns
    )
