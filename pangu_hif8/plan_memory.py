"""What a training step keeps for its backward pass, part by part, as formulas.

The computation is float32, or bfloat16 by autocast (without its cache, as the training loop has it). The
saved tensors of a block are those that autograd keeps for the backward pass of transformers' Llama with SDPA;
tests count them in real models. The residual stream stays float32 under autocast, and each linear makes and
keeps its own bfloat16 copy of its input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pangu_hif8.errors import UserError
from pangu_hif8.plan_shape import ModelShape

Parallel = Literal["ddp", "fsdp"]
FLOAT32 = 4
USABLE_SHARE = 0.92  # assumed: the rest is the driver's context, the collectives' buffers and fragmentation


@dataclass(frozen=True)
class MemorySettings:
    """How a run is laid out on its GPUs. Raises UserError for nonsense."""

    micro_batch: int
    sequence_length: int
    accumulation_steps: int = 1
    ranks: int = 1
    parallel: Parallel = "ddp"
    precision: Literal["bfloat16", "float32"] = "bfloat16"
    checkpointing: bool = False
    quantized: bool = True
    save_codes: bool = False  # the quantized inputs kept as 8-bit codes for the backward pass

    def __post_init__(self) -> None:
        for name in ("micro_batch", "sequence_length", "accumulation_steps", "ranks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a whole number from 1, got {value!r}")
        if self.parallel not in ("ddp", "fsdp"):
            raise UserError(f"parallel is ddp or fsdp, not {self.parallel!r}")

    @property
    def width(self) -> int:
        """Bytes of a number in the computation."""
        return 2 if self.precision == "bfloat16" else FLOAT32

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are spread over ranks."""
        return self.parallel == "fsdp" and self.ranks > 1

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.sequence_length

    @property
    def predicted_tokens(self) -> int:
        """Those that have a label: all but the last of each sequence."""
        return self.micro_batch * (self.sequence_length - 1)


def saved_by_block(shape: ModelShape, settings: MemorySettings, quantized: bool) -> dict[str, float]:
    """Bytes per token that autograd keeps of one block, tensor by tensor."""
    hidden, inner, width = shape.hidden_size, shape.intermediate_size, settings.width
    autocast = settings.precision == "bfloat16"
    return {
        "residual before attention": hidden * FLOAT32,
        "normalized residual, 1 / rms": (hidden + 1) * FLOAT32,
        "inputs of q, k and v": (3 if autocast else 1) * hidden * width,
        "q, k and v": (shape.attention_width + 2 * shape.key_value_width) * width,
        "attention output and log-sum-exp": shape.attention_width * width + shape.num_heads * FLOAT32,
        "residual before the MLP": hidden * FLOAT32,
        "its normalized residual, 1 / rms": (hidden + 1) * FLOAT32,
        "inputs of gate and up": _gate_up_inputs(shape, settings, quantized),
        "gate, silu(gate), up": 3 * inner * width,
        "input of down": inner * (1 if quantized and settings.save_codes else width),
    }


def _gate_up_inputs(shape: ModelShape, settings: MemorySettings, quantized: bool) -> float:
    if quantized and settings.save_codes:
        return shape.hidden_size
    # Under autocast each plain layer casts the input for itself; quantized layers share what is quantized.
    shared = quantized or settings.precision == "float32"
    return (1 if shared else 2) * shape.hidden_size * settings.width


def saved_by_blocks(shape: ModelShape, settings: MemorySettings) -> float:
    """Bytes that the blocks keep for the backward pass: everything, or their inputs with checkpointing."""
    if settings.checkpointing:
        return float(shape.num_blocks * shape.hidden_size * FLOAT32 * settings.tokens)
    return sum(
        count * sum(saved_by_block(shape, settings, quantized).values()) * settings.tokens
        for quantized, count in _blocks(shape, settings).items()
    )


def _blocks(shape: ModelShape, settings: MemorySettings) -> dict[bool, int]:
    quantized = shape.num_quantized_blocks if settings.quantized else 0
    return {True: quantized, False: shape.num_blocks - quantized}


def saved_by_head(shape: ModelShape, settings: MemorySettings) -> float:
    """Bytes kept outside the blocks, logits aside: final norm, lm_head's input, rotary tables, token ids."""
    final = (2 * shape.hidden_size + 1) * FLOAT32 + shape.hidden_size * settings.width
    rotary = 2 * settings.sequence_length * shape.head_dim * FLOAT32
    ids = 8 * (settings.tokens + settings.predicted_tokens)
    return final * settings.tokens + rotary + ids + FLOAT32


def log_softmax_bytes(shape: ModelShape, settings: MemorySettings) -> float:
    """The float32 log-softmax of the logits, which the loss keeps."""
    return float(shape.vocab_size * FLOAT32 * settings.predicted_tokens)


def weight_copies(shape: ModelShape, settings: MemorySettings) -> tuple[float, float]:
    """Bytes of the weights' copies in the computation's precision: (plain, quantized), lm_head included.

    Without autocast a plain linear uses the weight itself.
    """
    quantized = shape.quantized_weights if settings.quantized else 0
    plain = (shape.matmul_weights - quantized) * settings.width if settings.width < FLOAT32 else 0
    return float(plain), float(quantized * settings.width)


def head_copy(shape: ModelShape, settings: MemorySettings) -> float:
    """lm_head's own copy: all that autograd keeps of the copies with checkpointing."""
    return float(shape.embedding_weights * settings.width) if settings.width < FLOAT32 else 0.0


def saved_for_backward(shape: ModelShape, settings: MemorySettings) -> float:
    """All bytes that autograd keeps at the end of a forward pass, parameters aside."""
    copies = weight_copies(shape, settings)
    if settings.checkpointing:
        copies = (head_copy(shape, settings), 0.0)
    kept = saved_by_blocks(shape, settings) + saved_by_head(shape, settings)
    return kept + log_softmax_bytes(shape, settings) + sum(copies)
