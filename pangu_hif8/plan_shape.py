"""The shape of a Llama-like model as numbers: parameters, matrix products, FLOPs.

Counts are exact (tests compare them with real models); they need no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pangu_hif8.errors import UserError

_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_blocks",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
)


@dataclass(frozen=True)
class ModelShape:
    """A decoder with SwiGLU, RMSNorm and grouped-query attention. Raises UserError for impossible sizes."""

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_blocks: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    num_first_hp_blocks: int = 3
    num_last_hp_blocks: int = 2
    source: str = ""

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{self.name}: {name} must be a whole number from 1, got {value!r}")
        if self.num_heads % self.num_key_value_heads:
            raise UserError(f"{self.name}: num_heads is not a multiple of num_key_value_heads")
        if self.num_quantized_blocks < 1:
            raise UserError(f"{self.name}: {self.num_blocks} blocks leave none to quantize")

    @classmethod
    def from_config(cls, name: str, config: Any, **more: Any) -> ModelShape:
        """From a Llama-like configuration: config.json's keys ("bias" is openPangu's), or an object."""
        values = dict(config) if isinstance(config, dict) else dict(config.to_dict())
        heads = values.get("num_attention_heads", 0)
        if not heads or "hidden_size" not in values:
            raise UserError(f"{name}: the configuration has no hidden_size or num_attention_heads")
        return cls(
            name=name,
            vocab_size=values.get("vocab_size", 0),
            hidden_size=values["hidden_size"],
            intermediate_size=values.get("intermediate_size", 0),
            num_blocks=values.get("num_hidden_layers", 0),
            num_heads=heads,
            num_key_value_heads=values.get("num_key_value_heads") or heads,
            head_dim=values.get("head_dim") or values["hidden_size"] // heads,
            tie_word_embeddings=bool(values.get("tie_word_embeddings", False)),
            attention_bias=bool(values.get("attention_bias", values.get("bias", False))),
            **more,
        )

    @property
    def num_quantized_blocks(self) -> int:
        """Blocks whose MLP is quantized."""
        return self.num_blocks - self.num_first_hp_blocks - self.num_last_hp_blocks

    @property
    def num_quantized_linears(self) -> int:
        """gate_proj, up_proj and down_proj of each quantized block."""
        return 3 * self.num_quantized_blocks

    @property
    def num_scales(self) -> int:
        """Amaxes that are reduced over ranks: two inputs (gate and up share one), three weights a block."""
        return 5 * self.num_quantized_blocks

    @property
    def attention_width(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def key_value_width(self) -> int:
        """Width of all key heads (or all value heads) together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def attention_weights(self) -> int:
        """Elements of q, k, v and o of one block, biases aside."""
        return 2 * self.hidden_size * (self.attention_width + self.key_value_width)

    @property
    def mlp_weights(self) -> int:
        """Elements of gate, up and down of one block."""
        return 3 * self.hidden_size * self.intermediate_size

    @property
    def block_parameters(self) -> int:
        """Parameters of one block: linears, biases of q, k, v and o, two norms."""
        bias = self.attention_width + 2 * self.key_value_width + self.hidden_size
        norms = 2 * self.hidden_size
        return self.attention_weights + self.mlp_weights + norms + (bias if self.attention_bias else 0)

    @property
    def embedding_weights(self) -> int:
        """Elements of the embedding, and of lm_head."""
        return self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters; a tied lm_head is counted once."""
        embeddings = self.embedding_weights * (1 if self.tie_word_embeddings else 2)
        return self.num_blocks * self.block_parameters + embeddings + self.hidden_size

    @property
    def matmul_weights(self) -> int:
        """Weights that each token is multiplied by: all linears and lm_head, but no embedding."""
        return self.num_blocks * (self.attention_weights + self.mlp_weights) + self.embedding_weights

    @property
    def quantized_weights(self) -> int:
        """Weights that pass through HiF8."""
        return self.num_quantized_blocks * self.mlp_weights

    def forward_flops_per_token(self, sequence_length: int) -> float:
        """2 N for the linears, 4 L H Q T for attention: a third of PaLM's 6 N + 12 L H Q T (arXiv 2204.02311,
        appendix B). The causal half that flash attention skips is counted, as it is there."""
        return 2.0 * self.matmul_weights + 4.0 * self.num_blocks * self.attention_width * sequence_length

    def train_flops_per_token(self, sequence_length: int) -> float:
        """Forward and backward; the backward pass has two matrix products for each of the forward's."""
        return 3.0 * self.forward_flops_per_token(sequence_length)


OPENPANGU_1B = ModelShape(
    name="openPangu-Embedded-1B",
    vocab_size=153376,
    hidden_size=1536,
    intermediate_size=6144,
    num_blocks=26,
    num_heads=12,
    num_key_value_heads=6,
    head_dim=128,
    tie_word_embeddings=True,
    attention_bias=True,
    source="its config.json (hub copy PIKA665/openPangu-Embedded-1B)",
)
SMOLLM2_135M = ModelShape(
    name="SmolLM2-135M",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_blocks=30,
    num_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    tie_word_embeddings=True,
    source="its config.json",
)
OPENPANGU_7B = ModelShape(
    name="openPangu-Embedded-7B",
    vocab_size=153376,
    hidden_size=4096,
    intermediate_size=12800,
    num_blocks=34,
    num_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
    attention_bias=True,
    source="its config.json (hub copy MYTH-Lab/FLUID)",
)
LLAMA_70B = ModelShape(
    name="Llama-3.1-70B",
    vocab_size=128256,
    hidden_size=8192,
    intermediate_size=28672,
    num_blocks=80,
    num_heads=64,
    num_key_value_heads=8,
    head_dim=128,
    tie_word_embeddings=False,
    source="its config.json",
)
