"""Small frozen models and their exports, for the tests of both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from pangu_hif8.config import QuantConfig
from pangu_hif8.export import export_hif8
from pangu_hif8.export_files import CONFIG_FILE, TENSORS_FILE
from pangu_hif8.files import digest, sha256_file, write_json
from pangu_hif8.linear import prepare_qat

TOKENS = torch.randint(0, 64, (3, 11), generator=torch.Generator().manual_seed(5))
ALGORITHMS = ("most_recent", "exponential_smoothing", "current", "max_window")
LAYER = "model.layers.1.mlp.gate_proj"


def frozen_llama(
    algo: str = "max_window", overflow: str = "saturate", dtype: torch.dtype = torch.float32, **more: Any
) -> LlamaForCausalLM:
    """A tiny Llama of 4 blocks, 2 quantized, after two training steps, its scales frozen."""
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=4, **(sizes | more))).to(dtype)
    state = prepare_qat(model, QuantConfig(amax_compute_algo=algo, overflow=overflow), 1, 1)
    state.set_mode("quantize")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(2):
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.update()
    state.set_mode("frozen")
    return model.eval()


def scaling_state(model: LlamaForCausalLM) -> Any:
    return model.get_submodule(LAYER).state


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good export, not to be changed."""
    out = tmp_path_factory.mktemp("export") / "out"
    export_hif8(frozen_llama(), out)
    return out


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    """The same to damage."""
    out = tmp_path / "copy"
    out.mkdir()
    for path in exported.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    return out


def change_config(out: Path, **changes: Any) -> None:
    """Change the configuration as someone would who knows the format: with a digest that fits."""
    values = json.loads((out / CONFIG_FILE).read_text())
    values = {k: v for k, v in (values | changes).items() if k != "settings_sha256" and v is not None}
    write_json(out / CONFIG_FILE, values | {"settings_sha256": digest(values)})


def change_tensors(out: Path, **changes: torch.Tensor | None) -> None:
    """Change, add or (None) remove tensors, with a sha256 that fits."""
    tensors = load_file(out / TENSORS_FILE) | changes
    save_file({name: t for name, t in tensors.items() if t is not None}, out / TENSORS_FILE)
    change_config(out, tensors_sha256=sha256_file(out / TENSORS_FILE))
