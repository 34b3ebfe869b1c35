"""The untouched checkpoint with quantizers in it: what quantization alone costs, before any training.

Every tensor is scaled by its own amax as it comes (current scaling), so no history is needed; a margin, an
overflow rule or a choice of blocks then acts on exactly known amaxes.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from pangu_hif8.experiments import RunConfig
from pangu_hif8.launch import accelerate_state
from pangu_hif8.models import load_base
from pangu_hif8.prepared import Prepared
from pangu_hif8.run import resolve_run
from pangu_hif8.train_stage import convert, make_deterministic

BASE = "E4"  # the experiment with current scaling


def probe_config(profile: str, **changes: Any) -> RunConfig:
    """The settings of a probe: E4's with `changes`; the weights keep no margin. Raises UserError."""
    weights = {"margin": 0.0} if "margin" in changes else None
    return resolve_run(BASE, profile, 0, weights=weights, **changes)


def load_probe(config: RunConfig, prepared: Prepared) -> tuple[nn.Module, Any]:
    """The base model with `config`'s quantizers, ready to evaluate, and its tokenizer."""
    make_deterministic(config.seed, config.train.num_threads)
    model, tokenizer = load_base(prepared.model_dir)
    model = model.to(accelerate_state().device)
    convert(model, config).set_mode("frozen")
    return model.eval(), tokenizer
