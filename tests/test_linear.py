"""HiF8Linear: equal to nn.Linear when off, exact when on, blind to clipping in the gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.fake_quantize import scaled_quantize_dequantize, straight_through
from pangu_hif8.hif8 import quantize_dequantize
from pangu_hif8.linear import HiF8Linear, converted_linears, prepare_qat, quantized_blocks
from pangu_hif8.scaling import ScalingState
from pangu_hif8.slots import tensors_of


def tiny_llama(num_blocks=4, **more) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=num_blocks, **sizes, **more))


def pair(algo="most_recent", overflow="saturate", bias=True) -> tuple[nn.Linear, HiF8Linear, ScalingState]:
    torch.manual_seed(1)
    plain = nn.Linear(8, 6, bias=bias)
    state = ScalingState(["x", "w"], QuantConfig(amax_compute_algo=algo, overflow=overflow))
    return plain, HiF8Linear.from_float(plain, state, 0), state


@pytest.mark.parametrize("mode", ["off", "calibrate"])
@pytest.mark.parametrize("bias", [True, False])
def test_unquantized_modes_equal_nn_linear_bit_for_bit(mode, bias):
    plain, layer, state = pair(bias=bias)
    state.set_mode(mode)
    x = torch.randn(5, 8, requires_grad=True)
    results = []
    for module in (plain, layer):
        module.zero_grad()
        x.grad = None
        out = module(x)
        out.square().sum().backward()
        results.append([out.detach(), x.grad.clone(), *(p.grad.clone() for p in module.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("overflow", ["saturate", "taper"])
def test_quantized_output_is_the_definition(overflow):
    _, layer, state = pair(overflow=overflow)
    state.set_mode("quantize")
    layer(torch.randn(4, 8))
    state.update()
    x = 5 * torch.randn(4, 8)  # beyond the estimate of the first step

    def definition(t, estimate):
        scale = torch.tensor(15.0) / estimate  # one division; number / tensor would be two roundings
        scaled = t * scale
        if overflow == "saturate":
            scaled = scaled.clamp(-15, 15)
        return quantize_dequantize(scaled, overflow="saturate") / scale

    expected = F.linear(
        definition(x, state.estimate[0]), definition(layer.weight.detach(), state.estimate[1]), layer.bias
    )
    assert torch.equal(layer(x), expected)


def test_gradient_is_straight_through_even_where_clipped():
    x = torch.randn(100, requires_grad=True)
    quantized = scaled_quantize_dequantize(x, torch.tensor(1000.0))  # nearly everything clips
    assert (quantized.abs() <= 0.015001).all()
    upstream = torch.randn(100)
    straight_through(x, quantized).backward(upstream)
    assert torch.equal(x.grad, upstream)


def test_gradients_of_the_layer_use_quantized_operands():
    _, layer, state = pair("current")
    state.set_mode("quantize")
    x = torch.randn(4, 8, requires_grad=True)
    out = layer(x)
    upstream = torch.randn_like(out)
    out.backward(upstream)
    q = lambda t: scaled_quantize_dequantize(t, torch.tensor(15.0) / t.detach().abs().max())  # noqa: E731
    assert torch.equal(x.grad, upstream @ q(layer.weight))
    assert torch.allclose(layer.weight.grad, upstream.T @ q(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scaled_qdq_keeps_type_shape_and_nan(dtype):
    x = torch.randn(3, 4).to(dtype)
    x[0, 0] = float("nan")
    clean = x.nan_to_num(0.0)
    got, expected = (scaled_quantize_dequantize(t, torch.tensor(2.0)) for t in (x, clean))
    assert got.dtype == dtype and got.shape == x.shape
    assert got[0, 0].isnan() and torch.equal(got.flatten()[1:], expected.flatten()[1:])


def test_signalling_nan_stays_nan():
    x = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    assert scaled_quantize_dequantize(x, torch.tensor(2.0)).isnan().all()


def test_evaluation_and_no_grad_change_no_byte_of_state():
    _, layer, state = pair()
    state.set_mode("quantize")
    layer(torch.randn(4, 8))
    state.update()
    before = state.state_dict() | {"now": state.amax_now.clone()}
    with torch.no_grad():
        layer(100 * torch.randn(4, 8))
    state.set_mode("frozen")
    layer(100 * torch.randn(4, 8)).sum().backward()
    after = state.state_dict() | {"now": state.amax_now}
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_weight_is_quantized_once_a_step_and_again_after_the_optimizer():
    _, layer, state = pair("current")
    state.set_mode("quantize")
    x = torch.randn(4, 8)
    first = layer(x)
    cached = layer.quantized_weight
    layer(x)
    assert layer.quantized_weight is cached
    with torch.no_grad():
        layer.weight.mul_(3.0)  # an optimizer's in-place step, even without update()
    assert not torch.equal(layer(x), first)
    assert layer.quantized_weight is not cached


def test_evaluation_between_steps_loses_no_weight_amax():
    histories = []
    for evaluate in (False, True):
        _, layer, state = pair("max_window")
        state.set_mode("quantize")
        x = torch.full((1, 8), 2.0)
        for _ in range(2):
            if evaluate:
                with torch.no_grad():
                    layer(x)
            layer(x)
            state.update()
        assert not state.num_skipped.any()
        histories.append(state.history)
    assert torch.equal(*histories)


def test_a_layer_called_twice_has_one_entry_the_larger():
    _, layer, state = pair()
    state.set_mode("quantize")
    layer(torch.full((1, 8), 2.0))
    layer(torch.full((1, 8), 7.0))
    state.update()
    assert state.history[:, 0].tolist() == [7.0]


def test_conversion_takes_the_middle_mlps_and_nothing_else():
    model = tiny_llama(8, tie_word_embeddings=True)
    config = QuantConfig(amax_compute_algo="max_window")
    state = prepare_qat(model, config, 3, 2)
    expected = [f"model.layers.{b}.mlp.{n}" for b in (3, 4, 5) for n in ("gate_proj", "up_proj", "down_proj")]
    assert converted_linears(model) == expected
    tensors = tensors_of(state.names)
    assert [name for name, _ in tensors[:4]] == [
        "3.gate_proj.input",
        "3.gate_proj.weight",
        "3.up_proj.input",
        "3.up_proj.weight",
    ]
    assert len(tensors) == 18 and len(state.names) == 15  # gate_proj and up_proj read one tensor
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_paper_s_model_has_63_linears_and_126_tensors():
    with torch.device("meta"):
        model = tiny_llama(26)
    state = prepare_qat(model, QuantConfig(amax_compute_algo="max_window"), 3, 2)
    assert (len(converted_linears(model)), len(tensors_of(state.names))) == (63, 126)


def test_conversion_off_leaves_logits_and_gradients_bit_for_bit():
    tokens = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    results = []
    for convert in (False, True):
        model = tiny_llama()
        if convert:
            prepare_qat(model, QuantConfig(amax_compute_algo="current"), 1, 1)
        out = model(input_ids=tokens, labels=tokens)
        out.loss.backward()
        results.append([out.logits, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_what_can_t_be_converted_is_refused():
    config = QuantConfig(amax_compute_algo="current")
    with pytest.raises(UserError, match="none to quantize"):
        prepare_qat(tiny_llama(4), config, 3, 2)
    with pytest.raises(UserError, match="Llama-like"):
        prepare_qat(nn.Linear(2, 2), config, 0, 0)
    model = tiny_llama(4)
    prepare_qat(model, config, 1, 1)
    with pytest.raises(UserError, match="no plain linear"):
        prepare_qat(model, config, 1, 1)
    tied = tiny_llama(4)
    tied.model.layers[1].mlp.up_proj.weight = tied.model.layers[2].mlp.up_proj.weight
    with pytest.raises(UserError, match="tied"):
        prepare_qat(tied, config, 1, 1)
    assert quantized_blocks(30, 3, 2) == list(range(3, 28))
