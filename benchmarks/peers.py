"""Other ways to quantize a block's linears: the format written out in torch ops, torchao's float8."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast
from unittest import mock

from format_speed import written_out
from torch import Tensor, nn

from pangu_hif8 import quantized_linear
from pangu_hif8.amax import tensor_to_amax

MLP = ("gate_proj", "up_proj", "down_proj")


def torchao_linear(linear: nn.Linear) -> nn.Module:
    """torchao's fake-quantized linear: input and weight, a scale for each. ImportError where it is absent."""
    qat: Any = importlib.import_module("torchao.quantization.qat")
    granularity = importlib.import_module("torchao.quantization.granularity").PerTensor()
    config = qat.Float8FakeQuantizeConfig(granularity=granularity)
    return cast(nn.Module, qat.FakeQuantizedLinear.from_linear(linear, config, config))


def replace_linears(block: nn.Module, peer: Callable[[nn.Linear], nn.Module]) -> None:
    """A peer's linears in the places of those that HiF8 quantizes."""
    layers: Any = block.model
    for layer in layers.layers:
        for name in MLP:
            setattr(layer.mlp, name, peer(getattr(layer.mlp, name)))


def writing_out() -> AbstractContextManager[Any]:
    """The same layer with the format as its definition reads, in float32, as simulators have it."""

    def qdq(x: Tensor, scale: Tensor, settings: Any, with_amax: bool) -> tuple[Tensor, Tensor | None]:
        scaled = (x.detach().float() * scale).clamp(-settings.hif8_max, settings.hif8_max)
        return (written_out(scaled) / scale).to(x.dtype), tensor_to_amax(x) if with_amax else None

    return mock.patch.object(quantized_linear, "_qdq", qdq)
