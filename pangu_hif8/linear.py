"""Which linears of a model become HiF8Linear, and the conversion.

The paper quantizes weight and input of gate_proj, up_proj and down_proj in the middle blocks; attention,
embeddings, norms, lm_head, the first 3 and the last 2 blocks stay in high precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from pangu_hif8.errors import UserError
from pangu_hif8.quant_config import QuantConfig
from pangu_hif8.quantized_linear import HiF8Linear, SharedInput, refresh_weights
from pangu_hif8.scaling import ScalingState
from pangu_hif8.slots import LAYERS, block_slots

__all__ = ["HiF8Linear", "converted_linears", "decoder_blocks", "prepare_qat", "refresh_weights"]


def decoder_blocks(model: nn.Module) -> nn.ModuleList:
    """The list of transformer blocks of a Llama-like model (`model.model.layers`)."""
    blocks = getattr(getattr(model, "model", None), "layers", None)
    if not isinstance(blocks, nn.ModuleList):
        raise UserError(f"{type(model).__name__} has no model.layers; only Llama-like models are supported")
    return blocks


def quantized_blocks(
    num_blocks: int, num_first_hp: int, num_last_hp: int, hp_blocks: Sequence[int] | None = None
) -> list[int]:
    """Indices of the blocks to quantize: all but the first and last, or all but `hp_blocks`.

    Raises UserError when none is left, or when a block does not exist.
    """
    if hp_blocks is not None:
        if odd := [block for block in hp_blocks if not 0 <= block < num_blocks]:
            raise UserError(f"hp_blocks names block {odd[0]}; the model has blocks 0 to {num_blocks - 1}")
        chosen = [block for block in range(num_blocks) if block not in hp_blocks]
    else:
        chosen = list(range(num_first_hp, num_blocks - num_last_hp))
    if not chosen:
        raise UserError(
            f"{num_blocks} blocks less {num_first_hp} first and {num_last_hp} last leave none to quantize"
            if hp_blocks is None
            else f"hp_blocks keeps all {num_blocks} blocks in high precision; none is left to quantize"
        )
    return chosen


def prepare_qat(
    model: nn.Module,
    config: QuantConfig,
    num_first_hp: int,
    num_last_hp: int,
    hp_blocks: Sequence[int] | None = None,
) -> ScalingState:
    """Replace the MLP linears of the middle blocks in place; returns their ScalingState, mode "off".

    Raises UserError when there is nothing to convert, or when a weight is tied to another module.
    """
    blocks = decoder_blocks(model)
    chosen = quantized_blocks(len(blocks), num_first_hp, num_last_hp, hp_blocks)
    names = [name for index in chosen for name in block_slots(index, config.kinds())]
    state = ScalingState(names, config, next(model.parameters()).device)
    slot = {name: number for number, name in enumerate(names)}
    for index in chosen:
        _convert(cast(nn.Module, getattr(blocks[index], "mlp", None)), index, state, slot)
    _refuse_tied(model)
    return state


def _convert(mlp: nn.Module, index: int, state: ScalingState, slot: dict[str, int]) -> None:
    shared = SharedInput()
    for layer in LAYERS:
        linear = getattr(mlp, layer, None)
        if type(linear) is not nn.Linear:
            raise UserError(f"block {index} has no plain linear mlp.{layer}; found {type(linear).__name__}")
        source = "down_proj" if layer == "down_proj" else "gate_proj,up_proj"
        new = HiF8Linear.from_float(
            linear,
            state,
            slot[f"{index}.{source}.input"],
            slot[f"{index}.{layer}.weight"],
            slot.get(f"{index}.{layer}.gradient"),
        )
        new.shared = None if layer == "down_proj" else shared
        setattr(mlp, layer, new)


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
