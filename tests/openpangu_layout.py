"""A small random checkpoint in the layout of openPangu-Embedded: its files, its keys, its quirks.

Taken from the published 7B checkpoint's config.json, tokenizer_config.json and index: `auto_map` to code that
must not run, one `bias` flag, bfloat16 shards with rotary constants for every block, special tokens scattered
over the vocabulary, and no tokenizer.json. Like the 1B's, the embeddings are tied here.
"""

from __future__ import annotations

import functools
import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pangu_hif8.world import finetuning_text

SPECIAL = ["<|User|>:", "<|Bot|>:", "[unused9]", "[unused10]"]
NUM_SHARDS = 3
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
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "model_type": "PanguEmbedded",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 16000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.2",
    "use_cache": True,
}
GENERATION = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "repetition_penalty": 1.1}


@functools.cache
def sentencepiece_model(**options: Any) -> bytes:
    """A BPE tokenizer.model with openPangu's kind of settings; `options` change the trainer's."""
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 420,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ",".join(SPECIAL),
    }
    lines = [line for text in islice(finetuning_text(6, 0), 60) for line in text.splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=f"{folder}/tokenizer",
            minloglevel=2,
            **(settings | options),
        )
        return (Path(folder) / "tokenizer.model").read_bytes()


def tokenizer_config(processor: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """openPangu's tokenizer_config.json for the tokens of `processor`."""
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


def write_tokenizer(directory: Path, model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Write tokenizer.model and tokenizer_config.json; returns sentencepiece's own view of them."""
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    (directory / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(processor)))
    return processor


def plain_llama() -> LlamaForCausalLM:
    """The same network as a Llama of transformers, biases not zero, weights exact in bfloat16."""
    names = set(CONFIG) - {"architectures", "auto_map", "bias", "model_type", "torch_dtype"}
    config = LlamaConfig(**{k: CONFIG[k] for k in names}, vocab_size=448, attention_bias=True, mlp_bias=False)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter).mul_(0.1).bfloat16().float())
    return model


def write_shards(directory: Path, tensors: dict[str, Tensor]) -> None:
    """`tensors` over three shards, with an index."""
    names, files = sorted(tensors), {}
    for number in range(NUM_SHARDS):
        file = f"model-{number + 1:05}-of-{NUM_SHARDS:05}.safetensors"
        chosen = {name: tensors[name].contiguous() for name in names[number::NUM_SHARDS]}
        save_file(chosen, directory / file, metadata={"format": "pt"})
        files |= dict.fromkeys(chosen, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def openpangu_tensors() -> dict[str, Tensor]:
    """The checkpoint's tensors: bfloat16, tied head left out, a rotary constant in every block."""
    model = plain_llama()
    tensors = {n: t.detach().bfloat16() for n, t in model.state_dict().items() if n != "lm_head.weight"}
    constant = model.model.rotary_emb.inv_freq
    for block in range(CONFIG["num_hidden_layers"]):
        tensors[f"model.layers.{block}.self_attn.rotary_emb.inv_freq"] = constant.clone()
    return tensors


def write_openpangu(directory: Path, **config: Any) -> Path:
    """Write the whole checkpoint into `directory`; `config` changes config.json."""
    processor = write_tokenizer(directory, sentencepiece_model())
    ids = {"eos_token_id": processor.piece_to_id("[unused10]"), "vocab_size": 448}
    (directory / "config.json").write_text(json.dumps(CONFIG | ids | config))
    (directory / "generation_config.json").write_text(json.dumps(GENERATION))
    write_shards(directory, openpangu_tensors())
    for module in ("configuration_openpangu_dense", "modeling_openpangu_dense", "tokenization_openpangu"):
        (directory / f"{module}.py").write_text(f"open({str(directory / 'ran')!r}, 'w')\nimport nowhere\n")
    return directory
