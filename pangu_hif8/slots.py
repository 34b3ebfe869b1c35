"""Names of the slots of a ScalingState: "3.down_proj.weight" is block, layer and kind.

gate_proj and up_proj read one tensor, so their input has one slot, "3.gate_proj,up_proj.input". Results list
it under both layers: a run of the paper's model has 126 quantized tensors in 105 slots.
"""

from __future__ import annotations

from typing import get_args

from pangu_hif8.quant_config import Kind

LAYERS = ("gate_proj", "up_proj", "down_proj")


def block_slots(block: int, kinds: tuple[Kind, ...]) -> list[str]:
    """The slots of one block: both inputs, the three weights, and the three gradients where quantized."""
    names = [f"{block}.gate_proj,up_proj.input", f"{block}.down_proj.input"]
    return names + [f"{block}.{layer}.{kind}" for kind in kinds if kind != "input" for layer in LAYERS]


def kind_of(name: str) -> Kind:
    """The kind in a slot's name; a bare name is an input."""
    last = name.rpartition(".")[2]
    return next((kind for kind in get_args(Kind) if kind == last), "input")


def slots_of_kind(names: list[str], kind: Kind) -> list[int]:
    """Numbers of the slots of one kind."""
    return [slot for slot, name in enumerate(names) if kind_of(name) == kind]


def tensors_of(names: list[str]) -> list[tuple[str, int]]:
    """(name, slot) of every quantized tensor, layer by layer: a shared input once for each of its layers."""
    found = []
    for slot, name in enumerate(names):
        block, layers, kind = name.split(".")
        found += [(f"{block}.{layer}.{kind}", slot) for layer in layers.split(",")]
    return sorted(found, key=lambda item: _reading_order(item[0]))


def _reading_order(name: str) -> tuple[int, int, int]:
    block, layer, kind = name.split(".")
    return int(block), LAYERS.index(layer), get_args(Kind).index(kind)
