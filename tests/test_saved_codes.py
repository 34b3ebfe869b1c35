"""Inputs kept as codes for backward: a quarter of the memory, every loss, gradient and scale the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_runs import differences, everything, losses, quant, steps, trainer
from test_linear import pair, tiny_llama
from torch import Tensor, nn

from pangu_hif8.errors import UserError
from pangu_hif8.fake_quantize import scaled_quantize_dequantize
from pangu_hif8.hif8 import decode
from pangu_hif8.linear import HiF8Linear, prepare_qat
from pangu_hif8.saved_codes import CodedHiF8Linear, Codes, save_inputs_as_codes

SETTINGS: dict[str, dict[str, Any]] = {
    "max-window": {"algo": "max_window"},
    "most-recent": {"algo": "most_recent"},
    "current": {"algo": "current"},
    "tapered": {"algo": "most_recent", "overflow": "taper"},
    "gradients": {"algo": "max_window", "gradients": {"amax_compute_algo": "max_window"}},
}
USUAL = (0.0123, 1.0, 7.77, 15.0, 432.1)  # amaxes of which float16 has normal numbers


def bits(x: Tensor) -> bytes:
    return x.detach().contiguous().view(torch.uint8).numpy().tobytes()


# ---- the codes themselves ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "amax"),
    [(dtype, amax) for dtype in (torch.float32, torch.bfloat16) for amax in (1e-30, 3e-7, *USUAL)]
    + [(torch.float16, amax) for amax in USUAL],
)
@pytest.mark.parametrize("hif8_max", [8.0, 15.0, 56.0, 224.0])
def test_every_value_at_any_scale_comes_back(dtype: torch.dtype, hif8_max: float, amax: float) -> None:
    scale = torch.tensor(hif8_max) / amax
    values = decode(torch.arange(256, dtype=torch.uint8))
    x = (values / scale).to(dtype)
    x_q = scaled_quantize_dequantize(x, scale, hif8_max, "taper")
    again = Codes.of(x_q, scale).tensor()
    finite = ~x_q.isnan()
    assert bits(again[finite]) == bits(x_q[finite]) and again.isnan().equal(x_q.isnan())
    assert again.dtype == dtype


@pytest.mark.parametrize("overflow", ["saturate", "taper"])
def test_random_tensors_come_back_in_a_quarter_of_the_bytes(overflow: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for exponent in range(-120, 100, 11):
        x = torch.randn(3, 41, 7, generator=generator) * 2.0**exponent
        x[0, 0, :3] = torch.tensor([float("inf"), float("-inf"), 0.0])
        scale = torch.tensor(15.0) / x[torch.isfinite(x)].abs().max() * 1.7
        x_q = scaled_quantize_dequantize(x, scale, 15.0, overflow)  # type: ignore[arg-type]
        codes = Codes.of(x_q, scale)
        assert bits(codes.tensor()) == bits(x_q)
        assert 4 * codes.codes.nbytes == x_q.nbytes and codes.codes.shape == x.shape


# ---- training ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("micro", [4, 2])
def test_training_keeps_every_bit(name: str, micro: int) -> None:
    runs = []
    for coded in (False, True):
        run = trainer(quant(**SETTINGS[name]), micro_batch_size=micro)
        assert not coded or save_inputs_as_codes(run.model) == 6
        runs.append((losses(steps(run, 5)), everything(run)))
    assert runs[0][0] == runs[1][0]
    assert differences(runs[0][1], runs[1][1]) == []


def test_a_warm_up_saves_as_torch_does_and_then_codes() -> None:
    runs = []
    for coded in (False, True):
        run = trainer(quant(), bf16_warmup_steps=2)
        if coded:
            save_inputs_as_codes(run.model)
        runs.append((losses(steps(run, 4)), everything(run)))
    assert runs[0][0] == runs[1][0]
    assert differences(runs[0][1], runs[1][1]) == []


def test_beside_activation_checkpointing_the_bits_stay() -> None:
    runs = []
    for coded in (False, True):
        run = trainer(quant(), activation_checkpointing=True)
        if coded:
            save_inputs_as_codes(run.model)
        runs.append((losses(steps(run, 3)), everything(run)))
    assert runs[0][0] == runs[1][0]
    assert differences(runs[0][1], runs[1][1]) == []


def test_bfloat16_too() -> None:
    model = tiny_llama().to(torch.bfloat16)
    state = prepare_qat(model, quant("current"), 1, 1)
    state.set_mode("quantize")
    tokens = torch.arange(24).view(2, 12)
    found = []
    for _ in range(2):
        model.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        found.append([bits(p.grad) for p in model.parameters() if p.grad is not None])
        save_inputs_as_codes(model)
    assert found[0] == found[1] and found[0]


# ---- what is saved -------------------------------------------------------------------------------------


def kept_by(layer: HiF8Linear, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the layer's pass keeps of each tensor that torch saves."""
    kept: list[Any] = []
    plain = CodedHiF8Linear._pack

    def noting(self: CodedHiF8Linear, saved: Tensor) -> Any:
        kept.append(plain(self, saved))
        return kept[-1]

    monkeypatch.setattr(CodedHiF8Linear, "_pack", noting)
    layer(x).sum().backward()
    return kept


def test_the_input_is_codes_and_the_weight_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    _, layer, state = pair()
    save_inputs_as_codes(layer)
    state.set_mode("quantize")
    kept = kept_by(layer, torch.randn(2, 5, 8, requires_grad=True), monkeypatch)
    codes = [entry for entry in kept if not isinstance(entry, Tensor)]
    assert len(kept) == 2 and len(codes) == 1
    assert codes[0][0].codes.nbytes == 2 * 5 * 8 and codes[0][1] == (10, 8)
    (weight,) = (entry for entry in kept if isinstance(entry, Tensor))
    assert layer.quantized_weight is not None and weight.data_ptr() == layer.quantized_weight.data_ptr()


@pytest.mark.parametrize("mode", ["off", "calibrate"])
def test_a_mode_that_does_not_quantize_keeps_no_codes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, layer, state = pair()
    save_inputs_as_codes(layer)
    state.set_mode(mode)  # type: ignore[arg-type]
    assert kept_by(layer, torch.randn(5, 8, requires_grad=True), monkeypatch) == []


def test_gate_and_up_keep_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama()
    state = prepare_qat(model, quant("current"), 1, 1)
    save_inputs_as_codes(model)
    state.set_mode("quantize")
    made: list[int] = []
    plain = Codes.of.__func__  # type: ignore[attr-defined]

    def counting(cls: type[Codes], x_q: Tensor, scale: Tensor) -> Codes:
        made.append(x_q.numel())
        return plain(cls, x_q, scale)

    monkeypatch.setattr(Codes, "of", classmethod(counting))
    model(input_ids=torch.arange(12).view(1, 12)).logits.sum().backward()
    assert made == [12 * 32, 12 * 48] * 2  # per block: gate and up together, then down


def test_backward_may_run_twice_and_an_update_may_come_before_it() -> None:
    found = []
    for coded in (False, True):
        _, layer, state = pair("most_recent")
        if coded:
            save_inputs_as_codes(layer)
        state.set_mode("quantize")
        torch.manual_seed(3)
        x = torch.randn(5, 8)
        layer(x)
        state.update()
        out = layer(3 * x).square().sum()
        state.update()
        out.backward(retain_graph=True)
        out.backward()
        assert layer.weight.grad is not None
        found.append(bits(layer.weight.grad))
    assert found[0] == found[1]


def test_a_copy_of_the_model_is_its_own() -> None:
    _, layer, state = pair()
    save_inputs_as_codes(layer)
    state.set_mode("quantize")
    other = copy.deepcopy(layer)
    x = torch.randn(5, 8, requires_grad=True)
    assert bits(other(x)) == bits(layer(x)) and type(other) is CodedHiF8Linear


@pytest.mark.parametrize("mode", ["calibrate", "quantize", "frozen"])
def test_a_pass_leaves_nothing_behind(mode: str) -> None:
    """Neither a pass that keeps no codes (warm-up, evaluation) nor one that does holds on to its input."""
    model = tiny_llama()
    state = prepare_qat(model, quant("current"), 1, 1)
    save_inputs_as_codes(model)
    state.set_mode(mode)  # type: ignore[arg-type]
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad():
        model(input_ids=tokens)
    model(input_ids=tokens).logits.sum().backward()
    layers = [module for module in model.modules() if isinstance(module, CodedHiF8Linear)]
    assert len(layers) == 6 and all(layer._made is None and not layer._coding for layer in layers)
    if mode == "calibrate":
        copy.deepcopy(model)  # a live activation among its attributes could not be copied


# ---- what is refused -----------------------------------------------------------------------------------


def test_a_model_without_quantized_layers_is_refused() -> None:
    with pytest.raises(UserError, match="no quantized layer"):
        save_inputs_as_codes(nn.Linear(2, 2))


def test_a_layer_of_another_class_is_refused() -> None:
    class Wrapped(HiF8Linear):
        pass

    _, layer, _ = pair()
    layer.__class__ = Wrapped
    with pytest.raises(UserError, match="layers are Wrapped"):
        save_inputs_as_codes(layer)


def test_a_compiled_layer_runs_uncompiled_with_the_same_bits() -> None:
    _, layer, state = pair()
    save_inputs_as_codes(layer)
    state.set_mode("quantize")
    x = torch.randn(2, 8)
    expected = layer(x)
    assert bits(torch.compile(layer, backend="eager")(x)) == bits(expected)
