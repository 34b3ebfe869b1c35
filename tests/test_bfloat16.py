"""bfloat16: of the computation (what is recorded is what is quantized), and of the stored weights."""

from __future__ import annotations

import pytest
import torch
from engine_runs import losses, numpy_hif8, quant, scales, steps, text, trainer
from test_linear import tiny_llama
from torch import Tensor, nn

from pangu_hif8.config import OptimizerConfig
from pangu_hif8.linear import HiF8Linear
from pangu_hif8.optimizer import make_adamw, set_learning_rate, step_in_bfloat16
from pangu_hif8.scaling import ScalingState

BF16 = torch.bfloat16


def layer_and_state(mode: str, algo: str = "most_recent") -> tuple[HiF8Linear, ScalingState]:
    torch.manual_seed(0)
    state = ScalingState(["0.down_proj.input", "0.down_proj.weight"], quant(algo))
    state.set_mode(mode)  # type: ignore[arg-type]
    return HiF8Linear.from_float(nn.Linear(32, 16, bias=False), state, 0), state


@pytest.mark.parametrize("mode", ["calibrate", "quantize"])
@pytest.mark.parametrize("algo", ["most_recent", "current"])
def test_the_amax_recorded_is_that_of_the_bfloat16_tensor(mode: str, algo: str) -> None:
    layer, state = layer_and_state(mode, algo)
    x = torch.randn(4, 32)
    x[0, 0] = torch.pi  # which bfloat16 rounds
    with torch.autocast("cpu", BF16):
        layer(x)
    operands = x.to(BF16), layer.weight.detach().to(BF16)
    assert state.amax_now.tolist() == [float(t.abs().max()) for t in operands]
    assert state.amax_now[1] != layer.weight.detach().abs().max()


def test_the_layer_s_output_is_that_of_quantized_bfloat16_operands() -> None:
    layer, _ = layer_and_state("quantize", "current")
    x = torch.randn(4, 32)

    def definition(t: Tensor) -> Tensor:
        narrow = t.detach().to(BF16).float()
        scale = float(torch.tensor(15.0) / narrow.abs().max())
        return torch.from_numpy(numpy_hif8(narrow.numpy(), scale)).to(BF16)

    with torch.autocast("cpu", BF16):
        out = layer(x)
    assert out.dtype == BF16
    assert torch.equal(out, definition(x) @ definition(layer.weight).T)


def test_gradients_arrive_in_the_weights_own_type() -> None:
    layer, _ = layer_and_state("quantize")
    with torch.autocast("cpu", BF16):
        layer(torch.randn(4, 32)).float().sum().backward()
    assert layer.weight.dtype == torch.float32
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


def test_a_cached_weight_of_one_type_is_not_used_in_another() -> None:
    layer, _ = layer_and_state("frozen")
    x = torch.randn(4, 32)
    wide = layer(x)
    with torch.autocast("cpu", BF16):
        assert layer(x).dtype == BF16
    assert torch.equal(layer(x), wide)


@pytest.mark.parametrize("algo", ["max_window", "current"])
def test_a_run_in_bfloat16(algo: str) -> None:
    run = trainer(quant(algo, bf16_warmup_steps=2), precision="bfloat16", lr=1e-3)
    baseline = trainer(None, precision="bfloat16", lr=1e-3)
    narrow, plain = steps(run, 4), steps(baseline, 4)
    assert losses(narrow)[:2] == losses(plain)[:2]  # a warm-up step is a baseline's, to the bit
    assert losses(narrow)[2:] != losses(plain)[2:]
    wide = steps(trainer(quant(algo, bf16_warmup_steps=2), lr=1e-3), 4)
    assert losses(narrow) == pytest.approx(losses(wide), rel=1e-2)
    for record in narrow:
        assert record.scaling is not None
        assert torch.equal(record.scaling.amax, record.scaling.amax.to(BF16).float())
    assert scales(run).num_skipped.sum() == 0
    assert all(p.dtype == torch.float32 for p in run.model.parameters())


def test_stored_in_bfloat16_is_torch_s_adamw_on_bfloat16_parameters() -> None:
    """Same gradients, ten steps of changing rates: weights and moments are equal bit for bit."""
    torch.manual_seed(0)
    ours, theirs = nn.Linear(33, 7), nn.Linear(33, 7)
    ours.load_state_dict({k: v.to(BF16).float() for k, v in ours.state_dict().items()})
    theirs.to(BF16).load_state_dict(ours.state_dict())
    settings = OptimizerConfig(weight_decay=0.1)
    adamws = [make_adamw(model, 0.0, settings) for model in (ours, theirs)]
    for step in range(1, 11):
        for mine, real in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape) * 10.0 ** -(step % 4)
            real.grad = mine.grad.to(BF16)
        for adamw in adamws:
            set_learning_rate(adamw, 1e-2 / step)
        step_in_bfloat16(adamws[0])
        adamws[1].step()
        for mine, real in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, real.float())
            for name in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(adamws[0].state[mine][name], adamws[1].state[real][name].float())


def test_a_run_s_weights_are_bfloat16_values_from_its_first_step() -> None:
    run = trainer(None, weight_dtype="bfloat16", lr=1e-2)
    rounded = {name: p.to(BF16).float() for name, p in tiny_llama().named_parameters()}
    assert all(torch.equal(p, rounded[name]) for name, p in run.model.named_parameters())
    steps(run, 2)
    for p in run.model.parameters():
        assert torch.equal(p, p.to(BF16).float())
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(run.adamw.state[p][name], run.adamw.state[p][name].to(BF16).float())


def test_a_run_with_bfloat16_weights_recorded_in_full_precision_quantizes_them() -> None:
    """Stored in bfloat16, computed in float32: the amaxes of the weights are bfloat16 values."""
    run = trainer(quant("max_window"), weight_dtype="bfloat16")
    record = run.run_step(1, text(1))
    assert record.scaling is not None
    slots = [slot for slot, name in enumerate(scales(run).names) if name.endswith("weight")]
    amax = record.scaling.amax[slots]
    assert torch.equal(amax, amax.to(BF16).float())
