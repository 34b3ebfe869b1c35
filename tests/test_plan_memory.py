"""Formulas of memory and of parameters against real models: autograd's saved tensors and tracked allocations.

The tracked models have the paper's true width, on fake tensors, which have sizes and no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import LlamaConfig, LlamaForCausalLM

from pangu_hif8.config import QuantConfig
from pangu_hif8.linear import converted_linears, prepare_qat
from pangu_hif8.plan_memory import FLOAT32, MemorySettings, saved_for_backward
from pangu_hif8.plan_moments import training_memory
from pangu_hif8.plan_shape import OPENPANGU_1B, SMOLLM2_135M, ModelShape
from pangu_hif8.train import next_token_loss_sum

SMALL = ModelShape(
    name="small",
    vocab_size=100,
    hidden_size=48,
    intermediate_size=112,
    num_blocks=4,
    num_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    tie_word_embeddings=True,
    attention_bias=True,
    num_first_hp_blocks=1,
    num_last_hp_blocks=1,
)


def llama_config(shape: ModelShape) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_blocks,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tie_word_embeddings,
        attention_bias=shape.attention_bias,
        max_position_embeddings=2048,
    )


def llama(shape: ModelShape, checkpointing: bool = False) -> LlamaForCausalLM:
    model = LlamaForCausalLM(llama_config(shape)).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [(4, 4, 12), (4, 1, 12), (6, 2, 16)])
def test_parameters_are_counted_exactly(tied: bool, bias: bool, heads: tuple[int, int, int]) -> None:
    names = dict(zip(("num_heads", "num_key_value_heads", "head_dim"), heads, strict=True))
    shape = replace(SMALL, tie_word_embeddings=tied, attention_bias=bias, **names)
    with torch.device("meta"):
        model = llama(shape)
    assert sum(p.numel() for p in model.parameters()) == shape.num_parameters
    linears = [m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)]
    assert sum(linears) == shape.matmul_weights
    assert ModelShape.from_config("small", model.config, num_first_hp_blocks=1, num_last_hp_blocks=1) == shape


def test_the_papers_model_in_its_true_size() -> None:
    with torch.device("meta"):
        model = llama(OPENPANGU_1B)
        state = prepare_qat(model, QuantConfig(amax_compute_algo="max_window"), 3, 2)
    assert sum(p.numel() for p in model.parameters()) == OPENPANGU_1B.num_parameters == 1_155_912_192
    assert all(p.is_meta for p in model.parameters())  # no memory is used
    converted = converted_linears(model)
    assert len(converted) == OPENPANGU_1B.num_quantized_linears == 63
    weights = [model.get_submodule(name).weight.numel() for name in converted]
    assert sum(weights) == OPENPANGU_1B.quantized_weights
    assert len(state.names) == OPENPANGU_1B.num_scales == 105


def test_the_laptops_model() -> None:
    assert SMOLLM2_135M.num_parameters == 134_515_008


def saved_bytes(model: LlamaForCausalLM, tokens: torch.Tensor, autocast: bool) -> int:
    """Bytes of all storages that autograd keeps, parameters aside."""
    parameters = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameters:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=False):
            loss = next_token_loss_sum(model, tokens)
    assert loss.requires_grad
    return sum(storage.nbytes() for storage in kept.values())


def quantizing(model: LlamaForCausalLM, shape: ModelShape) -> Any:
    ends = (shape.num_first_hp_blocks, shape.num_last_hp_blocks)
    state = prepare_qat(model, QuantConfig(amax_compute_algo="max_window"), *ends)
    state.set_mode("quantize")
    return state


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_saved_tensors(tied: bool, precision: str, quantized: bool, checkpointing: bool) -> None:
    """Equal to the byte. Checkpointed blocks hold the rotary tables where hooks can't see them."""
    shape, autocast = replace(SMALL, tie_word_embeddings=tied), precision == "bfloat16"
    model = llama(shape, checkpointing)
    tokens = torch.randint(0, 100, (3, 40), generator=torch.Generator().manual_seed(0))
    if quantized:
        state = quantizing(model, shape)
        saved_bytes(model, tokens, autocast)
        state.update()  # from now on the scales are known, as in every step but the first
    measured = saved_bytes(model, tokens, autocast)
    values: Any = dict(precision=precision, quantized=quantized, checkpointing=checkpointing)
    tables = 2 * 40 * shape.head_dim * FLOAT32 if checkpointing else 0
    assert saved_for_backward(shape, MemorySettings(3, 40, **values)) == measured + tables


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Tensors without data. transformers can't see there that positions are plain, and would build a mask."""
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode():
        patch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda positions: None)
        yield


def tracked_peak(shape: ModelShape, settings: MemorySettings) -> int:
    """Bytes at the worst moment of a micro-batch other than the first, weights to gradients included."""
    with fake_tensors():
        model = llama(shape, settings.checkpointing)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        tokens = torch.zeros((settings.micro_batch, settings.sequence_length), dtype=torch.int64)
        autocast = settings.precision == "bfloat16"
        with tracker:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=False):
                loss = next_token_loss_sum(model, tokens)
            loss.backward()
        return max(sizes["Total"] for sizes in tracker.get_tracker_snapshot("peak").values())


@pytest.mark.parametrize(
    ("blocks", "vocab", "micro", "precision", "checkpointing", "moment"),
    [
        (4, 153376, 16, "bfloat16", False, "backward pass of the loss"),
        (4, 153376, 16, "bfloat16", True, "backward pass of the loss"),
        (4, 2000, 16, "bfloat16", True, "backward pass of a block"),
        (4, 2000, 1, "bfloat16", True, "backward pass of a block"),
        (4, 30000, 4, "float32", False, "end of the forward pass"),
        (4, 3000, 4, "float32", True, "backward pass of a block"),
        (2, 153376, 1, "bfloat16", True, "backward pass of the embedding"),
    ],
)
def test_worst_moment(
    blocks: int, vocab: int, micro: int, precision: Any, checkpointing: bool, moment: str
) -> None:
    """Within 1%; the moments that logits decide within a thousandth of that."""
    shape = replace(
        OPENPANGU_1B, num_blocks=blocks, vocab_size=vocab, num_first_hp_blocks=0, num_last_hp_blocks=0
    )
    settings = MemorySettings(micro, 1024, precision=precision, checkpointing=checkpointing, quantized=False)
    found = training_memory(shape, settings)
    assert found.moment == moment
    tolerance = 0.01 if moment == "backward pass of a block" else 2e-5
    assert found.total == pytest.approx(tracked_peak(shape, settings), rel=tolerance)


def test_optimizer_and_gradients_exactly() -> None:
    model = llama(SMALL)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    next_token_loss_sum(model, torch.zeros((2, 8), dtype=torch.int64)).backward()
    optimizer.step()
    parts = training_memory(SMALL, MemorySettings(2, 8)).parts
    moments = [state[name].nbytes for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert parts["AdamW moments, float32"] == sum(moments)
    assert parts["gradients, float32"] == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert parts["weights, float32"] == sum(p.nbytes for p in model.parameters())


def test_ddp_adds_buckets_and_fsdp_shards() -> None:
    whole = FLOAT32 * SMALL.num_parameters
    one, ddp = (training_memory(SMALL, MemorySettings(2, 8, ranks=ranks)) for ranks in (1, 4))
    assert ddp.total - one.total == ddp.parts["DDP gradient buckets"] == whole
    fsdp = training_memory(SMALL, MemorySettings(2, 8, ranks=4, parallel="fsdp")).parts
    for part in ("weights, float32", "gradients, float32", "AdamW moments, float32"):
        assert fsdp[part] == one.parts[part] / 4


def test_codes_are_smaller_than_the_plain_run() -> None:
    settings = MemorySettings(16, 1024)
    plain = saved_for_backward(OPENPANGU_1B, replace(settings, quantized=False))
    codes = saved_for_backward(OPENPANGU_1B, replace(settings, save_codes=True))
    inputs = (
        3 * 1536 + 6144
    )  # bytes a token that a block saves: two copies of one input, and one of the other
    blocks, tokens = OPENPANGU_1B.num_quantized_blocks, settings.tokens
    assert plain - codes == blocks * tokens * inputs  # the weights' copies are there in both
