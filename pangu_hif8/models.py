"""The checkpoint that every run starts from: float32 safetensors and a tokenizer in the hub's own layout.

Loading is strict: a tensor too few or too many is an error and never a randomly filled layer. Nothing here
runs code that came with a checkpoint, and nothing looks at the network.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

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
    import torch
    from transformers import AutoModelForCausalLM

    try:
        network, info = AutoModelForCausalLM.from_pretrained(
            model_dir,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # safetensors, json and transformers raise many kinds for a damaged file
        raise UserError(f"cannot load the model in {model_dir} ({_first_line(error)}); {REMEDY}") from error
    faults = {kind: sorted(map(str, names)) for kind, names in info.items() if names}
    if faults:
        raise UserError(f"the checkpoint in {model_dir} does not fit its config: {faults}; {REMEDY}")
    return network.eval(), load_tokenizer(model_dir)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def load_tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a prepared model alone. Raises UserError when it is damaged."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
    except Exception as error:  # json and tokenizers raise many kinds for a damaged file
        raise UserError(
            f"cannot load the tokenizer in {model_dir} ({_first_line(error)}); {REMEDY}"
        ) from error


def bos_rule(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether texts start with BOS: as the tokenizer itself does, the same for training and evaluation.

    SmolLM2's adds none (and was trained so), openPangu's does.
    """
    encoded = tokenizer("a").input_ids
    return tokenizer.bos_token_id is not None and encoded[0] == tokenizer.bos_token_id
