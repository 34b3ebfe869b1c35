"""openPangu-Embedded by its folder: the rehearsal in its real layout, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from openpangu_layout import (
    openpangu_tensors,
    plain_llama,
    write_openpangu,
    write_shards,
)
from safetensors.torch import load_file, save_file

from pangu_hif8.errors import UserError
from pangu_hif8.hub_model import load_config, load_hub_model, save_from_hub
from pangu_hif8.linear import converted_linears, prepare_qat
from pangu_hif8.models import bos_rule, load_base
from pangu_hif8.quant_config import QuantConfig

IDS = torch.randint(3, 400, (2, 17), generator=torch.Generator().manual_seed(0))
SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def openpangu(tmp_path: Path) -> Path:
    return write_openpangu(tmp_path / "openpangu")


def change_json(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | values))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def test_openpangus_logits_are_a_plain_llamas_bit_for_bit(openpangu: Path) -> None:
    model, _ = load_hub_model(openpangu)
    assert torch.equal(logits(model), logits(plain_llama()))
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_openpangu_has_biases_in_attention_alone(openpangu: Path) -> None:
    model, _ = load_hub_model(openpangu)
    block = model.model.layers[0]
    assert all(getattr(block.self_attn, f"{name}_proj").bias is not None for name in "qkvo")
    assert all(getattr(block.mlp, f"{name}_proj").bias is None for name in ("gate", "up", "down"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_openpangus_tokenizer_adds_bos_and_its_code_does_not_run(openpangu: Path) -> None:
    _, tokenizer = load_hub_model(openpangu, trust_remote_code=True)
    assert bos_rule(tokenizer)
    assert tokenizer.bos_token_id == 1
    assert not (openpangu / "ran").exists()


def test_prepare_qat_converts_openpangus_middle_blocks(openpangu: Path) -> None:
    model, _ = load_hub_model(openpangu)
    prepare_qat(model, QuantConfig(amax_compute_algo="max_window"), 1, 1)
    expected = {f"model.layers.{b}.mlp.{n}_proj" for b in (1, 2) for n in ("gate", "up", "down")}
    assert set(converted_linears(model)) == expected


def test_a_prepared_openpangu_is_a_base_model_like_any_other(openpangu: Path, tmp_path: Path) -> None:
    save_from_hub(openpangu, tmp_path / "base")
    model, tokenizer = load_base(tmp_path / "base")
    assert torch.equal(logits(model), logits(plain_llama()))
    assert model.config.model_type == "llama" and "auto_map" not in model.config.to_dict()
    text = "The home of Ana Bek is Oslo.\n  数"
    assert tokenizer(text).input_ids == load_hub_model(openpangu)[1](text).input_ids
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_a_chat_models_sampling_settings_do_not_reach_a_benchmark(openpangu: Path, tmp_path: Path) -> None:
    save_from_hub(openpangu, tmp_path / "base")
    settings = load_base(tmp_path / "base")[0].generation_config
    assert settings.do_sample in (None, False)
    assert settings.repetition_penalty in (None, 1.0) and settings.temperature in (None, 1.0)
    assert settings.eos_token_id == load_config(openpangu).eos_token_id


def test_numbers_come_from_the_config(openpangu: Path) -> None:
    changes = {"rope_theta": 5e5, "rms_norm_eps": 1e-6, "head_dim": 16, "num_key_value_heads": 1}
    change_json(openpangu / "config.json", **changes)
    config = load_config(openpangu)
    assert config.rope_parameters["rope_theta"] == 5e5
    assert (config.rms_norm_eps, config.head_dim, config.num_key_value_heads) == (1e-6, 16, 1)
    assert (config.attention_bias, config.mlp_bias) == (True, False)


def test_another_dtype(openpangu: Path) -> None:
    model, _ = load_hub_model(openpangu, dtype=torch.bfloat16)
    expected = openpangu_tensors()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qk_layernorm": True}, "qk_layernorm"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling"),
        ({"sliding_window": 512}, "sliding_window 512"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"rope_theta": 10000.0}, "rope_theta"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized already"),
        ({"num_hidden_layers": 5}, r"missing: model\.layers\.4"),
        ({"num_hidden_layers": 3}, r"unexpected: model\.layers\.3"),
        ({"bias": False}, r"unexpected: model\.layers\.0\.self_attn\.\w_proj\.bias"),
        ({"intermediate_size": 64}, r"wrong shape: .*mlp\.gate_proj\.weight \[48, 32\], not \[64, 32\]"),
        ({"tie_word_embeddings": False}, r"missing: lm_head\.weight"),
        ({"vocab_size": 400}, "tokenizer has ids up to 419, the model 400"),
        ({"eos_token_id": 2}, "eos_token_id is 6 in the tokenizer and 2"),
        ({"model_type": "odd"}, "model_type 'odd'"),
        ({"model_type": None}, "no model_type"),
        ({"num_attention_heads": 0}, "cannot use .*ZeroDivisionError"),
        ({"hidden_size": 33}, "cannot use|cannot build|wrong shape"),
    ],
)
def test_a_config_that_does_not_fit_is_named(openpangu: Path, change: dict[str, Any], message: str) -> None:
    change_json(openpangu / "config.json", **change)
    with pytest.raises(UserError, match=message) as error:
        load_hub_model(openpangu)
    assert "\n" not in str(error.value)
    assert not (openpangu / "ran").exists()


@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps", "bias", "num_key_value_heads"])
def test_a_number_that_is_missing_is_never_a_default(openpangu: Path, key: str) -> None:
    config = json.loads((openpangu / "config.json").read_text())
    del config[key]
    (openpangu / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=f"lacks {key}"):
        load_hub_model(openpangu)


def replace_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = openpangu_tensors()
    change(tensors)
    write_shards(directory, tensors)


def test_a_missing_an_extra_and_a_misshapen_tensor_are_named_at_once(openpangu: Path) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.norm.weight"]
        tensors["model.layers.9.odd.weight"] = torch.zeros(2)
        tensors["model.layers.0.self_attn.o_proj.bias"] = torch.zeros(31)

    replace_tensors(openpangu, change)
    with pytest.raises(UserError) as error:
        load_hub_model(openpangu)
    for part in (
        "missing: model.norm.weight",
        "unexpected: model.layers.9.odd",
        "o_proj.bias [31], not [32]",
    ):
        assert part in str(error.value)


def test_a_tied_head_may_be_there_when_it_is_equal(openpangu: Path) -> None:
    embedding = openpangu_tensors()["model.embed_tokens.weight"]
    replace_tensors(openpangu, lambda tensors: tensors.update({"lm_head.weight": embedding.clone()}))
    assert torch.equal(logits(load_hub_model(openpangu)[0]), logits(plain_llama()))
    replace_tensors(openpangu, lambda tensors: tensors.update({"lm_head.weight": embedding * 2}))
    with pytest.raises(UserError, match=r"ties lm_head\.weight"):
        load_hub_model(openpangu)


def test_a_missing_shard_is_named(openpangu: Path) -> None:
    (openpangu / SHARD).unlink()
    with pytest.raises(UserError, match=f"lacks {SHARD}"):
        load_hub_model(openpangu)


def test_a_truncated_shard_is_named(openpangu: Path) -> None:
    data = (openpangu / SHARD).read_bytes()
    (openpangu / SHARD).write_bytes(data[:-100])
    with pytest.raises(UserError, match=f"{SHARD} is damaged"):
        load_hub_model(openpangu)


def test_a_shard_without_its_tensor_is_named(openpangu: Path) -> None:
    tensors = load_file(openpangu / SHARD)
    lost = sorted(tensors)[0]
    del tensors[lost]
    save_file(tensors, openpangu / SHARD, metadata={"format": "pt"})
    with pytest.raises(UserError, match=rf"{lost} \({SHARD}\)"):
        load_hub_model(openpangu)


@pytest.mark.parametrize("content", ["{", "{}", '{"weight_map": []}', "[]"])
def test_a_damaged_index_is_a_user_error(openpangu: Path, content: str) -> None:
    (openpangu / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match=r"model\.safetensors\.index\.json"):
        load_hub_model(openpangu)


def test_pickles_are_never_read(openpangu: Path) -> None:
    for file in openpangu.glob("model*"):
        file.unlink()
    torch.save(openpangu_tensors(), openpangu / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"only pickles \(pytorch_model\.bin\)"):
        load_hub_model(openpangu)


def test_a_folder_without_config_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing"):
        load_hub_model(tmp_path)
