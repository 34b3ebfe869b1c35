"""AdamW and its schedule: linear over `lr_warmup_steps`, then a cosine to zero.

Weight decay acts on matrices and embeddings, not on norms and biases. With `lr_decay_per_block` below 1
each block's rate is smaller than the next one's (layer-wise learning rates, the paper's future work).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pangu_hif8.config import OptimizerConfig

_BLOCK = re.compile(r"\.layers\.(\d+)\.")


def learning_rate(step: int, *, steps: int, peak: float, warmup_steps: int) -> float:
    """Learning rate of a step counted from 1: linear to `peak` at `warmup_steps`, then cosine to zero.

    The last step has the smallest positive rate; the cosine would reach zero at step `steps` + 1.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - 1 - warmup_steps) / max(1, steps - warmup_steps)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def make_adamw(model: nn.Module, lr: float, settings: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW on the model's trainable parameters, as they are now (sharded ones included)."""
    return torch.optim.AdamW(
        parameter_groups(model, settings),
        lr=lr,
        betas=(settings.adam_beta1, settings.adam_beta2),
        fused=True,
    )


def set_learning_rate(adamw: torch.optim.AdamW, lr: float) -> None:
    """Give every group its rate: `lr` times the group's factor."""
    for group in adamw.param_groups:
        group["lr"] = lr * group["lr_factor"]


def parameter_groups(model: nn.Module, settings: OptimizerConfig) -> list[dict[str, Any]]:
    """Groups by rate factor, then matrices before vectors; every trainable parameter is in one."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    depth = 1 + max((block for name, _ in named if (block := _block(name)) is not None), default=0)
    found: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in named:
        factor = settings.lr_decay_per_block ** _distance(name, depth)
        found.setdefault((factor, settings.weight_decay if p.ndim >= 2 else 0.0), []).append(p)
    ordered = sorted(found.items(), key=lambda item: (-item[0][0], -item[0][1]))
    return [{"params": ps, "lr_factor": factor, "weight_decay": decay} for (factor, decay), ps in ordered]


def _block(name: str) -> int | None:
    match = _BLOCK.search(name)
    return int(match.group(1)) if match else None


def _distance(name: str, depth: int) -> int:
    """Blocks between a parameter and the last block: 0 for it, the final norm and an untied head."""
    block = _block(name)
    if block is not None:
        return depth - 1 - block
    return depth if "embed" in name else 0


@torch.no_grad()
def step_in_bfloat16(adamw: torch.optim.AdamW) -> None:
    """A step as on bfloat16 weights without master copies: float32 inside, bfloat16 wherever it stores."""
    parameters = [p for group in adamw.param_groups for p in group["params"] if p.grad is not None]
    round_to_bfloat16(p.grad for p in parameters)
    adamw.step()
    round_to_bfloat16(parameters)
    for state in adamw.state.values():
        round_to_bfloat16([state["exp_avg"], state["exp_avg_sq"]])


@torch.no_grad()
def round_to_bfloat16(tensors: Iterable[Tensor]) -> None:
    """Give float32 tensors the values that they would have if they were stored in bfloat16."""
    for tensor in tensors:
        tensor.copy_(tensor.bfloat16())
