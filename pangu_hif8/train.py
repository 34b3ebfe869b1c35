"""The training loop: AdamW, one optimizer step over one global batch at a time, on one core or many ranks.

Labels are the input shifted once: position t predicts token t + 1. The loss of a step is the mean over all
predicted tokens of its global batch, so the size of the micro-batches changes nothing but memory. Weights,
gradients and AdamW's moments are float32 (master weights); `precision` is that of the computation.

A run without warm-up looks at its first global batch once, unquantized, so that the first step has a scale
that does not depend on how the batch is cut (`ScalingState.seed`). A step whose loss or gradient is not
finite changes nothing, neither weights nor amax history; it is counted, and several in a row end the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm.auto import tqdm

from pangu_hif8.compiling import compile_model, compiler_errors
from pangu_hif8.config import TrainConfig
from pangu_hif8.diagnosis import by_rank, first_non_finite
from pangu_hif8.errors import UserError
from pangu_hif8.launch import Parallel
from pangu_hif8.linear import refresh_weights
from pangu_hif8.optimizer import (
    learning_rate,
    make_adamw,
    round_to_bfloat16,
    set_learning_rate,
    step_in_bfloat16,
)
from pangu_hif8.phases import begin_step, check_combination, joined
from pangu_hif8.ranks import Ranks, whole
from pangu_hif8.scaling import ScalingState, StepScaling

BatchForStep = Callable[[int], Tensor]


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step. `loss` in nats per token, `grad_norm` before clipping, `seconds` wall time.

    `skipped`: loss or gradient was not finite and nothing changed. `moved_share`: share of the matrices'
    elements that the step changed, where that is recorded.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    scaling: StepScaling | None
    skipped: bool = False
    moved_share: float | None = None


def next_token_loss_sum(model: nn.Module, tokens: Tensor, label_shift: int = 1) -> Tensor:
    """Summed next-token cross-entropy (nats) of tokens [batch, seq]: logits at t against token t + 1.

    `label_shift` 2 is the published code's: against token t + 2.
    """
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-label_shift]
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, label_shift:].flatten(), reduction="sum")


class Trainer:
    """Model, optimizer, scales and ranks; `run_step` is one optimizer step."""

    def __init__(
        self, model: nn.Module, settings: TrainConfig, lr: float, scaling: ScalingState | None, ranks: Ranks
    ) -> None:
        check_combination(settings, scaling, ranks)
        ranks.check_sizes(settings.batch_size, settings.micro_batch_size)
        self.model, self.settings, self.lr, self.scaling, self.ranks = model, settings, lr, scaling, ranks
        if scaling:
            scaling.cache_weights = not ranks.is_sharded
        if settings.activation_checkpointing:
            checkpointed: Any = model
            checkpointed.activation_checkpointing_enable({"use_reentrant": False})
        if settings.weight_dtype == "bfloat16":
            round_to_bfloat16(model.parameters())
        model.train()
        self.wrapped = ranks.wrap(compile_model(model) if settings.compile else model)
        self.adamw = make_adamw(model, lr, settings.optimizer)
        self.num_skipped_in_row = 0
        self._before: dict[str, Tensor] | None = None  # scales before a step that may change them early
        self.stopping = False
        self.stop_requested: Callable[[], bool] = lambda: False
        self.describe_batch: Callable[[int], str] = lambda step: f"that of step {step}"

    def finish(self) -> None:
        """Leave the model as a plain one: scales off."""
        if self.scaling:
            self.scaling.set_mode("off")

    def run_step(self, step: int, tokens: Tensor) -> StepRecord:
        """Train on tokens [batch_size, seq], the whole global batch, of which each rank takes its share."""
        started = time.perf_counter()
        lr = self._set_learning_rate(step)
        chunks = self.ranks.micro_batches(tokens, self.settings.micro_batch_size)
        num_predicted = tokens.shape[0] * (tokens.shape[1] - self.settings.label_shift)
        self._begin(step, chunks, num_predicted)
        loss, parts = self._backward(chunks, num_predicted)
        grad_norm = self._clip()
        skipped = not (math.isfinite(loss) and math.isfinite(grad_norm))
        moved = None
        if skipped:
            self._skip(step, loss, grad_norm, chunks)
        else:
            moved = self._update_weights(step)
            parts += [self.scaling.update()] if self.scaling else []
        self.adamw.zero_grad()
        scaled = joined(parts) if parts and not skipped else None
        return StepRecord(step, loss, lr, grad_norm, time.perf_counter() - started, scaled, skipped, moved)

    def _set_learning_rate(self, step: int) -> float:
        warmup = self.settings.optimizer.lr_warmup_steps
        lr = learning_rate(step, steps=self.settings.steps, peak=self.lr, warmup_steps=warmup)
        set_learning_rate(self.adamw, lr)
        return lr

    def _begin(self, step: int, chunks: Sequence[Tensor], num_predicted: int) -> None:
        scaling = self.scaling
        if scaling is None:
            return
        begin_step(scaling, step, self.settings)
        seeds = scaling.mode == "quantize" and scaling.needs_seed
        early = seeds or scaling.config.history_unit == "micro_batch"
        self._before = scaling.state_dict() if early else None
        if seeds:
            with scaling.seed():
                self._look_at(chunks, num_predicted, scaling.config.gradients is not None)
        if self.settings.compile:
            with self._autocast():
                refresh_weights(self.model)

    def _look_at(self, chunks: Sequence[Tensor], num_predicted: int, backward: bool) -> None:
        """A pass that changes nothing but amaxes."""
        for chunk in chunks:
            with nullcontext() if backward else torch.no_grad():
                loss = self._loss(self.model, chunk) / num_predicted
            if backward:
                loss.backward()
        self.adamw.zero_grad()

    def _loss(self, model: nn.Module, tokens: Tensor) -> Tensor:
        with self._autocast():
            return next_token_loss_sum(model, tokens, self.settings.label_shift)

    def _autocast(self) -> torch.autocast:
        """Without autocast's cache, whose copies of all weights would live until the loss is there."""
        on, kind = self.settings.precision == "bfloat16", self.ranks.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=on, cache_enabled=False)

    def _backward(self, chunks: Sequence[Tensor], num_predicted: int) -> tuple[float, list[StepScaling]]:
        """Accumulate the gradient of the mean loss over the global batch; that loss, and what was closed."""
        total = torch.zeros(2, device=self.ranks.device)
        total[1] = float(self.stop_requested())
        parts = []
        for number, chunk in enumerate(chunks, start=1):
            last = number == len(chunks)
            with self.ranks.syncing(self.wrapped, last), compiler_errors():
                loss = self._loss(self.wrapped, chunk) / num_predicted
                loss.backward()
            total[0] += loss.detach()
            if self.scaling and self.scaling.config.history_unit == "micro_batch" and not last:
                parts.append(self.scaling.update(last=False))
        self.ranks.to_sums(self.model)
        loss_sum, stops = self.ranks.sum(total).tolist()
        self.stopping = stops > 0
        return loss_sum, parts

    def _clip(self) -> float:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.settings.optimizer.max_grad_norm)
        return float(whole(norm))

    def _update_weights(self, step: int) -> float | None:
        self.num_skipped_in_row = 0
        watched = self._matrices() if self._is_watched(step) else []
        before = [p.detach().clone() for p in watched]
        if self.settings.weight_dtype == "bfloat16":
            step_in_bfloat16(self.adamw)
        else:
            self.adamw.step()
        moved = sum(int((p != old).sum()) for p, old in zip(watched, before, strict=True))
        return moved / sum(p.numel() for p in watched) if watched else None

    def _is_watched(self, step: int) -> bool:
        every = self.settings.telemetry_every
        return self.settings.record_moved_share and every > 0 and step % every == 0

    def _matrices(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad and p.ndim >= 2]

    def _skip(self, step: int, loss: float, grad_norm: float, chunks: Sequence[Tensor]) -> None:
        self.num_skipped_in_row += 1
        if self.num_skipped_in_row < self.settings.max_skipped_steps:
            self._roll_back()
            return
        found = self.ranks.all(first_non_finite(self.model, chunks, lambda t: self._loss(self.model, t)))
        self._roll_back()
        raise UserError(
            f"step {step}: loss {loss}, gradient norm {grad_norm}: not finite, {self.num_skipped_in_row} "
            f"steps in a row, so the run is stopped. First: {by_rank(found)}. Batch: "
            f"{self.describe_batch(step)}. Lower the learning rate, or look for damaged weights or data."
        )

    def _roll_back(self) -> None:
        """Scales as they were before the step, and no gradient left."""
        self.adamw.zero_grad()
        if self.scaling:
            self.scaling.discard()
            if self._before is not None:
                self.scaling.load_state_dict(self._before)


def fit(
    model: nn.Module,
    batch_for_step: BatchForStep,
    settings: TrainConfig,
    lr: float,
    *,
    scaling: ScalingState | None = None,
    parallel: Parallel = "ddp",
    on_step: Callable[[StepRecord], None] | None = None,
    description: str = "training",
) -> list[StepRecord]:
    """Train `model` in place for `settings.steps` optimizer steps and return one record a step.

    `batch_for_step(step)`, step from 1, gives int64 tokens [batch_size, seq], the same on every rank. With
    `scaling` the first `bf16_warmup_steps` only record amaxes, the rest quantize. Nothing is saved; see
    `train_stage` for runs that can be stopped and resumed.
    """
    trainer = Trainer(model, settings, lr, scaling, Ranks(parallel))
    records = []
    for step in progress(1, settings.steps, description, trainer.ranks.is_main):
        records.append(trainer.run_step(step, batch_for_step(step)))
        if on_step:
            on_step(records[-1])
    trainer.finish()
    return records


def progress(first: int, last: int, description: str, shown: bool = True) -> Iterable[int]:
    """Steps `first` to `last` behind a bar with the time left, which counts from 1."""
    return tqdm(
        range(first, last + 1),
        desc=description,
        unit="step",
        mininterval=1.0,
        initial=first - 1,
        total=last,
        disable=not shown,
    )
