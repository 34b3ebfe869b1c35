"""The smoke profile's base model: a small Llama and its tokenizer, trained from nothing in under a minute.

Text and facts come from `world.py`, the tokenizer is a byte-level BPE trained on that text, the training
loop is the one that the experiments use. One thread, because a model of half a million parameters is
faster so, and because the sum's order (and with it every later digit) then does not depend on the machine's
number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pangu_hif8.config import DataConfig, ModelConfig, TrainConfig
from pangu_hif8.corpus import TrainingOrder, pack
from pangu_hif8.models import save_base
from pangu_hif8.world import finetuning_text, pretraining_text

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

EOS = "<|endoftext|>"
TOKENIZER_PARAGRAPHS = 3000
PASSES = 4  # over the packed pre-training text; the facts recur within it in other phrasings


def save_from_scratch(model: ModelConfig, data: DataConfig, target: Path) -> None:
    """Train tokenizer and model on the world of `data` and save both into `target` in hub layout."""
    assert model.pretrain and model.vocab_size and data.num_people
    tokenizer = train_tokenizer(data.num_people, data.seed, model.vocab_size)
    with _single_thread():
        network = build_model(model, tokenizer)
        _fit(network, model, pretraining_tokens(model, data, tokenizer))
    save_base(network, tokenizer, target)


def train_tokenizer(num_people: int, seed: int, vocab_size: int) -> PreTrainedTokenizerBase:
    """Byte-level BPE with at most `vocab_size` entries on the world's text, without BOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_tokenizer_text(num_people, seed), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=EOS)


def _tokenizer_text(num_people: int, seed: int) -> Iterator[str]:
    yield from islice(pretraining_text(num_people, seed), TOKENIZER_PARAGRAPHS)
    yield from islice(finetuning_text(num_people, seed), TOKENIZER_PARAGRAPHS)


def build_model(model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """A Llama of `model.architecture` with random weights that depend on the pretraining seed only."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    assert model.architecture and model.pretrain
    values: dict[str, Any] = {**model.architecture, "vocab_size": len(tokenizer)}
    config = LlamaConfig(**values, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, use_cache=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(model.pretrain.seed)
        return LlamaForCausalLM(config).float()


def pretraining_tokens(
    model: ModelConfig, data: DataConfig, tokenizer: PreTrainedTokenizerBase
) -> Callable[[int], torch.Tensor]:
    """The batches of pre-training: step (from 1) -> int64 [batch_size, sequence_length]."""
    import torch

    assert model.pretrain and data.num_people
    settings = model.pretrain
    num_sequences = max(settings.batch_size, -(-settings.steps * settings.batch_size // PASSES))
    documents = (tokenizer(t).input_ids for t in pretraining_text(data.num_people, data.seed))
    packed = pack(documents, tokenizer.eos_token_id, data.sequence_length, num_sequences)
    order = TrainingOrder(num_sequences, settings.batch_size, settings.seed)
    return lambda step: torch.from_numpy(packed.tokens[order.indices(step)].astype("int64"))


def _fit(network: PreTrainedModel, model: ModelConfig, batch_for_step: Callable[[int], torch.Tensor]) -> None:
    from pangu_hif8.train import fit

    assert model.pretrain
    settings = TrainConfig(
        steps=model.pretrain.steps,
        batch_size=model.pretrain.batch_size,
        micro_batch_size=model.pretrain.batch_size,
        optimizer=model.pretrain.optimizer,
    )
    fit(network, batch_for_step, settings, model.pretrain.lr, parallel="none", description="pre-training")
    network.eval()


@contextmanager
def _single_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
