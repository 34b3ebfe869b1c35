"""One ScalingState for the whole model: every tensor's amax, history, estimate and scale in one place.

Each quantized tensor has a slot. During a step a layer only records `amax_now[i] = max(amax_now[i], amax)`,
which is idempotent: micro-batches, recomputed activations and a module called twice all give one entry.
Once per optimizer step `update` reduces `amax_now` over ranks, pushes it into the history and makes the
next estimate, for all slots at once and without a host synchronization.

Rules: the estimate for step t uses steps before t (current scaling excepted). An empty history scales its
first step by the tensor itself. A zero or non-finite amax never enters the history; it is counted. Under
no_grad, and in mode "frozen", nothing changes and the scales are used as they stand; current scaling has
none that stands, so it goes on scaling each tensor by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pangu_hif8.amax import ESTIMATORS, amax_to_scale, is_usable
from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError

Mode = Literal["off", "calibrate", "quantize", "frozen"]
_MODES = ("off", "calibrate", "quantize", "frozen")
_TENSORS = ("history", "estimate", "num_skipped", "num_updates")


@dataclass(frozen=True)
class StepScaling:
    """What one step did, as [n] tensors: its amax, the estimate it was scaled by, and whether it clipped.

    `quantized` is False for a calibration step, whose estimate was not used.
    """

    amax: Tensor
    estimate: Tensor
    saturated: Tensor
    quantized: bool


class ScalingState:
    """Amax bookkeeping for n tensors. A plain object, not a module: DDP must not broadcast its tensors."""

    def __init__(self, names: list[str], config: QuantConfig, device: torch.device | str = "cpu") -> None:
        if config.amax_compute_algo not in ESTIMATORS:
            raise UserError(
                f"unknown amax_compute_algo {config.amax_compute_algo!r}; valid: {', '.join(ESTIMATORS)}"
            )
        self.names, self.config = list(names), config
        length = config.amax_history_len if config.amax_compute_algo == "max_window" else 1
        self.amax_now = torch.zeros(len(names), device=device)
        self.history = torch.zeros(length, len(names), device=device)
        self.estimate = torch.zeros(len(names), device=device)
        self.num_skipped = torch.zeros(len(names), dtype=torch.int64, device=device)
        self.num_updates = torch.zeros((), dtype=torch.int64, device=device)
        self.scale = amax_to_scale(self.estimate, config.hif8_max)
        self.mode: Mode = "off"
        self.generation = 0  # moves whenever a cached quantized weight may be out of date

    def set_mode(self, mode: Mode) -> None:
        """Switch all layers at once. Raises ValueError for an unknown mode."""
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        self.mode = mode
        self.generation += 1

    @property
    def is_current(self) -> bool:
        """Whether each tensor is scaled by its own amax (CTS)."""
        return self.config.amax_compute_algo == "current"

    @property
    def recording(self) -> bool:
        """Whether a forward pass may record: in training modes and with gradients on."""
        return self.mode in ("calibrate", "quantize") and torch.is_grad_enabled()

    def record(self, slot: int, amax: Tensor) -> None:
        """Fold one tensor's amax (scalar) into this step's entry; NaN and Inf stick, to be counted."""
        now = self.amax_now[slot]
        now.copy_(torch.maximum(now, amax))

    def scale_for(self, slot: int, amax: Tensor) -> Tensor:
        """The scale (scalar) for a tensor whose own amax is given; delayed unless current or cold."""
        own = amax_to_scale(amax, self.config.hif8_max)
        if self.is_current:
            return own
        return torch.where(self.estimate[slot] > 0, self.scale[slot], own)

    def update(self) -> StepScaling:
        """Close an optimizer step: reduce, push, estimate, rescale. Returns the step's telemetry."""
        amax = _reduce_max(self.amax_now)
        usable = is_usable(amax)
        cold = self.estimate == 0
        used = amax if self.is_current else torch.where(cold, amax, self.estimate)
        step = StepScaling(amax, used, usable & (amax > used), self.mode == "quantize")
        self._push(amax, usable)
        self.amax_now = torch.zeros_like(self.amax_now)
        self.generation += 1
        return step

    def _push(self, amax: Tensor, usable: Tensor) -> None:
        shifted = torch.cat([amax[None], self.history[:-1]])
        self.history = torch.where(usable, shifted, self.history)
        estimator = ESTIMATORS[self.config.amax_compute_algo]
        fresh = estimator(self.history, self.estimate, self.config.smoothing_decay)
        self.estimate = torch.where(usable, fresh, self.estimate)
        self.scale = amax_to_scale(self.estimate, self.config.hif8_max)
        self.num_skipped += (~usable).long()
        self.num_updates += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that the next step depends on; copies, on the CPU."""
        return {name: getattr(self, name).detach().cpu().clone() for name in _TENSORS}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore. Raises UserError for a missing tensor or another shape: never a silent cold start."""
        for name in _TENSORS:
            if name not in state:
                raise UserError(f"checkpoint has no scaling state {name!r}; it can't be resumed or evaluated")
            mine = getattr(self, name)
            if state[name].shape != mine.shape:
                raise UserError(
                    f"scaling state {name!r} is {tuple(state[name].shape)}, expected {tuple(mine.shape)}"
                )
            setattr(self, name, state[name].to(mine.device, mine.dtype).clone())
        self.amax_now = torch.zeros_like(self.amax_now)
        self.scale = amax_to_scale(self.estimate, self.config.hif8_max)
        self.generation += 1


def _reduce_max(amax: Tensor) -> Tensor:
    """The largest over all ranks; the tensor itself where there is one. NaN counts as Inf: both skip."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return amax
    reduced = torch.nan_to_num(amax, nan=float("inf"), posinf=float("inf"))
    torch.distributed.all_reduce(reduced, op=torch.distributed.ReduceOp.MAX)
    return reduced
