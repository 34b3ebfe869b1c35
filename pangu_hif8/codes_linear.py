"""A linear layer that keeps its weight as 8-bit HiF8 codes: what an exported checkpoint is loaded into.

The codes are decoded anew in every forward pass: the weight stays at one byte a value, which is what the
format is for, and one layer's float weight exists at a time. On one CPU thread, for a linear of 576 by 1536,
decoding takes 1% of the matmul's time for 3,200 tokens, as long as it for 32, and ten times as long for one.
The values are the frozen fake-quantized layer's, bit for bit: decode(codes) / scale is its own division.

The layer is for inference. A gradient flows through it to its input, straight through as in training; the
codes have none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pangu_hif8.amax import amax_to_scale, tensor_to_amax
from pangu_hif8.fake_quantize import ScaledOverflow, scaled_quantize_dequantize, straight_through
from pangu_hif8.hif8 import decode, encode


def weight_codes(weight: Tensor, scale: Tensor, hif8_max: float, overflow: ScaledOverflow) -> Tensor:
    """uint8 codes of weight * scale [same shape]; decode(codes) / scale is `scaled_quantize_dequantize`'s."""
    scaled = weight.detach().to(torch.float32) * scale
    if overflow == "saturate":
        scaled.clamp_(-hif8_max, hif8_max)
    return encode(scaled, overflow="saturate")


class HiF8CodesLinear(nn.Module):
    """y = x_q @ w_q.T + bias, with w_q = decode(weight_codes) / weight_scale and x_q as in training.

    Buffers: weight_codes uint8 [out, in]; weight_scale and input_scale float32 scalars. input_scale is None
    for current scaling: each input is then scaled by its own amax.
    """

    weight_codes: Tensor
    weight_scale: Tensor
    input_scale: Tensor | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        current: bool,
        hif8_max: float,
        overflow: ScaledOverflow,
        margin: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.hif8_max, self.overflow, self.margin = hif8_max, overflow, margin
        one = torch.ones((), dtype=torch.float32)
        self.register_buffer("weight_codes", torch.zeros(out_features, in_features, dtype=torch.uint8))
        self.register_buffer("weight_scale", one)
        self.register_buffer("input_scale", None if current else one.clone())
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features)) if bias else None)

    def forward(self, input: Tensor) -> Tensor:
        """input [..., in_features] to [..., out_features]."""
        scale = self.input_scale
        if scale is None:
            scale = amax_to_scale(tensor_to_amax(input) * 2.0**self.margin, self.hif8_max)
        quantized = scaled_quantize_dequantize(input, scale, self.hif8_max, self.overflow)
        return F.linear(straight_through(input, quantized), self.dequantize(input.dtype), self.bias)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight [out, in] that the codes stand for."""
        return decode(self.weight_codes).div_(self.weight_scale).to(dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> HiF8CodesLinear:
        """Moves go through; a cast of the whole model (`.half()`) leaves the scales exact, in float32."""
        before = {name: cast(Any, getattr(self, name)) for name in ("weight_scale", "input_scale")}
        super()._apply(fn, recurse)
        for name, scale in before.items():
            now = getattr(self, name)
            if now is not None and now.dtype != torch.float32:
                setattr(self, name, scale.to(now.device))
        return self

    def extra_repr(self) -> str:
        """What print(model) shows of it."""
        inputs = "current" if self.input_scale is None else "frozen"
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, input_scale={inputs}, hif8_max={self.hif8_max:g}"
