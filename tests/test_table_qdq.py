"""What makes a quantized step cheap changes no bit: the table that clips and divides as well as rounds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pangu_hif8.fake_quantize import (
    ScaledOverflow,
    num_clipped,
    scaled_quantize_dequantize,
)
from pangu_hif8.hif8_tables import PIECE
from pangu_hif8.quant_config import QuantConfig
from pangu_hif8.quantized_linear import quantize_slot
from pangu_hif8.scaling import ScalingState
from pangu_hif8.table_qdq import suits_table, table_qdq


def patterns() -> Tensor:
    """Both ends of every group of float32 with the same top 14 bits, specials, and random bit patterns."""
    drawn = torch.randint(-(2**31), 2**31, (50_000,), generator=torch.Generator().manual_seed(0))
    tops = torch.arange(2**14, dtype=torch.int64) << 18
    return torch.cat([drawn, tops, tops | 0x3FFFF]).to(torch.int32).view(torch.float32)


def bits(x: Tensor) -> Tensor:
    """Bit patterns, every NaN counted as one."""
    return x.masked_fill(x.isnan(), math.nan).view(torch.int32)


@pytest.mark.parametrize("overflow", ["saturate", "taper"])
@pytest.mark.parametrize("hif8_max", [15.0, 14.5, 0.1, 8.0, 7.9999995, 224.0, 30000.0, 32768.0])
@pytest.mark.parametrize("scale", [1.0, 0.37, 3.0, 2.0**-100, 2.0**100, 1e-42, 0.0, math.inf])
def test_the_table_gives_the_bits_of_the_definition(
    scale: float, hif8_max: float, overflow: ScaledOverflow
) -> None:
    x, by = patterns(), torch.tensor(scale)
    expected = scaled_quantize_dequantize(x, by, hif8_max, overflow)
    assert torch.equal(bits(table_qdq(x, by, hif8_max, overflow)), bits(expected))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (5, 7)])
def test_shapes_strides_and_the_input_stay(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for view in (x, x.mT if x.ndim > 1 else x, x[None].expand(3, *shape)):
        before = view.detach().clone()
        found = table_qdq(view, torch.tensor(2.0), 15.0, "saturate")
        assert found.shape == view.shape and found.is_contiguous() and not found.requires_grad
        assert torch.equal(found, scaled_quantize_dequantize(view, torch.tensor(2.0)))
        assert torch.equal(view, before)


def test_clipped_elements_are_counted_and_nan_is_not() -> None:
    x = torch.tensor([0.5, -7.5, 7.51, -8.0, math.inf, -math.inf, math.nan, 0.0])
    assert num_clipped(x, torch.tensor(2.0), 15.0, "saturate").item() == 4
    assert num_clipped(x, torch.tensor(2.0), 15.0, "taper").item() == 2


def test_a_layer_quantizes_to_the_same_bits_on_either_side_of_the_limit() -> None:
    """Few elements take the table of quotients, more than PIECE the pieces."""
    config = QuantConfig(amax_compute_algo="current")
    for num in (PIECE, PIECE + 1):
        x = torch.randn(num, generator=torch.Generator().manual_seed(0))
        assert suits_table(x) is (num == PIECE)
        state = ScalingState(["0.x.input"], config)
        state.set_mode("quantize")
        expected = scaled_quantize_dequantize(x, torch.tensor(15.0) / x.abs().max())
        assert torch.equal(quantize_slot(state, 0, x, recording=True), expected)
        assert state.amax_now.item() == x.abs().max().item()
