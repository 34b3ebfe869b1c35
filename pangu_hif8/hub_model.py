"""A base model by its hub name or its folder: openPangu-Embedded, and any model with Llama's blocks.

openPangu's checkpoint brings its own code, which transformers 5 can't import. It needs none: it is Llama with
one flag `bias` for q, k, v and o, none in the MLP, and Llama's parameter names (its published
`modular_openpangu_dense.py` derives every class from Llama's). So its config.json is translated key by key.
A key that is not known here could change what the model computes, and is refused, never ignored.

Everything that can be wrong with a checkpoint is found before its weights are read, in an order that names
the cause: configuration, architecture, tokenizer, tensors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pangu_hif8.checkpoint_files import (
    CODE_FILES,
    ROTARY,
    SMALL_FILES,
    WEIGHT_FILES,
    StoredTensor,
    check_tensors,
    fetch_files,
    read_tensor,
    stored_tensors,
)
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json
from pangu_hif8.models import first_line, load_strict, save_base
from pangu_hif8.sentencepiece_tokenizer import MODEL_FILE, load_sentencepiece_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

OPENPANGU = "PanguEmbedded"
# Keys of openPangu's config.json. The first two groups go into LlamaConfig as they stand.
_REQUIRED = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "max_position_embeddings rms_norm_eps rope_theta hidden_act bias"
).split()
_OPTIONAL = (
    "head_dim attention_dropout initializer_range tie_word_embeddings bos_token_id eos_token_id pad_token_id"
).split()
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # allowed only where they change nothing
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False,),
    "mlp_bias": (False,),
    "pretraining_tp": (1,),
}
_HARMLESS = (
    "architectures auto_map model_type torch_dtype dtype transformers_version use_cache _name_or_path".split()
)
_REMEDY = (
    "fetch the checkpoint again, or take one of a Llama-like model (Llama, Qwen2, Qwen3, Mistral, SmolLM)"
)


def save_from_hub(
    name_or_dir: str | Path, target: Path, *, revision: str | None = None, trust_remote_code: bool = False
) -> None:
    """Write config.json, model.safetensors (float32) and the tokenizer of a hub model into `target`."""
    save_base(*load_hub_model(name_or_dir, revision=revision, trust_remote_code=trust_remote_code), target)


def load_hub_model(
    name_or_dir: str | Path,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (float32 unless `dtype` says otherwise, training mode off) and tokenizer, by hub name or folder.

    A folder needs no network. With `trust_remote_code`, the code of an architecture that transformers does
    not know is run; openPangu's never is. Raises UserError that names whatever does not fit.
    """
    import torch

    small = SMALL_FILES + (CODE_FILES if trust_remote_code else [])
    directory = fetch_files(name_or_dir, revision, small)
    config = load_config(directory, trust_remote_code=trust_remote_code)
    skeleton = _skeleton(directory, config, trust_remote_code)
    check_blocks(skeleton)
    tokenizer = _tokenizer(directory, config, trust_remote_code)
    _check_vocabulary(directory, config, tokenizer)
    directory = fetch_files(name_or_dir, revision, small + WEIGHT_FILES)
    stored = stored_tensors(directory)
    check_tensors(directory, stored, skeleton)
    options: dict[str, Any] = {"config": config, "trust_remote_code": trust_remote_code}
    model = load_strict(directory, remedy=_REMEDY, dtype=dtype or torch.float32, **options)
    _check_rotary(directory, stored, model)
    _plain_generation(model)
    return model, tokenizer


def load_config(directory: Path, *, trust_remote_code: bool = False) -> PretrainedConfig:
    """The model's configuration; openPangu's as a LlamaConfig. Raises UserError when it can't be used."""
    raw = read_json(directory / "config.json")
    kind = raw.get("model_type") if isinstance(raw, dict) else None
    if not isinstance(kind, str):
        raise UserError(f"{directory / 'config.json'} has no model_type; {_REMEDY}")
    if raw.get("quantization_config"):
        raise UserError(f"{directory} holds a model that is quantized already; take its unquantized weights")
    if kind == OPENPANGU:
        return _openpangu_config(directory, raw)
    return _native_config(directory, kind, trust_remote_code)


def _openpangu_config(directory: Path, raw: dict[str, Any]) -> PretrainedConfig:
    from transformers import LlamaConfig

    where = directory / "config.json"
    if missing := [key for key in _REQUIRED if key not in raw]:
        raise UserError(f"{where} lacks {', '.join(missing)}; take the file that came with the checkpoint")
    if unknown := sorted(set(raw) - {*_REQUIRED, *_OPTIONAL, *_NEUTRAL, *_HARMLESS}):
        raise UserError(
            f"{where} has {', '.join(unknown)}, which openPangu as Llama does not know; {_REMEDY}"
        )
    odd = [
        f"{key} {raw[key]!r}" for key, allowed in _NEUTRAL.items() if raw.get(key, allowed[0]) not in allowed
    ]
    if odd:
        raise UserError(
            f"{where} has {', '.join(odd)}, which would change the model's mathematics; {_REMEDY}"
        )
    taken = {key: raw[key] for key in (*_REQUIRED, *_OPTIONAL) if key in raw and key != "bias"}
    # absent, it means what openPangu's own configuration class means by it, not what Llama's does
    taken.setdefault("tie_word_embeddings", False)
    try:
        return LlamaConfig(**taken, attention_bias=raw["bias"], mlp_bias=False)
    except Exception as error:  # its validation raises kinds of its own, and ZeroDivisionError
        raise UserError(f"cannot use {where} ({first_line(error)}); {_REMEDY}") from error


def _native_config(directory: Path, kind: str, trust_remote_code: bool) -> PretrainedConfig:
    from transformers import CONFIG_MAPPING, AutoConfig

    if kind not in CONFIG_MAPPING and not trust_remote_code:
        raise UserError(
            f"{directory} is of model_type {kind!r}, which transformers does not know; its own code is not "
            f"run unless trust_remote_code is on; {_REMEDY}"
        )
    try:
        return AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # a configuration class may raise anything for odd values
        raise UserError(f"cannot use {directory / 'config.json'} ({first_line(error)}); {_REMEDY}") from error


def _skeleton(directory: Path, config: PretrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    """The model without memory for its weights: names, shapes and kinds of layers."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # an architecture without a causal language model, or impossible sizes
        raise UserError(f"cannot build the model of {directory} ({first_line(error)}); {_REMEDY}") from error


def check_blocks(model: PreTrainedModel) -> None:
    """Raise UserError unless every block has the three plain linears that the paper quantizes."""
    from torch import nn

    from pangu_hif8.linear import decoder_blocks
    from pangu_hif8.slots import LAYERS

    for number, block in enumerate(decoder_blocks(model)):
        mlp = getattr(block, "mlp", None)
        lacking = [name for name in LAYERS if type(getattr(mlp, name, None)) is not nn.Linear]
        if lacking:
            raise UserError(
                f"{type(model).__name__}: block {number} has no plain linear mlp.{', mlp.'.join(lacking)}; "
                "only models with Llama's MLP can be quantized here"
            )


def _tokenizer(directory: Path, config: PretrainedConfig, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """tokenizer.json where there is one; a lone tokenizer.model is rebuilt without its own code."""
    from transformers import AutoTokenizer

    if (directory / MODEL_FILE).is_file() and not (directory / "tokenizer.json").is_file():
        return _rebuilt_tokenizer(directory, config)
    try:
        return AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # json and tokenizers raise many kinds for a damaged file
        raise UserError(
            f"cannot load the tokenizer in {directory} ({first_line(error)}); {_REMEDY}"
        ) from error


def _rebuilt_tokenizer(directory: Path, config: PretrainedConfig) -> PreTrainedTokenizerBase:
    tokenizer = load_sentencepiece_tokenizer(directory)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        ours, theirs = getattr(tokenizer, name), getattr(config, name, None)
        if ours is not None and isinstance(theirs, int) and ours != theirs:
            raise UserError(
                f"{directory}: {name} is {ours} in the tokenizer and {theirs} in config.json; "
                "take the tokenizer that came with the checkpoint"
            )
    return tokenizer


def _check_vocabulary(directory: Path, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest >= config.vocab_size:
        raise UserError(
            f"{directory}: the tokenizer has ids up to {largest}, the model {config.vocab_size} embeddings; "
            "take the tokenizer that came with the checkpoint"
        )


def _check_rotary(directory: Path, stored: dict[str, StoredTensor], model: PreTrainedModel) -> None:
    """The checkpoint's own rotary frequencies, where it holds any, must be those of its config.

    The tolerance is the rounding of the type that they are stored in, or of float32 powers (1e-5).
    """
    import torch

    module = getattr(getattr(model, "model", None), "rotary_emb", None)
    for name in (name for name in stored if name.endswith(ROTARY)):
        frequencies = read_tensor(stored, name)
        rtol = max(torch.finfo(frequencies.dtype).eps, 1e-5)
        ours = getattr(module, "inv_freq", torch.empty(0)).float()
        if ours.shape != frequencies.shape or not torch.allclose(
            frequencies.float(), ours, rtol=rtol, atol=0
        ):
            raise UserError(f"{directory}: {name} is not what config.json's rope_theta gives; {_REMEDY}")


def _plain_generation(model: PreTrainedModel) -> None:
    """Drop a chat model's settings: its repetition penalty would change benchmarks, even greedy ones."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig.from_model_config(model.config)
