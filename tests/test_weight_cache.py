"""A weight's quantized copy: which changes of the weight are seen at once, and what makes the others seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pangu_hif8.config import QuantConfig
from pangu_hif8.quantized_linear import HiF8Linear
from pangu_hif8.saved_codes import CodedHiF8Linear
from pangu_hif8.scaling import ScalingState

X = torch.arange(8.0)[None] / 7


def step_of(kind: type[torch.optim.Optimizer], **more: Any) -> Callable[[HiF8Linear], None]:
    """A change by one optimizer's step, without an update of the scales after it."""

    def change(layer: HiF8Linear) -> None:
        layer.weight.grad = torch.ones_like(layer.weight)
        kind([layer.weight], **{"lr": 0.1} | more).step()

    return change


def load(layer: HiF8Linear, assign: bool = False) -> None:
    """A state dict of other weights."""
    layer.load_state_dict({"weight": 0.5 * layer.weight.detach()}, assign=assign)


@torch.no_grad()
def multiply(layer: HiF8Linear) -> None:
    layer.weight.mul_(0.5)


def through_data(layer: HiF8Linear) -> None:
    """As averages of weights are swapped in by some trainers: autograd's count of changes stays."""
    layer.weight.data.mul_(0.5)


def through_detach(layer: HiF8Linear) -> None:
    layer.weight.detach().mul_(0.5)


def replace_data(layer: HiF8Linear) -> None:
    layer.weight.data = 0.5 * layer.weight.data


SEEN = {
    "AdamW": step_of(torch.optim.AdamW),
    "AdamW, one tensor after the other": step_of(torch.optim.AdamW, foreach=False),
    "SGD": step_of(torch.optim.SGD),
    "load_state_dict": load,
    "load_state_dict, assigned": lambda layer: load(layer, assign=True),
    "init": lambda layer: nn.init.constant_(layer.weight, 0.25),
    "in place under no_grad": multiply,
    "through detach": through_detach,
    "new data": replace_data,
    "another type": lambda layer: layer.to(torch.bfloat16).to(torch.float32).weight.detach().mul_(0.5),
}
UNSEEN = {"through data": through_data, "AdamW, fused": step_of(torch.optim.AdamW, fused=True)}


def warm_layer(mode: str, codes: bool = False) -> tuple[HiF8Linear, ScalingState]:
    """A layer after one training step, which has quantized its weight since in that mode."""
    torch.manual_seed(0)
    state = ScalingState(["x", "w"], QuantConfig(amax_compute_algo="max_window"))
    layer = HiF8Linear.from_float(nn.Linear(8, 6, bias=False), state, 0)
    layer.__class__ = CodedHiF8Linear if codes else HiF8Linear
    state.set_mode("quantize")
    layer(X).sum().backward()
    state.update()
    state.set_mode(mode)  # type: ignore[arg-type]
    layer(X)
    return layer, state


def afresh(layer: HiF8Linear, state: ScalingState) -> Tensor:
    """The output of a layer that keeps no copy."""
    state.cache_weights = False
    out: Tensor = layer(X)
    state.cache_weights = True
    state.set_mode(state.mode)
    return out


@pytest.mark.parametrize("codes", [False, True], ids=["plain", "codes"])
@pytest.mark.parametrize("mode", ["quantize", "frozen"])
@pytest.mark.parametrize("name", SEEN)
def test_a_change_that_torch_counts_is_seen(name: str, mode: str, codes: bool) -> None:
    layer, state = warm_layer(mode, codes)
    before = layer(X)
    SEEN[name](layer)
    after = layer(X)
    assert after.equal(afresh(layer, state)) and not after.equal(before)


@pytest.mark.parametrize("mode", ["quantize", "frozen"])
@pytest.mark.parametrize("name", UNSEEN)
def test_a_change_that_torch_does_not_count_is_seen_after_update_or_set_mode(name: str, mode: str) -> None:
    """README says so. A loop that calls update() after each optimizer step, as it must, never meets it."""
    layer, state = warm_layer(mode)
    before, version = layer(X), layer.weight._version
    UNSEEN[name](layer)
    assert layer.weight._version == version and layer(X).equal(before)
    state.set_mode(state.mode)
    after = layer(X)
    assert after.equal(afresh(layer, state)) and not after.equal(before)
    UNSEEN[name](layer)
    state.update()
    updated = layer(X)
    assert updated.equal(afresh(layer, state)) and not updated.equal(after)
