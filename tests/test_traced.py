"""HiF8 as bare arithmetic (inside torch.compile) is bit for bit HiF8 by table and by its own kernel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pangu_hif8.fake_quantize import ScaledOverflow, scaled_quantize_dequantize
from pangu_hif8.fused import scaled_qdq
from pangu_hif8.traced import traced_qdq

OVERFLOWS: list[ScaledOverflow] = ["saturate", "taper"]
SCALES = (1.0, 0.3, 2.0**-20, 7.7e19, 3.4028235e38)


def bits(x: Tensor) -> Tensor:
    """With all NaN alike: which of its patterns one has is promised nowhere."""
    integers = torch.int32 if x.dtype == torch.float32 else torch.int16
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x).view(integers)


def agree(x: Tensor, scale: float, hif8_max: float, overflow: ScaledOverflow) -> None:
    factor = torch.tensor(scale)
    found = traced_qdq(x, factor, hif8_max, overflow)
    assert found.dtype == x.dtype
    assert torch.equal(found.isnan(), x.isnan())
    assert torch.equal(bits(found), bits(scaled_qdq(x, factor, hif8_max, overflow, compiled=False)))
    assert torch.equal(bits(found), bits(scaled_quantize_dequantize(x, factor, hif8_max, overflow)))


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("hif8_max", [15.0, 224.0, 32768.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_patterns_of_a_16_bit_type(
    dtype: torch.dtype, scale: float, hif8_max: float, overflow: ScaledOverflow
) -> None:
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    assert len(every) == 65536
    agree(every, scale, hif8_max, overflow)


def wide_sample() -> Tensor:
    """float32 patterns of every exponent, those around each bfloat16 value, and what is special."""
    random = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0))
    upper = torch.arange(-(2**15), 2**15) << 16
    near = torch.cat([upper, upper + 1, upper - 1, upper + 0x8000, upper + 0x7FFF])
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-45]).view(torch.int32)
    signalling = torch.tensor([0x7F800001])
    return torch.cat([t.to(torch.int32) for t in (random, near, special, signalling)]).view(torch.float32)


@pytest.mark.parametrize("overflow", OVERFLOWS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_wide_sample_of_float32(scale: float, overflow: ScaledOverflow) -> None:
    agree(wide_sample(), scale, 15.0, overflow)


def test_its_gradient_is_the_caller_s_affair() -> None:
    x = torch.ones(3, requires_grad=True)
    assert not traced_qdq(x, torch.tensor(2.0), 15.0, "saturate").requires_grad
