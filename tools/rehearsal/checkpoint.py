"""A random checkpoint in the layout of openPangu-Embedded-1B: all 26 blocks, everything else small.

The keys of config.json are the published ones; weights lie in bfloat16 shards with an index, the head is
tied, every block has a rotary constant, code that must not run lies beside them, and the tokenizer is a
SentencePiece model that is trained here.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

NUM_BLOCKS = 26
NUM_SHARDS = 3
NUM_PIECES, NUM_EMBEDDINGS = 2000, 2048  # like openPangu's, the model has more embeddings than pieces
SPECIAL = ["<|User|>:", "<|Bot|>:", "[unused9]", "[unused10]"]
MODULES = ("configuration_openpangu_dense", "modeling_openpangu_dense", "tokenization_openpangu")
CODE = "raise SystemExit('code that came with a checkpoint was run')\n"
CONFIG: dict[str, Any] = {
    "architectures": ["PanguEmbeddedForCausalLM"],
    "auto_map": {
        "AutoConfig": "configuration_openpangu_dense.PanguEmbeddedConfig",
        "AutoModel": "modeling_openpangu_dense.PanguEmbeddedModel",
        "AutoModelForCausalLM": "modeling_openpangu_dense.PanguEmbeddedForCausalLM",
    },
    "bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 24,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 32768,
    "model_type": "PanguEmbedded",
    "num_attention_heads": 4,
    "num_hidden_layers": NUM_BLOCKS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 4000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.2",
    "use_cache": True,
    "vocab_size": NUM_EMBEDDINGS,
}
_NOT_LLAMAS = {"architectures", "auto_map", "bias", "model_type", "torch_dtype"}


def write_checkpoint(folder: Path, text: Sequence[str]) -> int:
    """Write it into `folder`, its tokenizer trained on `text`; returns the number of parameters."""
    folder.mkdir(parents=True)
    processor = _write_tokenizer(folder, text)
    config = CONFIG | {"eos_token_id": processor.piece_to_id("[unused10]")}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    tensors = _tensors()
    _write_shards(folder, tensors)
    for module in MODULES:
        (folder / f"{module}.py").write_text(CODE)
    return sum(tensor.numel() for name, tensor in tensors.items() if not name.endswith("inv_freq"))


def _write_tokenizer(folder: Path, text: Sequence[str]) -> sentencepiece.SentencePieceProcessor:
    trained = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=trained,
        model_type="bpe",
        vocab_size=NUM_PIECES,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=",".join(SPECIAL),
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(trained.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained.getvalue())
    (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config(processor), indent=1))
    return processor


def _tokenizer_config(processor: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    added = ["<unk>", "<s>", "</s>", *SPECIAL]
    return {
        "add_bos_token": True,
        "add_eos_token": False,
        "add_prefix_space": True,
        "added_tokens_decoder": {str(processor.piece_to_id(t)): {"content": t, **flags} for t in added},
        "auto_map": {"AutoTokenizer": ["tokenization_openpangu.PanguTokenizer", None]},
        "bos_token": "<s>",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[unused10]",
        "legacy": True,
        "model_max_length": 1000000000000000019884624838656,
        "pad_token": "<unk>",
        "sp_model_kwargs": {},
        "tokenizer_class": "PanguTokenizer",
        "unk_token": "<unk>",
    }


def _tensors() -> dict[str, Tensor]:
    """A plain Llama's weights in bfloat16, the tied head left out, with the rotary constants."""
    config = LlamaConfig(
        **{key: value for key, value in CONFIG.items() if key not in _NOT_LLAMAS},
        attention_bias=True,
        mlp_bias=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    tensors = {n: t.detach().bfloat16() for n, t in model.state_dict().items() if n != "lm_head.weight"}
    constant = model.model.rotary_emb.inv_freq
    names = [f"model.layers.{block}.self_attn.rotary_emb.inv_freq" for block in range(NUM_BLOCKS)]
    return tensors | {name: constant.clone() for name in names}


def _write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    names, files = sorted(tensors), dict[str, str]()
    for number in range(NUM_SHARDS):
        file = f"model-{number + 1:05}-of-{NUM_SHARDS:05}.safetensors"
        chosen = {name: tensors[name].contiguous() for name in names[number::NUM_SHARDS]}
        save_file(chosen, folder / file, metadata={"format": "pt"})
        files |= dict.fromkeys(chosen, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
