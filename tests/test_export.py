"""An exported model gives the frozen model's numbers from 8-bit codes; what can't be exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import frozen_models
import pytest
import torch
from frozen_models import (
    ALGORITHMS,
    LAYER,
    TOKENS,
    frozen_llama,
    logits,
    scaling_state,
)
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from pangu_hif8.codes_linear import HiF8CodesLinear
from pangu_hif8.errors import UserError
from pangu_hif8.export import export_hif8, load_hif8
from pangu_hif8.export_files import CONFIG_FILE, TENSORS_FILE
from pangu_hif8.linear import converted_linears

exported = frozen_models.exported  # fixtures

# ---- the same numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("overflow", ["saturate", "taper"])
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_logits_are_the_frozen_model_s_bit_for_bit(algo, overflow, tied, tmp_path):
    model = frozen_llama(algo, overflow, tie_word_embeddings=tied)
    with torch.no_grad():
        model.model.layers[1].post_attention_layernorm.weight.mul_(3.0)  # inputs beyond the estimate,
        for factor, row in ((3.0, 0), (1e5, 1)):  # and weights beyond it, and beyond the format
            model.get_submodule(LAYER).weight[row].mul_(factor)
    export_hif8(model, tmp_path / "out")
    loaded = load_hif8(tmp_path / "out")
    assert torch.equal(logits(loaded), logits(model))
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    assert type(loaded) is LlamaForCausalLM and not loaded.training


def test_overflow_modes_differ_so_that_equality_means_something():
    outputs = []
    for overflow in ("saturate", "taper"):
        model = frozen_llama("most_recent", overflow)
        with torch.no_grad():
            model.model.layers[1].post_attention_layernorm.weight.mul_(3.0)
        outputs.append(logits(model))
    assert not torch.equal(*outputs)


@pytest.mark.parametrize(
    "more",
    [
        dict(dtype=torch.bfloat16),
        dict(dtype=torch.float16),
        dict(mlp_bias=True, attention_bias=True),
        dict(attn_implementation="eager"),
        dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    ],
    ids=str,
)
def test_other_types_and_architectures_are_equal_too(more, tmp_path):
    model = frozen_llama(**more)
    export_hif8(model, tmp_path / "out")
    loaded = load_hif8(tmp_path / "out")
    assert torch.equal(logits(loaded), logits(model))
    assert loaded.dtype == model.dtype
    assert loaded.config._attn_implementation == model.config._attn_implementation


def test_gradients_reach_the_input_as_in_the_frozen_model(exported):
    grads = []
    for model in (frozen_llama(), load_hif8(exported)):
        x = model.get_input_embeddings()(TOKENS).detach().requires_grad_()
        model(inputs_embeds=x).logits.square().sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_buffers_that_share_memory_are_stored_each(tmp_path):
    model = frozen_llama()
    model.model.rotary_emb.original_inv_freq = model.model.rotary_emb.inv_freq
    export_hif8(model, tmp_path / "out")
    assert torch.equal(logits(load_hif8(tmp_path / "out")), logits(model))


def test_an_export_again_gives_the_same_bytes(exported, tmp_path):
    export_hif8(frozen_llama(), tmp_path / "again")
    for name in (CONFIG_FILE, TENSORS_FILE):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes()


def test_exporting_and_loading_change_neither_model_nor_random_state(tmp_path):
    model = frozen_llama()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    scaling, random_state = scaling_state(model).state_dict(), torch.get_rng_state()
    export_hif8(model, tmp_path / "out")
    load_hif8(tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    after = scaling_state(model).state_dict()
    assert all(torch.equal(after[name], scaling[name]) for name in scaling)


# ---- eight bits ----------------------------------------------------------------------------------------


def test_weights_stay_codes_in_memory_and_every_other_tensor_is_as_trained(exported):
    model, loaded = frozen_llama(), load_hif8(exported)
    layers = {name: m for name, m in loaded.named_modules() if isinstance(m, HiF8CodesLinear)}
    assert list(layers) == converted_linears(model)
    logits(loaded)
    for name, layer in layers.items():
        assert layer.weight_codes.dtype == torch.uint8
        assert sum(b.nbytes for b in layer.buffers()) == layer.weight_codes.numel() + 8
        assert torch.equal(layer.dequantize(), model.get_submodule(name)._weight())
    trained = dict(model.named_parameters())
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, trained[name])
    assert not any(tensor.is_meta for tensor in [*loaded.parameters(), *loaded.buffers()])


@pytest.mark.parametrize("algo", ["max_window", "current"])
def test_file_sizes(algo, tmp_path):
    model = frozen_llama(algo, hidden_size=128, intermediate_size=352)
    sizes = export_hif8(model, tmp_path / "out")
    num_weights = 6 * 128 * 352
    num_scales = 6 if algo == "current" else 12
    assert sizes.num_layers == 6
    assert (sizes.weights_before, sizes.weights_after) == (4 * num_weights, num_weights + 4 * num_scales)
    assert sizes.whole_after == (tmp_path / "out" / TENSORS_FILE).stat().st_size
    header_and_buffers = 10_000
    saved = sizes.weights_before - sizes.weights_after
    assert 0 <= sizes.whole_after - (sizes.whole_before - saved) < header_and_buffers


def test_a_cast_of_the_model_leaves_codes_and_scales(exported):
    plain, cast = load_hif8(exported), load_hif8(exported).to(torch.bfloat16)
    assert cast.lm_head.weight.dtype == torch.bfloat16
    for name, buffer in plain.get_submodule(LAYER).named_buffers():
        other = cast.get_submodule(LAYER).get_buffer(name)
        assert other.dtype == buffer.dtype and torch.equal(other, buffer)
    assert logits(cast).dtype == torch.bfloat16
    assert "input_scale=frozen" in repr(plain.get_submodule(LAYER))


def test_the_configuration_says_what_is_in_the_file(exported):
    values = json.loads((exported / CONFIG_FILE).read_text())
    assert (values["format"], values["version"]) == ("pangu_hif8", 1)
    assert values["quantization"]["amax_compute_algo"] == "max_window"
    assert values["input_scale"] == "frozen" and values["layers"][0] == LAYER and len(values["layers"]) == 6
    assert values["model"]["model_type"] == "llama" and values["model"]["hidden_size"] == 32
    assert not {"_name_or_path", "auto_map"} & values["model"].keys()
    tensors = load_file(exported / TENSORS_FILE)
    assert tensors[f"{LAYER}.weight_codes"].dtype == torch.uint8
    assert tensors[f"{LAYER}.weight_scale"].dtype == tensors[f"{LAYER}.input_scale"].dtype == torch.float32
    assert f"{LAYER}.weight" not in tensors
    assert {path.name for path in exported.iterdir()} == {CONFIG_FILE, TENSORS_FILE}
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in exported.iterdir())


def test_current_scaling_has_no_input_scale(tmp_path):
    export_hif8(frozen_llama("current"), tmp_path / "out")
    assert json.loads((tmp_path / "out" / CONFIG_FILE).read_text())["input_scale"] == "current"
    assert not any(name.endswith("input_scale") for name in load_file(tmp_path / "out" / TENSORS_FILE))


# ---- what can't be exported ----------------------------------------------------------------------------


def refused(model: Any, out: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        export_hif8(model, out)
    assert len(str(caught.value).splitlines()) == 1
    assert not out.exists() and not list(out.parent.glob(f".{out.name}.*"))


def test_a_model_without_quantized_layers_is_refused(tmp_path):
    refused(LlamaForCausalLM(frozen_llama().config), tmp_path / "out", "no HiF8Linear")
    refused(torch.nn.Linear(2, 2), tmp_path / "out", "Llama-like")


@pytest.mark.parametrize("mode", ["off", "calibrate", "quantize"])
def test_scales_that_move_are_refused(mode, tmp_path):
    model = frozen_llama()
    scaling_state(model).set_mode(mode)
    refused(model, tmp_path / "out", f'in mode "{mode}"')


def test_a_cold_scale_is_refused_except_where_it_is_not_used(tmp_path):
    for algo in ALGORITHMS:
        model = frozen_llama(algo)
        scaling_state(model).estimate[3] = 0.0
        if algo == "current":
            export_hif8(model, tmp_path / "out")
        else:
            refused(model, tmp_path / algo, "1.up_proj.weight has no estimate")


def test_a_weight_that_is_not_finite_is_refused(tmp_path):
    model = frozen_llama()
    model.get_submodule(LAYER).weight.data[3, 4] = float("nan")
    refused(model, tmp_path / "out", "1.gate_proj.weight has values that are not finite")


def test_a_model_that_its_configuration_does_not_describe_is_refused(tmp_path):
    model = frozen_llama()
    model.extra = torch.nn.Parameter(torch.zeros(2))
    refused(model, tmp_path / "out", "not what its configuration describes: 1 tensors are unexpected")
    model = frozen_llama()
    model.lm_head.weight = model.model.embed_tokens.weight  # tied by hand
    refused(model, tmp_path / "out", "1 tensors are missing, first lm_head.weight")
    model = frozen_llama()
    model.config.vocab_size = 65
    refused(model, tmp_path / "out", r"expected float \[65, 32\]")
    model = frozen_llama()
    model.config._attn_implementation = "flex_attention"
    refused(model, tmp_path / "out", "attention 'flex_attention' can't be exported")
    model = frozen_llama()
    model.config.mine = object()
    refused(model, tmp_path / "out", "can't be written as JSON")


def test_two_states_are_refused(tmp_path):
    model = frozen_llama()
    model.model.layers[2].mlp = frozen_llama().model.layers[2].mlp
    refused(model, tmp_path / "out", "several ScalingStates")


@pytest.mark.parametrize("kind", ["directory", "file", "dangling link"])
def test_what_exists_is_never_overwritten(kind, tmp_path):
    out = tmp_path / "out"
    if kind == "directory":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="exists already"):
        export_hif8(frozen_llama(), out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_half_way_leaves_nothing(tmp_path, monkeypatch):
    class Broken:
        def save_pretrained(self, directory: Path) -> None:
            (Path(directory) / "half").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device"):
        export_hif8(frozen_llama(), tmp_path / "new" / "out", tokenizer=Broken())
    assert not list((tmp_path / "new").iterdir())
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot write"):
        export_hif8(frozen_llama(), blocked / "out")


# ---- the tokenizer -------------------------------------------------------------------------------------


def test_a_tokenizer_travels_along(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoTokenizer

    plain = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?", eos_token="?")
    export_hif8(frozen_llama(), tmp_path / "out", tokenizer=tokenizer)
    again = AutoTokenizer.from_pretrained(tmp_path / "out", local_files_only=True)
    assert again("a b c").input_ids == [0, 1, 2]
    load_hif8(tmp_path / "out")
