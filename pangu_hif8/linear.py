"""HiF8Linear, and which linears of a model become one.

The paper quantizes weight and input of gate_proj, up_proj and down_proj in the middle blocks; attention,
embeddings, norms, lm_head, the first 3 and the last 2 blocks stay in high precision.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pangu_hif8.amax import tensor_to_amax
from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.fake_quantize import scaled_quantize_dequantize, straight_through
from pangu_hif8.scaling import ScalingState

QUANTIZED_LAYERS = ("gate_proj", "up_proj", "down_proj")


class HiF8Linear(nn.Linear):
    """nn.Linear whose input and weight pass through HiF8 as the shared ScalingState's mode says."""

    state: ScalingState
    input_slot: int
    weight_slot: int
    _cache: tuple[tuple[int, int, int, bool], Tensor] | None = None

    @classmethod
    def from_float(cls, linear: nn.Linear, state: ScalingState, input_slot: int) -> HiF8Linear:
        """The same layer, sharing `linear`'s parameters; its weight's slot follows its input's."""
        with torch.device("meta"):
            new = cls(linear.in_features, linear.out_features, linear.bias is not None)
        new.weight, new.bias = linear.weight, linear.bias
        new.state, new.input_slot, new.weight_slot = state, input_slot, input_slot + 1
        return new.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """input [..., in_features] to [..., out_features]."""
        if self.state.mode == "off":
            return F.linear(input, self.weight, self.bias)
        if self.state.mode == "calibrate":
            self._record(self.input_slot, input)
            self._record(self.weight_slot, self.weight)
            return F.linear(input, self.weight, self.bias)
        return F.linear(
            straight_through(input, self._quantize(self.input_slot, input)),
            straight_through(self.weight, self._quantized_weight()),
            self.bias,
        )

    def _record(self, slot: int, x: Tensor) -> None:
        if self.state.recording:
            self.state.record(slot, tensor_to_amax(x))

    def _quantize(self, slot: int, x: Tensor) -> Tensor:
        state, config = self.state, self.state.config
        amax = tensor_to_amax(x)
        if state.recording:
            state.record(slot, amax)
        return scaled_quantize_dequantize(x, state.scale_for(slot, amax), config.hif8_max, config.overflow)

    def _quantized_weight(self) -> Tensor:
        """Quantized once per optimizer step (and once in all when frozen), not once per micro-batch."""
        # A pass that records must not reuse what one that doesn't (no_grad) left: its amax would be lost.
        version, place = self.weight._version, self.weight.data_ptr()
        key = (self.state.generation, version, place, self.state.recording)
        if self._cache is None or self._cache[0] != key:
            self._cache = (key, self._quantize(self.weight_slot, self.weight))
        return self._cache[1]


def decoder_blocks(model: nn.Module) -> nn.ModuleList:
    """The list of transformer blocks of a Llama-like model (`model.model.layers`)."""
    blocks = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(blocks, nn.ModuleList):
        raise UserError(f"{type(model).__name__} has no model.layers; only Llama-like models are supported")
    return blocks


def quantized_block_range(num_blocks: int, num_first_hp: int, num_last_hp: int) -> range:
    """Indices of the blocks to quantize. Raises UserError when none is left."""
    chosen = range(num_first_hp, num_blocks - num_last_hp)
    if not chosen:
        raise UserError(
            f"{num_blocks} blocks less {num_first_hp} first and {num_last_hp} last leave none to quantize"
        )
    return chosen


def prepare_qat(model: nn.Module, config: QuantConfig, num_first_hp: int, num_last_hp: int) -> ScalingState:
    """Replace the MLP linears of the middle blocks in place; returns their ScalingState, mode "off".

    Raises UserError when there is nothing to convert, or when a weight is tied to another module.
    """
    blocks = decoder_blocks(model)
    chosen = quantized_block_range(len(blocks), num_first_hp, num_last_hp)
    layers = [(index, name) for index in chosen for name in QUANTIZED_LAYERS]
    names = [f"{index}.{name}.{kind}" for index, name in layers for kind in ("input", "weight")]
    first = next(model.parameters())
    state = ScalingState(names, config, first.device)
    for number, (index, name) in enumerate(layers):
        mlp = cast(nn.Module, getattr(blocks[index], "mlp", None))
        linear = getattr(mlp, name, None)
        if type(linear) is not nn.Linear:
            raise UserError(f"block {index} has no plain linear mlp.{name}; found {type(linear).__name__}")
        setattr(mlp, name, HiF8Linear.from_float(linear, state, 2 * number))
    _refuse_tied(model)
    return state


def converted_linears(model: nn.Module) -> list[str]:
    """Full names of the model's HiF8Linear modules."""
    return [name for name, module in model.named_modules() if isinstance(module, HiF8Linear)]


def _refuse_tied(model: nn.Module) -> None:
    owners: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor):
            owners.setdefault(id(weight), []).append(name)
    converted = set(converted_linears(model))
    for names in owners.values():
        if len(names) > 1 and converted & set(names):
            raise UserError(f"{' and '.join(names)} share one weight; a tied weight can't be quantized alone")
