"""The bits of `fake_quantize.scaled_quantize_dequantize` from fewer passes over memory, in eager ops.

A CPU quantizes here, one layer at a time. The table of 8,192 HiF8 values, indexed by a float32's top 13 bits,
takes over what would be passes of their own:

clip      Rounding is monotonic and decided by those 13 bits, so that rounding after a clip gives what the
          entry of the smaller of the two indices does: the entries beyond the limit hold the limit's value.
division  The quotients are those of the 8,192 entries, made once for each call.

What is left is one product, a shift and a mask in its memory, and the look-up. A tensor beyond PIECE elements
is better walked through in pieces, as `fused` does; one of 16 bits has a table of its own there.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from pangu_hif8.fake_quantize import ScaledOverflow, scaled_quantize_dequantize
from pangu_hif8.hif8_codes import NUM_PREFIXES, PREFIX_SHIFT
from pangu_hif8.hif8_tables import PIECE


def suits_table(x: Tensor) -> bool:
    """Whether `table_qdq` is the fastest way for x."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() <= PIECE


def table_qdq(x: Tensor, scale: Tensor, hif8_max: float, overflow: ScaledOverflow) -> Tensor:
    """x_q [shape and dtype of x] at a float32 scalar scale; contiguous, without a gradient."""
    table = _clipped_values(hif8_max, overflow, x.device) / scale
    scaled = x.detach().contiguous().to(torch.float32) * scale  # new memory, and every NaN is quiet
    index = scaled.view(torch.int32).bitwise_right_shift_(PREFIX_SHIFT).bitwise_and_(NUM_PREFIXES - 1)
    return table.index_select(0, index.view(-1)).view(x.shape).to(x.dtype)


@cache
def _clipped_values(hif8_max: float, overflow: ScaledOverflow, device: torch.device) -> Tensor:
    """What every float32 with the same top 13 bits becomes at scale 1; index: those bits, as unsigned."""
    first = (torch.arange(NUM_PREFIXES, dtype=torch.int32, device=device) << PREFIX_SHIFT).view(torch.float32)
    return scaled_quantize_dequantize(first, torch.ones((), device=device), hif8_max, overflow)
