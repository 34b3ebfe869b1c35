"""Fake quantization with a straight-through gradient: x_q = hif8(clip(x * scale)) / scale, d x_q / d x = 1.

The gradient ignores both the rounding and the clip, as the paper's does: that is how saturation harms
training unseen (arXiv 2605.26189). Arithmetic is float32 for every input type; the result has x's type.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from pangu_hif8.hif8 import MAX, round_float32

ScaledOverflow = Literal["saturate", "taper"]


def scaled_quantize_dequantize(
    x: Tensor, scale: Tensor, hif8_max: float = 15.0, overflow: ScaledOverflow = "saturate"
) -> Tensor:
    """x [any shape] through HiF8 at a per-tensor scale (float32 scalar), in x's shape and dtype.

    `overflow="saturate"` clips at +-hif8_max before rounding (the paper's text); "taper" lets HiF8 go on
    to 32768 with fewer mantissa bits (the published code). NaN stays NaN.
    """
    scaled = x.detach().to(torch.float32) * scale  # arithmetic quiets every NaN, as round_float32 needs
    if overflow == "saturate":
        scaled.clamp_(-hif8_max, hif8_max)
    return round_float32(scaled, overflow="saturate").div_(scale).to(x.dtype)


def num_clipped(x: Tensor, scale: Tensor, hif8_max: float, overflow: ScaledOverflow) -> Tensor:
    """How many elements of x lie beyond the limit at that scale: int64 scalar. NaN is not counted.

    A tensor scaled by its own amax has none: what two roundings (of scale and product) add is allowed for.
    """
    limit = (min(hif8_max, MAX) if overflow == "saturate" else MAX) * (1 + 2.0**-22)
    beyond = (x.detach().float() * scale).abs_().gt_(limit)  # as 0 and 1 in float32: faster than as bool
    return torch.count_nonzero(beyond)


class _StraightThrough(torch.autograd.Function):
    """Takes the value of `quantized` and the gradient of `x`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quantized: Tensor) -> Tensor:
        return quantized.view_as(quantized)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def straight_through(x: Tensor, quantized: Tensor) -> Tensor:
    """`quantized` in the forward pass, identity from it to x in the backward pass. Same shape and dtype."""
    out: Tensor = _StraightThrough.apply(x, quantized)
    return out
