"""The training loop: AdamW on Hugging Face Accelerate, one optimizer step over one global batch at a time.

Labels are the input shifted once: position t predicts token t + 1. The loss of a step is the mean over
all predicted tokens of its global batch, so the size of the micro-batches changes nothing but memory.
Weights, gradients and AdamW's moments are float32 (master weights). Weight decay acts on matrices and
embeddings, not on norms and biases. The schedule is linear over `lr_warmup_steps`, then a cosine to zero.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from pangu_hif8.config import OptimizerConfig
from pangu_hif8.errors import UserError
from pangu_hif8.scaling import Mode, ScalingState, StepScaling

BatchForStep = Callable[[int], Tensor]


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step. `loss` in nats per token, `grad_norm` before clipping, `seconds` wall time."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    scaling: StepScaling | None


def learning_rate(step: int, *, steps: int, peak: float, warmup_steps: int) -> float:
    """Learning rate of a step counted from 1: linear to `peak` at `warmup_steps`, then cosine to zero.

    The last step has the smallest positive rate; the cosine would reach zero at step `steps` + 1.
    """
    if step <= warmup_steps:
        return peak * step / warmup_steps
    progress = (step - 1 - warmup_steps) / max(1, steps - warmup_steps)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def next_token_loss_sum(model: nn.Module, tokens: Tensor) -> Tensor:
    """Summed next-token cross-entropy (nats) of tokens [batch, seq]: logits at t against token t + 1."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="sum")


def fit(
    model: nn.Module,
    batch_for_step: BatchForStep,
    *,
    steps: int,
    micro_batch_size: int,
    lr: float,
    optimizer: OptimizerConfig,
    scaling: ScalingState | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    description: str = "training",
) -> list[StepRecord]:
    """Train `model` in place for `steps` optimizer steps and return one record a step.

    `batch_for_step(step)`, step from 1, gives int64 tokens [batch, seq]. With `scaling`, the first
    `bf16_warmup_steps` only record amaxes, the rest quantize. Raises UserError when a loss or a gradient
    is not finite.
    """
    loop = _Loop(model, lr, steps, micro_batch_size, optimizer, scaling)
    records = []
    for step in tqdm(range(1, steps + 1), desc=description, unit="step", mininterval=1.0):
        records.append(loop.step(step, batch_for_step(step)))
        if on_step:
            on_step(records[-1])
    if scaling:
        scaling.set_mode("off")
    return records


class _Loop:
    """What `fit` keeps between steps."""

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        steps: int,
        micro_batch_size: int,
        settings: OptimizerConfig,
        scaling: ScalingState | None,
    ) -> None:
        self.accelerator = Accelerator(mixed_precision="no")
        adamw = torch.optim.AdamW(
            _parameter_groups(model, settings.weight_decay),
            lr=lr,
            betas=(settings.adam_beta1, settings.adam_beta2),
            fused=True,
        )
        self.model, self.adamw = self.accelerator.prepare(model.train(), adamw)
        self.lr, self.steps, self.settings = lr, steps, settings
        self.micro_batch_size, self.scaling = micro_batch_size, scaling

    def step(self, step: int, tokens: Tensor) -> StepRecord:
        started = time.perf_counter()
        lr = learning_rate(step, steps=self.steps, peak=self.lr, warmup_steps=self.settings.lr_warmup_steps)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self._switch(step)
        loss = self._backward(tokens)
        grad_norm = float(
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.settings.max_grad_norm)
        )
        self._refuse_non_finite(step, loss, grad_norm)
        self.adamw.step()
        self.adamw.zero_grad()
        scaled = self.scaling.update() if self.scaling else None
        return StepRecord(step, loss, lr, grad_norm, time.perf_counter() - started, scaled)

    def _switch(self, step: int) -> None:
        if self.scaling:
            mode: Mode = "calibrate" if step <= self.scaling.config.bf16_warmup_steps else "quantize"
            if self.scaling.mode != mode:
                self.scaling.set_mode(mode)

    def _backward(self, tokens: Tensor) -> float:
        """Accumulate the gradient of the mean loss over the global batch; returns that loss."""
        tokens = tokens.to(self.accelerator.device)
        num_predicted = tokens.shape[0] * (tokens.shape[1] - 1)
        total = torch.zeros((), device=tokens.device)
        for chunk in tokens.split(self.micro_batch_size):
            loss = next_token_loss_sum(self.model, chunk) / num_predicted
            self.accelerator.backward(loss)
            total += loss.detach()
        return float(total)

    def _refuse_non_finite(self, step: int, loss: float, grad_norm: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise UserError(
                f"step {step}: loss {loss}, gradient norm {grad_norm}: not finite, so the run is stopped. "
                "Lower the learning rate, or look for damaged weights or data."
            )


def _parameter_groups(model: nn.Module, weight_decay: float) -> Iterator[dict[str, Any]]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    yield {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay}
    yield {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}
