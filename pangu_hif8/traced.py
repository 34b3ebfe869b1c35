"""HiF8 as bare arithmetic, for torch.compile of a whole model to join with what stands before and after."""

from __future__ import annotations

import torch
from torch import Tensor

from pangu_hif8.fake_quantize import ScaledOverflow
from pangu_hif8.fused import qdq_bits
from pangu_hif8.hif8 import MAX


def traced_qdq(x: Tensor, scale: Tensor, hif8_max: float, overflow: ScaledOverflow) -> Tensor:
    """x_q [shape and dtype of x], bit for bit `fake_quantize.scaled_quantize_dequantize`."""
    limit = min(hif8_max, MAX) if overflow == "saturate" else MAX
    scaled = (x.detach().to(torch.float32) * scale).clamp(-limit, limit)  # NaN passes
    return qdq_bits(scaled.view(torch.int32), scale).to(x.dtype)
