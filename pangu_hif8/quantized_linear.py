"""HiF8Linear, a linear layer whose operands pass through HiF8 as the shared ScalingState's mode says.

A weight is quantized once per optimizer step for all its micro-batches, and once in all when frozen.
An input that two layers share (gate_proj and up_proj) is quantized once. Under autocast the operands are cast
first, so that what is recorded is the amax of what is quantized.

Inside torch.compile the layer is plain arithmetic without caches: `ScalingState.weights_ready` says that
`refresh_weights` was called since the last update. Where it was not, tracing the layer fails and torch runs
it uncompiled, so that a stale weight is never used.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pangu_hif8.amax import tensor_to_amax
from pangu_hif8.errors import UserError
from pangu_hif8.fake_quantize import num_clipped, straight_through
from pangu_hif8.fused import scaled_qdq, scaled_qdq_amax
from pangu_hif8.quant_config import TensorConfig
from pangu_hif8.scaling import ScalingState
from pangu_hif8.table_qdq import suits_table, table_qdq
from pangu_hif8.traced import traced_qdq

NOT_READY = "a compiled model needs refresh_weights(model) after each optimizer step and change of mode"


class HiF8Linear(nn.Linear):
    """nn.Linear with quantized input and weight, and gradient where the config says so."""

    state: ScalingState
    input_slot: int
    weight_slot: int
    gradient_slot: int | None
    shared: SharedInput | None = None
    quantized_weight: Tensor | None = None
    _weight_key: tuple[int, int, int, bool, torch.dtype | None] | None = None

    @classmethod
    def from_float(
        cls,
        linear: nn.Linear,
        state: ScalingState,
        input_slot: int,
        weight_slot: int | None = None,
        gradient_slot: int | None = None,
    ) -> HiF8Linear:
        """The same layer, sharing `linear`'s parameters; its weight's slot follows its input's by default."""
        with torch.device("meta"):
            new = cls(linear.in_features, linear.out_features, linear.bias is not None)
        new.weight, new.bias = linear.weight, linear.bias
        new.state, new.input_slot, new.gradient_slot = state, input_slot, gradient_slot
        new.weight_slot = input_slot + 1 if weight_slot is None else weight_slot
        return new.train(linear.training)

    def forward(self, input: Tensor) -> Tensor:
        """input [..., in_features] to [..., out_features]."""
        if self.state.mode == "off":
            return F.linear(input, self.weight, self.bias)
        x = _as_autocast(input)
        x_q, w_q = self._input(input, x), self._weight()
        if self.state.mode == "calibrate":
            return self._gradient(F.linear(x, self.weight, self.bias))
        assert w_q is not None
        out = F.linear(straight_through(x, x_q), straight_through(self.weight, w_q), self.bias)
        return self._gradient(out)

    def _gradient(self, out: Tensor) -> Tensor:
        if self.gradient_slot is None or not self.state.recording:
            return out
        quantized: Tensor = _QuantizedGradient.apply(out, self.state, self.gradient_slot)
        return quantized

    def _input(self, input: Tensor, x: Tensor) -> Tensor:
        if self.shared is None or torch.compiler.is_compiling():
            return self._pass(self.input_slot, x)
        return self.shared.get(input, x, self)

    def _pass(self, slot: int, x: Tensor) -> Tensor:
        """Record as the mode says; the quantized tensor, or x itself in mode "calibrate"."""
        if self.state.mode != "calibrate":
            return quantize_slot(self.state, slot, x, self.state.recording)
        if self.state.recording:
            self.state.record(slot, tensor_to_amax(x))
        return x

    def _weight(self) -> Tensor | None:
        if torch.compiler.is_compiling():
            if not self.state.weights_ready:
                raise UserError(NOT_READY)
            return self.quantized_weight
        # A pass that records must not reuse what one that doesn't (no_grad) left: its amax would be lost.
        version, place = self.weight._version, self.weight.data_ptr()
        key = (self.state.generation, version, place, self.state.recording, _autocast_dtype(self.weight))
        if self._weight_key == key and self.state.cache_weights:
            return self.quantized_weight
        found = self._pass(self.weight_slot, _as_autocast(self.weight.detach()))
        quantized = None if self.state.mode == "calibrate" else found
        self._weight_key, self.quantized_weight = key, quantized if self.state.cache_weights else None
        return quantized


def quantize_slot(state: ScalingState, slot: int, x: Tensor, recording: bool) -> Tensor:
    """x [any shape] through HiF8 at its slot's scale; its amax is recorded on the way when `recording`."""
    settings = state.slot_settings[slot]
    amax = None if state.knows_scale(slot) else tensor_to_amax(x)
    scale = state.scale_for(slot, amax)
    x_q, found = _qdq(x, scale, settings, with_amax=recording and amax is None)
    amax = found if amax is None else amax
    if recording:
        assert amax is not None
        state.record(slot, amax)
        if state.sampling:
            state.stats.add(
                slot, x.detach(), x_q, num_clipped(x, scale, settings.hif8_max, settings.overflow)
            )
    return x_q


def _qdq(x: Tensor, scale: Tensor, settings: TensorConfig, with_amax: bool) -> tuple[Tensor, Tensor | None]:
    """x_q, and x's amax where asked for, in the way that is fastest here; all give the same bits."""
    limits = (settings.hif8_max, settings.overflow)
    if torch.compiler.is_compiling():
        return traced_qdq(x, scale, *limits), tensor_to_amax(x) if with_amax else None
    if suits_table(x):
        return table_qdq(x, scale, *limits), tensor_to_amax(x) if with_amax else None
    if with_amax:
        return scaled_qdq_amax(x, scale, *limits, compiled=_compiles(x))[:2]
    return scaled_qdq(x, scale, *limits, compiled=_compiles(x)), None


class _QuantizedGradient(torch.autograd.Function):
    """Identity forward; backward, the gradient of a linear's output passes through HiF8 (published code)."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, state: ScalingState, slot: int) -> Tensor:
        ctx.state, ctx.slot, ctx.quantized = state, slot, state.mode == "quantize"
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if ctx.quantized:
            return quantize_slot(ctx.state, ctx.slot, grads[0], recording=True), None, None
        ctx.state.record(ctx.slot, tensor_to_amax(grads[0]))
        return grads[0], None, None


def _compiles(x: Tensor) -> bool:
    """On a CPU the compiled kernel's gain for one layer is less than what making it costs a run."""
    return x.device.type != "cpu"


def _autocast_dtype(x: Tensor) -> torch.dtype | None:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


def _as_autocast(x: Tensor) -> Tensor:
    dtype = _autocast_dtype(x)
    return x if dtype is None else x.to(dtype)


class SharedInput:
    """Hands what the first of two layers made of their input to the second, and keeps it no longer."""

    def __init__(self) -> None:
        self._source: weakref.ref[Tensor] | None = None
        self._key: tuple[int, int, bool] | None = None
        self._made: Tensor | None = None

    def get(self, input: Tensor, x: Tensor, layer: HiF8Linear) -> Tensor:
        """`input`, cast to x, as `layer` passes it; or what the other layer just made of the same."""
        key = (input._version, layer.state.generation, layer.state.recording)
        source, made = self._source, self._made
        self._source = self._made = None
        if made is not None and source is not None and source() is input and self._key == key:
            return made
        made = layer._pass(layer.input_slot, x)
        self._source, self._key, self._made = weakref.ref(input), key, made
        return made


def refresh_weights(model: nn.Module) -> None:
    """Record and quantize every weight now, for a compiled model; the caches of an eager one fill alone."""
    layers = [module for module in model.modules() if isinstance(module, HiF8Linear)]
    for layer in layers:
        layer._weight()
    for layer in layers:
        layer.state.weights_ready = layer.state.mode != "off"
