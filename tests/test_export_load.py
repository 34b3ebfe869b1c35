"""What load_hif8 refuses: foreign, damaged, newer, contradictory and dangerous files."""

from __future__ import annotations

import json
from pathlib import Path

import frozen_models
import pytest
import torch
from frozen_models import (
    LAYER,
    change_config,
    change_tensors,
    frozen_llama,
    logits,
)

from pangu_hif8.errors import UserError
from pangu_hif8.export import load_hif8
from pangu_hif8.export_files import CONFIG_FILE, TENSORS_FILE
from pangu_hif8.files import sha256_file

exported, copy = frozen_models.exported, frozen_models.copy  # fixtures

# ---- what can't be loaded ------------------------------------------------------------------------------


def unloadable(out: Path, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load_hif8(out)
    assert len(str(caught.value).splitlines()) == 1


def test_no_export_and_foreign_files_are_refused(copy, tmp_path):
    unloadable(tmp_path / "nowhere", "holds no exported HiF8 model")
    unloadable(copy / TENSORS_FILE, "holds no exported HiF8 model")
    frozen_llama().config.save_pretrained(tmp_path / "hub")
    unloadable(tmp_path / "hub", "holds no exported HiF8 model")
    for text in ('{"model_type": "llama"}', "[1, 2]", '{"format": "gguf", "version": 1}', "null"):
        (copy / CONFIG_FILE).write_text(text)
        unloadable(copy, "no configuration of an exported HiF8 model")


def test_a_newer_version_is_named_as_such(copy):
    change_config(copy, version=2, novelty=True)
    unloadable(copy, "format version 2, this pangu_hif8 reads up to 1; update it")


@pytest.mark.parametrize("version", ["1", True, 0, 1.0, -3])
def test_a_version_that_never_was_is_refused(version, copy):
    change_config(copy, version=version)
    unloadable(copy, "states no version that exists")


def test_every_cut_of_a_file_is_refused(copy):
    for name in (CONFIG_FILE, TENSORS_FILE):
        whole = (copy / name).read_bytes()
        for length in {0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 2}:
            (copy / name).write_bytes(whole[:length])
            unloadable(copy, "damaged|no configuration|states no version")
        (copy / name).write_bytes(whole + whole[:8])
        unloadable(copy, "damaged")
        (copy / name).write_bytes(whole)
    load_hif8(copy)


def test_a_flipped_byte_anywhere_is_refused(copy):
    generator = torch.Generator().manual_seed(0)
    for name in (CONFIG_FILE, TENSORS_FILE):
        whole = (copy / name).read_bytes()
        for place in torch.randint(0, len(whole) - 1, (40,), generator=generator).tolist():
            flipped = bytearray(whole)
            flipped[place] ^= 0x01
            (copy / name).write_bytes(flipped)
            unloadable(copy, ".")
        (copy / name).write_bytes(whole)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{" * 100_000, b'{"format": NaN', b"[" * 100_000])
def test_a_configuration_that_is_no_json_is_refused(content, copy):
    (copy / CONFIG_FILE).write_bytes(content)
    unloadable(copy, "damaged or cut short")


def test_a_pickle_is_refused_and_never_read(copy, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("torch.load"))
    monkeypatch.setattr("pickle.load", lambda *a, **k: pytest.fail("pickle"))
    torch.save({"x": torch.ones(1)}, copy / TENSORS_FILE)
    unloadable(copy, "sha256 differs")
    change_config(copy, tensors_sha256=sha256_file(copy / TENSORS_FILE))
    unloadable(copy, "can't be read")


def test_a_missing_tensor_file_is_named(copy):
    (copy / TENSORS_FILE).unlink()
    unloadable(copy, f"{TENSORS_FILE} is missing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lm_head.weight": None}, "1 tensors are missing, first lm_head.weight"),
        ({f"{LAYER}.weight_codes": None}, "missing, first model.layers.1.mlp.gate_proj.weight_codes"),
        ({f"{LAYER}.input_scale": None}, "missing, first model.layers.1.mlp.gate_proj.input_scale"),
        ({"model.rotary_emb.inv_freq": None}, "missing, first model.rotary_emb.inv_freq"),
        ({"model.extra": torch.zeros(2)}, "1 tensors are unexpected, first model.extra"),
        ({f"{LAYER}.weight": torch.zeros(48, 32)}, "unexpected"),
        ({f"{LAYER}.weight_codes": torch.zeros(32, 48, dtype=torch.uint8)}, r"torch.uint8 \[48, 32\]"),
        ({f"{LAYER}.weight_codes": torch.zeros(48, 32)}, r"expected torch.uint8 \[48, 32\]"),
        ({f"{LAYER}.weight_codes": torch.zeros(48, 32, dtype=torch.int8)}, "torch.int8"),
        ({f"{LAYER}.weight_scale": torch.ones(1)}, r"expected float \[\]"),
        ({"lm_head.weight": torch.zeros(64, 32, dtype=torch.int32)}, r"expected float \[64, 32\]"),
        ({"lm_head.weight": torch.zeros(63, 32)}, r"expected float \[64, 32\]"),
        ({f"{LAYER}.weight_scale": torch.ones((), dtype=torch.float16)}, "not a finite float32 above zero"),
        *(
            ({f"{LAYER}.{part}": torch.tensor(value)}, "not a finite float32 above zero")
            for part in ("weight_scale", "input_scale")
            for value in (float("nan"), float("inf"), -1.0, 0.0)
        ),
    ],
    ids=str,
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(changes, words, copy):
    change_tensors(copy, **changes)
    unloadable(copy, words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": []}, "layers must be named"),
        ({"layers": [LAYER, LAYER]}, "layers must be named"),
        ({"layers": ["model.layers.9.mlp.gate_proj"]}, "no layer model.layers.9.mlp.gate_proj"),
        ({"layers": [""]}, "not a plain linear"),
        ({"layers": ["model.norm"]}, "not a plain linear"),
        ({"layers": [LAYER]}, "missing"),
        ({"layers": "all"}, "layers: Input should be a valid list"),
        ({"input_scale": "current"}, "contradicts max_window"),
        ({"attn_implementation": "kernels-community/flash-attn"}, "attn_implementation: Input should be"),
        ({"novelty": 1}, "novelty: Extra inputs"),
        ({"quantization": {"amax_compute_algo": "median"}}, "amax_compute_algo"),
        ({"model": {}}, "no model can be built"),
        ({"model": {"model_type": "rnn-t"}}, "no model can be built"),
        ({"model": {"model_type": "gpt2"}}, "only Llama-like"),
        ({"model": {"model_type": "llama", "hidden_size": "wide"}}, "no model can be built"),
    ],
    ids=str,
)
def test_configurations_that_make_no_sense_are_refused(changes, words, copy):
    change_config(copy, **changes)
    unloadable(copy, words)


def test_code_that_a_configuration_names_is_not_run(copy, monkeypatch):
    monkeypatch.setattr(
        "transformers.models.auto.auto_factory.get_class_from_dynamic_module",
        lambda *a, **k: pytest.fail("remote code"),
    )
    values = json.loads((copy / CONFIG_FILE).read_text())["model"]
    change_config(copy, model=values | {"auto_map": {"AutoModelForCausalLM": "evil/repo--modeling.Evil"}})
    assert torch.equal(logits(load_hif8(copy)), logits(frozen_llama()))
