"""The checkpoint that every run starts from: float32 safetensors and a tokenizer in the hub's own layout.

Loading is strict: a tensor too few or too many is an error and never a randomly filled layer. Nothing here
runs code that came with a checkpoint, and nothing looks at the network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pangu_hif8.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

REMEDY = "delete the directory and run the prepare step again"


def save_base(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path) -> None:
    """Save a model and its tokenizer in hub layout, as one safetensors file."""
    network.save_pretrained(target, max_shard_size="100GB")
    tokenizer.save_pretrained(target)


def load_base(model_dir: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The prepared model (float32, training mode off) and tokenizer.

    Raises UserError when the directory is incomplete, or a tensor is missing, unexpected or of a wrong shape.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    return load_strict(model_dir, remedy=REMEDY), load_tokenizer(model_dir)


def load_strict(model_dir: Path, *, remedy: str, **options: Any) -> PreTrainedModel:
    """A causal language model from a local directory, training mode off, in float32 by default.

    `options` go to `from_pretrained`. Raises UserError that ends with `remedy` when the checkpoint can't be
    read or does not fit its config.
    """
    import torch
    from transformers import AutoModelForCausalLM

    fixed = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    defaults = {"dtype": torch.float32, "trust_remote_code": False}
    try:
        network, info = AutoModelForCausalLM.from_pretrained(model_dir, **(defaults | options | fixed))
    except Exception as error:  # safetensors, json and transformers raise many kinds for a damaged file
        raise UserError(f"cannot load the model in {model_dir} ({first_line(error)}); {remedy}") from error
    faults = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if faults:
        raise UserError(f"the checkpoint in {model_dir} does not fit its config: {faults}; {remedy}")
    return network.eval()


def first_line(error: Exception) -> str:
    """Kind and first line of an error, for a message of one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def load_tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a prepared model alone. Raises UserError when it is damaged."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # json and tokenizers raise many kinds for a damaged file
        raise UserError(
            f"cannot load the tokenizer in {model_dir} ({first_line(error)}); {REMEDY}"
        ) from error


def bos_rule(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether texts start with BOS: as the tokenizer itself does, the same for training and evaluation.

    SmolLM2's adds none (and was trained so), openPangu's does.
    """
    encoded = tokenizer("a").input_ids
    return tokenizer.bos_token_id is not None and encoded[0] == tokenizer.bos_token_id
