"""What one GPU must hold at the worst moment of a training step, part by part, as formulas.

Weights, gradients and AdamW's moments are float32. The worst moment is one of five: the start of the forward
pass (FSDP) or its end, the backward pass through the loss (log-softmax of the logits in float32, and two
gradients of that size), that of one block, or that of the embedding, whose dense gradient meets lm_head's
where they are tied.

FSDP is torch's fully_shard, one group a block and one for the rest (embedding, lm_head, last norm: the root).
The root stays gathered from forward to backward pass; of the blocks, one is at work and one on its way. A
gradient is whole until its group's backward pass is done, in every micro-batch; then it is sharded. Tests
compare all this with what torch's tracker sees of fully_shard.
"""

from __future__ import annotations

from dataclasses import dataclass

from pangu_hif8.plan_memory import (
    FLOAT32,
    MemorySettings,
    head_copy,
    log_softmax_bytes,
    saved_by_block,
    saved_by_blocks,
    saved_by_head,
    weight_copies,
)
from pangu_hif8.plan_shape import ModelShape


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, by part, at the worst moment, which `moment` names."""

    parts: dict[str, float]
    moment: str

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.parts.values())


def training_memory(shape: ModelShape, settings: MemorySettings) -> Memory:
    """The worst moment of a training step on one GPU."""
    states = _states(shape, settings)
    moments = {
        "start of the forward pass": _start_of_forward(shape, settings),
        "end of the forward pass": _end_of_forward(shape, settings),
        "backward pass of the loss": _backward_of_loss(shape, settings),
        "backward pass of a block": _backward_of_block(shape, settings),
        "backward pass of the embedding": _backward_of_embedding(shape, settings),
    }
    found = [
        Memory({part: size for part, size in (states | parts).items() if size}, name)
        for name, parts in moments.items()
    ]
    return max(found, key=lambda memory: memory.total)


def root_parameters(shape: ModelShape) -> int:
    """Parameters outside the blocks."""
    return shape.num_parameters - shape.num_blocks * shape.block_parameters


def _states(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    """What lives through the whole step; the root's gathered weights do through each pass."""
    whole = float(FLOAT32 * shape.num_parameters)
    sharded, ranks = settings.is_sharded, settings.ranks if settings.is_sharded else 1
    return {
        "weights, float32": whole / ranks,
        "gradients, float32": whole / ranks,
        "AdamW moments, float32": 2 * whole / ranks,
        "DDP gradient buckets": whole if settings.ranks > 1 and not sharded else 0.0,
        "FSDP: gathered weights": float(FLOAT32 * root_parameters(shape)) if sharded else 0.0,
    }


def _cached_quantized(shape: ModelShape, settings: MemorySettings) -> float:
    """Quantized weights are kept for all micro-batches of a step, except where parameters are sharded."""
    return 0.0 if settings.is_sharded else weight_copies(shape, settings)[1]


def _copies(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    """Weight copies between the forward pass and the blocks' backward passes."""
    plain, quantized = weight_copies(shape, settings)
    if settings.checkpointing:
        plain, quantized = head_copy(shape, settings), _cached_quantized(shape, settings)
    return {f"weight copies, {settings.precision}": plain, "quantized weights": quantized}


def _start_of_forward(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    """FSDP: the buffer from which the root was gathered is there until the first block's is unpacked."""
    if not settings.is_sharded:
        return {}
    gathered = root_parameters(shape) + shape.block_parameters
    return {"FSDP: gathered weights": 2.0 * FLOAT32 * gathered}


def _end_of_forward(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    """Logits, their float32 copy and log-softmax are there."""
    logits = shape.vocab_size * (settings.width * settings.tokens + FLOAT32 * settings.predicted_tokens)
    return _copies(shape, settings) | {
        "saved activations": saved_by_blocks(shape, settings) + saved_by_head(shape, settings),
        "logits and loss": logits + log_softmax_bytes(shape, settings),
    }


def _backward_of_loss(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    return _copies(shape, settings) | {
        "saved activations": saved_by_blocks(shape, settings) + saved_by_head(shape, settings),
        "logits and loss": 3 * log_softmax_bytes(shape, settings),
    }


def _backward_of_block(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    """The last block's backward pass, recomputed before with checkpointing; the logits are gone.

    With FSDP it may be that of the block before the last, when the last one's gradients are on their way.
    """
    plain, quantized = weight_copies(shape, settings)
    plain -= head_copy(shape, settings)
    saved, share = saved_by_blocks(shape, settings), 1 / shape.num_blocks
    freed = _saved_by_one(shape, settings) + (plain + quantized) * share
    if settings.checkpointing:
        freed = float(shape.hidden_size * FLOAT32 * settings.tokens)
        saved += _saved_by_one(shape, settings) - freed  # its input is kept already
        plain *= share
        quantized = _cached_quantized(shape, settings) or quantized * share
    return {
        f"weight copies, {settings.precision}": plain,
        "quantized weights": quantized,
        "saved activations": saved,
        "backward temporaries": _temporaries(shape, settings),
    } | _sharding_of_block(shape, settings, freed)


def _saved_by_one(shape: ModelShape, settings: MemorySettings) -> float:
    return sum(saved_by_block(shape, settings, settings.quantized).values()) * settings.tokens


def _sharding_of_block(shape: ModelShape, settings: MemorySettings, freed: float) -> dict[str, float]:
    """FSDP: this block and the next one gathered; lm_head's gradient and down's (its copy is free by then);
    and the gradients of the block before, where they are more than what its backward pass freed."""
    if not settings.is_sharded:
        return {}
    block = float(FLOAT32 * shape.block_parameters)
    copy = settings.width if settings.width < FLOAT32 else 0
    down = shape.hidden_size * shape.intermediate_size * (FLOAT32 - copy)
    whole = FLOAT32 * shape.embedding_weights + down + max(0.0, block - freed)
    return {
        "FSDP: gathered weights": FLOAT32 * root_parameters(shape) + 2 * block,
        "FSDP: gradients before they are sharded": whole,
    }


def _temporaries(shape: ModelShape, settings: MemorySettings) -> float:
    """Gradients of product, silu and up and of the residual; the input of down is free again by then.

    Or, with few tokens, those of the product and of down's weight, float32, on its way to be added up. (FSDP
    keeps that one: `_sharding_of_block`.)
    """
    product = shape.intermediate_size * settings.width * settings.tokens
    residual = shape.hidden_size * FLOAT32 * settings.tokens
    down = 0 if settings.is_sharded else shape.hidden_size * shape.intermediate_size * FLOAT32
    return float(residual + product + max(product, down))


def _backward_of_embedding(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    """Its dense gradient; where it is tied, lm_head's and the sum of both. With FSDP, lm_head's in any case,
    and the first block's on their way."""
    tied, sharded = shape.tie_word_embeddings, settings.is_sharded
    copies = 3 if tied else 2 if sharded else 1
    whole = float(copies * FLOAT32 * shape.embedding_weights)
    block = float(FLOAT32 * shape.block_parameters)
    return {
        "quantized weights": _cached_quantized(shape, settings),
        "backward temporaries": 0.0 if sharded else whole,
        "FSDP: gradients before they are sharded": whole + block if sharded else 0.0,
    }
