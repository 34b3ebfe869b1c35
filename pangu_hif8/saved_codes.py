"""What backward needs of the quantized inputs, kept as 8-bit codes: a quarter of float32's memory, exactly.

A linear layer saves its input for the weight's gradient. Where that input has passed through HiF8 it is
decode(code) / scale, and nothing else: the code, one byte an element, and the scale give it back bit for
bit, so that losses and gradients stay what they were. What the step pays is a look-up each way.

    state = prepare_qat(model, QuantConfig(...), num_first_hp=3, num_last_hp=2)
    save_inputs_as_codes(model)

A run of an experiment does it with PANGU_HIF8_INPUTS_AS_CODES=1 or `--inputs-as-codes` (codes_choice.py).

The weights' quantized copies stay as they are: they exist once, whatever the number of micro-batches. A
layer in a mode that does not quantize saves its input as torch does. Current scaling and a cold start pay a
second look for the amax.

Use it in place of activation checkpointing, of offloading by saved_tensors_hooks and of torch.compile, not
beside them: the bits stay right, but these layers' own hooks hide what they save from hooks around them, so
that codes (and where weights are not cached their quantized copies) are kept that checkpointing would drop;
torch.compile breaks its graph at each layer and runs it uncompiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_module_registration_hook

from pangu_hif8.amax import tensor_to_amax
from pangu_hif8.errors import UserError
from pangu_hif8.hif8_codes import prefix_codes
from pangu_hif8.hif8_tables import look_up, look_up_into, pieces, values_of
from pangu_hif8.quantized_linear import HiF8Linear

__all__ = ["CodedHiF8Linear", "Codes", "new_layers_keep_codes", "save_inputs_as_codes"]

NOT_COMPILED = "inputs can't be saved as codes by a compiled layer"


@dataclass(frozen=True)
class Codes:
    """A quantized tensor: uint8 codes [its shape], the float32 scale (scalar) and its dtype."""

    codes: Tensor
    scale: Tensor
    dtype: torch.dtype

    @classmethod
    def of(cls, x_q: Tensor, scale: Tensor) -> Codes:
        """Of a tensor that is hif8(...) / scale. Its product with the scale rounds to the very HiF8 value."""
        codes = torch.empty(x_q.shape, dtype=torch.uint8, device=x_q.device)
        table = _code_by_prefix(x_q.device)
        for part, place in pieces(x_q.detach().contiguous().view(-1), codes.view(-1)):
            scaled = part.to(torch.float32) * scale  # of a piece, and every NaN is quiet
            look_up_into(place, table, scaled)
        return cls(codes, scale, x_q.dtype)

    def tensor(self) -> Tensor:
        """The quantized tensor again, bit for bit."""
        values = values_of(_every_code(self.codes.device), torch.float32) / self.scale
        return look_up(values.to(self.dtype), self.codes)


@cache
def _code_by_prefix(device: torch.device) -> Tensor:
    return torch.tensor(prefix_codes("saturate"), dtype=torch.uint8, device=device)


@cache
def _every_code(device: torch.device) -> Tensor:
    return torch.arange(256, dtype=torch.uint8, device=device)


class CodedHiF8Linear(HiF8Linear):
    """A HiF8Linear whose quantized input waits for backward as codes."""

    _coding = False  # whether a forward pass that keeps codes is under way
    _made: Tensor | None = None  # its quantized input

    def forward(self, input: Tensor) -> Tensor:
        """input [..., in_features] to [..., out_features]. torch.compile runs it uncompiled."""
        if self.state.mode not in ("quantize", "frozen") or not torch.is_grad_enabled():
            return super().forward(input)
        if torch.compiler.is_compiling():
            raise UserError(NOT_COMPILED)  # tracing fails, and torch runs the layer as it is
        self._coding = True
        try:
            with saved_tensors_hooks(self._pack, _unpack):
                return super().forward(input)
        finally:
            self._coding, self._made = False, None

    def _input(self, input: Tensor, x: Tensor) -> Tensor:
        """The quantized input, which takes the scale with it: up_proj gets the same tensor as gate_proj."""
        x_q = super()._input(input, x)
        if not self._coding:
            return x_q
        if not hasattr(x_q, _SCALE):
            amax = None if self.state.knows_scale(self.input_slot) else tensor_to_amax(x)
            setattr(x_q, _SCALE, self.state.scale_for(self.input_slot, amax).detach().clone())
        self._made = x_q
        return x_q

    def _pack(self, saved: Tensor) -> Tensor | tuple[Codes, torch.Size]:
        """What is kept of a saved tensor: the input's codes with the shape asked for, any other as it is."""
        x_q = self._made
        if x_q is None or saved.data_ptr() != x_q.data_ptr() or saved.numel() != x_q.numel():
            return saved
        if not hasattr(x_q, _CODES):
            setattr(x_q, _CODES, Codes.of(x_q, getattr(x_q, _SCALE)))
        return getattr(x_q, _CODES), saved.shape


_SCALE, _CODES = "_hif8_scale", "_hif8_codes"  # attributes of a quantized input, which go when it goes


def _unpack(kept: Tensor | tuple[Codes, torch.Size]) -> Tensor:
    return kept if isinstance(kept, Tensor) else kept[0].tensor().view(kept[1])


def save_inputs_as_codes(model: nn.Module) -> int:
    """Let every HiF8Linear of the model keep its input as codes from now on; returns how many there are.

    Raises UserError when the model has none, or one of a class of somebody else's (FSDP's, or a subclass).
    """
    layers = [module for module in model.modules() if isinstance(module, HiF8Linear)]
    if not layers:
        raise UserError("the model has no quantized layer; call prepare_qat(model, ...) first")
    if odd := {type(layer).__name__ for layer in layers} - {HiF8Linear.__name__, CodedHiF8Linear.__name__}:
        raise UserError(
            f"layers are {', '.join(sorted(odd))}; call save_inputs_as_codes before they are wrapped"
        )
    for layer in layers:
        layer.__class__ = CodedHiF8Linear
    return len(layers)


@contextmanager
def new_layers_keep_codes() -> Iterator[None]:
    """Every HiF8Linear that becomes part of a model in here keeps its input as codes from then on."""

    def change(_model: nn.Module, _name: str, layer: nn.Module | None) -> None:
        if type(layer) is HiF8Linear:
            layer.__class__ = CodedHiF8Linear

    handle = register_module_module_registration_hook(change)
    try:
        yield
    finally:
        handle.remove()
