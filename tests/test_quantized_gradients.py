"""Gradients quantized in the backward pass: the forward pass is as without, the rest by the definition."""

from __future__ import annotations

import pytest
import torch
from engine_runs import losses, numpy_hif8, quant, scales, steps, text, trainer
from torch import Tensor, nn

from pangu_hif8.config import QuantConfig, TensorConfig
from pangu_hif8.linear import HiF8Linear
from pangu_hif8.scaling import Mode, ScalingState

NAMES = ["0.down_proj.input", "0.down_proj.weight", "0.down_proj.gradient"]


def with_gradients(algo: str = "most_recent", **more: float | str) -> QuantConfig:
    gradients = TensorConfig(**(dict(amax_compute_algo=algo, amax_history_len=4) | more))
    return quant("most_recent", gradients=gradients)


def layer_of(config: QuantConfig, mode: Mode = "quantize") -> tuple[HiF8Linear, ScalingState]:
    torch.manual_seed(0)
    scaling = ScalingState(NAMES, config)
    scaling.set_mode(mode)
    return HiF8Linear.from_float(nn.Linear(16, 8, bias=False), scaling, 0, gradient_slot=2), scaling


def qdq(x: Tensor, amax: float, hif8_max: float = 15.0, limit: float = 15.0) -> Tensor:
    scale = float(torch.tensor(hif8_max) / torch.tensor(amax))
    return torch.from_numpy(numpy_hif8(x.detach().numpy(), scale, limit))


@pytest.mark.parametrize(("algo", "estimate"), [("most_recent", 2.0), ("current", 7.0)])
@pytest.mark.parametrize("overflow", ["saturate", "taper"])
def test_backward_is_qdq_of_the_incoming_gradient(algo: str, estimate: float, overflow: str) -> None:
    layer, scaling = layer_of(with_gradients(algo, hif8_max=56.0, overflow=overflow))
    x = torch.randn(4, 16, requires_grad=True)
    upstream = torch.randn(2, 4, 8).clamp(-1, 1)
    upstream[0, 0, 0], upstream[1, 0, 0] = 2.0, 7.0
    for gradient in upstream:
        x.grad = layer.weight.grad = None
        layer(x).backward(gradient)
        scaling.update()
    expected = qdq(upstream[1], estimate, 56.0, 56.0 if overflow == "saturate" else 32768.0)
    own = x.detach(), layer.weight.detach()
    operands = [qdq(t, float(t.abs().max())) for t in own]
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert torch.equal(x.grad, expected @ operands[1])
    assert torch.equal(layer.weight.grad, expected.T @ operands[0])
    assert scaling.history[0, 2] == 7.0


def test_forward_is_unchanged() -> None:
    x, outputs = torch.randn(4, 16), []
    for config in (quant("most_recent"), with_gradients()):
        layer, _ = layer_of(config)
        outputs.append(layer(x))
    assert torch.equal(*outputs)


def test_calibration_records_and_leaves_the_gradient_alone() -> None:
    layer, scaling = layer_of(with_gradients(), "calibrate")
    x = torch.randn(4, 16, requires_grad=True)
    upstream = torch.randn(4, 8)
    layer(x).backward(upstream)
    assert x.grad is not None
    assert torch.equal(x.grad, upstream @ layer.weight)
    assert scaling.amax_now[2] == upstream.abs().max()


def test_frozen_mode_neither_quantizes_nor_records_gradients() -> None:
    layer, scaling = layer_of(with_gradients(), "frozen")
    x = torch.randn(4, 16, requires_grad=True)
    upstream = torch.randn(4, 8)
    layer(x).backward(upstream)
    assert x.grad is not None
    assert layer.quantized_weight is not None
    assert torch.equal(x.grad, upstream @ layer.quantized_weight)
    assert not scaling.amax_now.any()


def test_a_run_has_a_history_of_each_gradient_over_its_micro_batches() -> None:
    """The amax of a step is that of the gradients of the whole batch's mean loss."""
    config = with_gradients("max_window").model_copy(update={"bf16_warmup_steps": 1})
    run, seen = trainer(config, micro_batch_size=2), list[Tensor]()
    state = scales(run)

    def watch(module: nn.Module, inputs: object, out: Tensor) -> None:
        out.register_hook(seen.append)

    run.model.get_submodule("model.layers.1.mlp.up_proj").register_forward_hook(watch)
    record = run.run_step(1, text(1))
    slot = state.names.index("1.up_proj.gradient")
    assert record.scaling is not None
    assert len(seen) == 2
    assert record.scaling.amax[slot] == max(float(g.abs().max()) for g in seen)
    assert state.settings["gradient"].amax_history_len == 4


def test_a_baseline_s_first_step_has_the_same_loss_and_another_gradient() -> None:
    with_, without = (steps(trainer(config), 2) for config in (with_gradients(), quant("most_recent")))
    assert losses(with_)[0] == losses(without)[0]
    assert with_[0].grad_norm != without[0].grad_norm
    assert losses(with_)[1] != losses(without)[1]
