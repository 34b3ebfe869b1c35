"""HiFloat8 (HiF8), the number format alone: encode, decode, quantize-dequantize, constants, limits.

This is the one module that others import. What it stands on: `hif8_codes` defines the 256 codes (Ascend
HiFloat8 Format for Deep Learning, arXiv 2409.16626), `hif8_tables` rounds by looking up what the definition
gives, `rounding` has the roundings other than the format's own, `hif8_info` the description.

    rounding      rule                                                      takes
    "ta"          to nearest, ties away from zero; the format's own         float32, bfloat16, float16
    "stochastic"  up or down by chance, so that the mean is x               float32, bfloat16, float16
    "hybrid"      the format paper's for gradients                          float32

Every HiF8 value is exact in bfloat16, float16 and float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pangu_hif8.hif8_codes import (
    CODE_INF,
    CODE_MAX,
    CODE_NAN,
    MAX,
    OVERFLOW_THRESHOLD,
    SIGN_BIT,
    SMALLEST_NORMAL,
    TINY,
    Overflow,
    decode_code,
    round_to_code,
)
from pangu_hif8.hif8_info import HIF8
from pangu_hif8.hif8_tables import nearest_codes, nearest_values, round_float32, values_of
from pangu_hif8.rounding import Rounding, check_rounding, rounded_values

__all__ = [
    "CODE_INF",
    "CODE_MAX",
    "CODE_NAN",
    "HIF8",
    "MAX",
    "OVERFLOW_THRESHOLD",
    "SIGN_BIT",
    "SMALLEST_NORMAL",
    "TINY",
    "Overflow",
    "Rounding",
    "decode",
    "decode_code",
    "encode",
    "quantize_dequantize",
    "round_float32",
    "round_to_code",
]


def encode(
    x: Tensor,
    *,
    overflow: Overflow = "inf",
    rounding: Rounding = "ta",
    generator: torch.Generator | None = None,
) -> Tensor:
    """uint8 HiF8 codes of x [any shape]; NaN gives 0x80, zero of either sign 0x00.

    The arguments and errors are `quantize_dequantize`'s: decode(encode(x, ...)) has its bits.
    """
    check_rounding(rounding, x.dtype, generator)
    if rounding != "ta":
        x = rounded_values(x.detach(), rounding, overflow, generator)
    return nearest_codes(x.detach(), overflow)


def decode(codes: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Values [same shape] of uint8 HiF8 codes, exact in float32, bfloat16 and float16."""
    if codes.dtype != torch.uint8:
        raise ValueError(f"HiF8 codes are uint8, not {codes.dtype}")
    return values_of(codes, dtype)


def quantize_dequantize(
    x: Tensor,
    *,
    overflow: Overflow = "inf",
    rounding: Rounding = "ta",
    generator: torch.Generator | None = None,
) -> Tensor:
    """x [any shape] rounded to HiF8 and back, in x's own shape and dtype.

    `overflow`: from abs(x) = 40960 on, "inf" gives +-Inf and "saturate" +-32768. NaN stays NaN and touches
    nothing else. `generator`, on x's device, makes "stochastic" reproducible: the same seed gives the same
    bits; without it torch's global generator draws. ValueError for an unknown name, for a dtype that the
    rounding doesn't take (float64 would be rounded twice), and for a generator that would not be used.
    No gradient flows here; see `fake_quantize` for the straight-through estimator.
    """
    check_rounding(rounding, x.dtype, generator)
    if rounding != "ta":
        return rounded_values(x.detach(), rounding, overflow, generator)
    return nearest_values(x.detach(), overflow)
