"""Models that transformers knows: with Llama's blocks they load and convert, others get one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from openpangu_layout import sentencepiece_model, write_tokenizer

from pangu_hif8.errors import UserError
from pangu_hif8.hub_model import load_hub_model
from pangu_hif8.linear import converted_linears, prepare_qat
from pangu_hif8.models import bos_rule
from pangu_hif8.pretrain import train_tokenizer
from pangu_hif8.quant_config import QuantConfig

IDS = torch.randint(3, 400, (2, 17), generator=torch.Generator().manual_seed(0))
SIZES: dict[str, Any] = {
    "vocab_size": 448,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def change_config(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


def write_native(directory: Path, kind: str, **options: Any) -> transformers.PreTrainedModel:
    """A random model of a transformers architecture with a trained tokenizer, as its owner would save it."""
    config = getattr(transformers, f"{kind}Config")(**(SIZES | options))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(directory, max_shard_size="40KB")
    train_tokenizer(6, 0, 400).save_pretrained(directory)
    return model


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Mistral", "SmolLM3"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_native_model_loads_and_converts(tmp_path: Path, kind: str, tied: bool) -> None:
    extra = {"pad_token_id": 0} if kind == "SmolLM3" else {}
    expected = logits(write_native(tmp_path / "m", kind, tie_word_embeddings=tied, **extra))
    model, tokenizer = load_hub_model(tmp_path / "m")
    assert torch.equal(logits(model), expected)
    assert not bos_rule(tokenizer)
    prepare_qat(model, QuantConfig(amax_compute_algo="max_window"), 1, 1)
    assert len(converted_linears(model)) == 3


def test_llama_with_a_lone_tokenizer_model_needs_no_protobuf(tmp_path: Path) -> None:
    write_native(tmp_path / "m", "Llama")
    (tmp_path / "m" / "tokenizer.json").unlink()
    processor = write_tokenizer(tmp_path / "m", sentencepiece_model())
    change_config(tmp_path / "m", eos_token_id=processor.piece_to_id("[unused10]"))
    tokenizer = load_hub_model(tmp_path / "m")[1]
    assert tokenizer("a home").input_ids == [1, *processor.encode("a home")]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("GPT2", {}, r"no model\.layers"),
        ("Phi3", {"pad_token_id": 0}, r"no plain linear mlp\.gate_proj"),
        ("Qwen2Moe", {"num_experts": 2, "moe_intermediate_size": 8}, r"no plain linear mlp\.gate_proj"),
    ],
)
def test_another_architecture_gets_one_clear_error(
    tmp_path: Path, kind: str, options: dict[str, Any], message: str
) -> None:
    write_native(tmp_path / "m", kind, **options)
    with pytest.raises(UserError, match=message):
        load_hub_model(tmp_path / "m")


def test_a_model_that_is_no_language_model_is_a_user_error(tmp_path: Path) -> None:
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot build the model"):
        load_hub_model(tmp_path)


def test_remote_code_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    """Code of an unknown architecture: refused by default, run on demand; a file shows which."""
    code = tmp_path / "m" / "odd_code.py"
    write_native(tmp_path / "m", "Llama")
    change_config(
        tmp_path / "m",
        model_type="odd",
        auto_map={"AutoConfig": "odd_code.OddConfig", "AutoModelForCausalLM": "odd_code.OddModel"},
    )
    code.write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        "class OddConfig(LlamaConfig):\n    model_type = 'odd'\n"
        "class OddModel(LlamaForCausalLM):\n    config_class = OddConfig\n"
    )
    with pytest.raises(UserError, match="trust_remote_code"):
        load_hub_model(tmp_path / "m")
    assert not (tmp_path / "ran").exists()
    model, _ = load_hub_model(tmp_path / "m", trust_remote_code=True)
    assert type(model).__name__ == "OddModel"
    assert (tmp_path / "ran").exists()
