"""gate_proj and up_proj read one tensor: it is quantized once, never taken for another, and let go."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from engine_runs import losses, quant, scales, steps, text, trainer
from torch import Tensor, nn

from pangu_hif8 import quantized_linear
from pangu_hif8.linear import HiF8Linear
from pangu_hif8.quantized_linear import SharedInput
from pangu_hif8.scaling import ScalingState

NAMES = ["0.gate_proj,up_proj.input", "0.gate_proj.weight", "0.up_proj.weight"]


@pytest.fixture
def layers() -> tuple[HiF8Linear, HiF8Linear]:
    torch.manual_seed(0)
    state, shared = ScalingState(NAMES, quant("most_recent")), SharedInput()
    state.set_mode("quantize")
    found = [HiF8Linear.from_float(nn.Linear(8, 8), state, 0, slot) for slot in (1, 2)]
    for layer in found:
        layer.shared = shared
    return found[0], found[1]


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Slots that were quantized."""
    slots: list[int] = []
    plain = quantized_linear.quantize_slot

    def counting(state: ScalingState, slot: int, x: Tensor, recording: bool) -> Tensor:
        slots.append(slot)
        return plain(state, slot, x, recording)

    monkeypatch.setattr(quantized_linear, "quantize_slot", counting)
    return slots


def test_the_second_layer_takes_over_the_same_object(layers: tuple[HiF8Linear, HiF8Linear]) -> None:
    gate, up = layers
    x = torch.randn(3, 8)
    first = gate._input(x, x)
    assert up._input(x, x) is first
    assert gate._input(x, x) is not first  # let go after one use


def test_it_is_quantized_once_a_pass(layers: tuple[HiF8Linear, HiF8Linear], passed: list[int]) -> None:
    x = torch.randn(3, 8)
    for layer in layers:
        layer(x)
    assert passed == [0, 1, 2]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_run_quantizes_each_tensor_once_a_step(passed: list[int], precision: str) -> None:
    run = trainer(quant("most_recent", bf16_warmup_steps=1), precision=precision)
    steps(run, 1)
    assert passed == []
    steps(run, 1, first=2)
    assert sorted(passed) == list(range(len(scales(run).names)))


def test_another_or_a_changed_tensor_is_not_taken_over(layers: tuple[HiF8Linear, HiF8Linear]) -> None:
    gate, up = layers
    x = torch.randn(3, 8)
    gate(x)
    other = 2 * x
    assert torch.equal(up(other), _alone(up, other))
    gate(x)
    x.mul_(3.0)
    assert torch.equal(up(x), _alone(up, x))
    gate(x)
    up.state.update()  # another step: another scale
    assert torch.equal(up(x), _alone(up, x))
    gate(x)
    with torch.no_grad():  # a pass that doesn't record, after one that does
        assert torch.equal(up(x), _alone(up, x))


def _alone(layer: HiF8Linear, x: Tensor) -> Tensor:
    shared, layer.shared = layer.shared, None
    out: Tensor = layer(x)
    layer.shared = shared
    return out


def test_a_pass_without_records_hands_nothing_to_one_with(layers: tuple[HiF8Linear, HiF8Linear]) -> None:
    gate, up = layers
    x = torch.randn(3, 8)
    with torch.no_grad():
        gate(x)
    up(x)
    assert up.state.amax_now[0] == x.abs().max()


def test_a_tensor_at_the_place_of_a_dead_one_is_not_taken_for_it(
    layers: tuple[HiF8Linear, HiF8Linear],
) -> None:
    gate, up = layers
    for _ in range(20):
        x = torch.randn(3, 8)
        gate(x)
        del x  # the next one may get its memory and its id
        y = torch.randn(3, 8)
        assert torch.equal(up(y), _alone(up, y))


def test_nothing_is_kept_alive(layers: tuple[HiF8Linear, HiF8Linear]) -> None:
    gate, up = layers
    x = torch.randn(3, 8)
    with torch.no_grad():
        made = weakref.ref(gate._input(x, x))
        assert made() is not None
        up(x)
        assert made() is None
        gate(x)
    source = weakref.ref(x)
    del x
    gc.collect()
    assert source() is None


def test_sharing_changes_no_bit_of_a_run() -> None:
    runs = [trainer(quant("max_window"), micro_batch_size=2) for _ in range(2)]
    for module in runs[1].model.modules():
        if isinstance(module, HiF8Linear):
            module.shared = None
    first, second = (steps(run, 3, text) for run in runs)
    assert losses(first) == losses(second)
    assert [r.grad_norm for r in first] == [r.grad_norm for r in second]
