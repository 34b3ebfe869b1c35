"""One ScalingState for the whole model: every tensor's amax, history, estimate and scale in one place.

Each quantized tensor has a slot. During a step a layer only records `amax_now[i] = max(amax_now[i], amax)`,
which is idempotent: micro-batches, recomputed activations and a module called twice all give one entry.
Once per optimizer step `update` reduces `amax_now` over ranks, pushes it into the history and makes the
next estimate, for all slots at once. gate_proj and up_proj read one tensor, so their input is one slot.

Rules: the estimate for step t uses steps before t (current scaling excepted). A slot without history scales
by the tensor itself, unless `seed` has given it an estimate first. A zero or non-finite amax never enters the
history; it is counted. Under no_grad, and in mode "frozen", nothing changes and the scales are used as they
stand; current scaling has none that stands, so it goes on scaling each tensor by itself.

No method that a forward pass calls waits for the device. `update` does until every slot has an estimate
(`is_warm`), and not after that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pangu_hif8.amax import ESTIMATORS, amax_to_scale, is_usable
from pangu_hif8.errors import UserError
from pangu_hif8.quant_config import Kind, QuantConfig, TensorConfig
from pangu_hif8.reductions import max_over_ranks
from pangu_hif8.sampling import SampledStats, TensorStats
from pangu_hif8.slots import kind_of, slots_of_kind

Mode = Literal["off", "calibrate", "quantize", "frozen"]
_TENSORS = ("history", "running", "estimate", "num_skipped", "num_updates")


@dataclass(frozen=True)
class StepScaling:
    """What one step did, as [n] tensors: its amax, the estimate it was scaled by, and whether it clipped.

    `estimate` is the amax that is mapped to hif8_max, the margin included. `quantized` is False for a
    calibration step, whose estimate was not used. `stats` is there on sampled steps only.
    """

    amax: Tensor
    estimate: Tensor
    saturated: Tensor
    quantized: bool
    stats: SampledStats | None = None


class ScalingState:
    """Amax bookkeeping for n slots. A plain object, not a module: DDP must not broadcast its tensors.

    A slot's name ends in its kind, as in "3.down_proj.weight" (see `slots`).
    """

    def __init__(self, names: list[str], config: QuantConfig, device: torch.device | str = "cpu") -> None:
        self.names, self.config = list(names), config
        kinds = {kind: slots_of_kind(names, kind) for kind in get_args(Kind)}
        self.settings: dict[Kind, TensorConfig] = {
            k: config.for_kind(k) for k, slots in kinds.items() if slots
        }
        self._slots = {k: torch.tensor(kinds[k], dtype=torch.int64, device=device) for k in self.settings}
        self.slot_settings = [_settings_of(name, config) for name in names]
        length = max((settings.history_len for settings in self.settings.values()), default=1)
        self.amax_now = torch.zeros(len(names), device=device)
        self.history = torch.zeros(length, len(names), device=device)
        self.running = torch.zeros(len(names), device=device)  # the estimators' results, every step
        self.estimate = torch.zeros(len(names), device=device)  # those in use: by interval, with margin
        self.num_skipped = torch.zeros(len(names), dtype=torch.int64, device=device)
        self.num_updates = torch.zeros((), dtype=torch.int64, device=device)
        self.scale = torch.ones(len(names), device=device)
        self._hif8_max = self._per_slot([s.hif8_max for s in self.slot_settings])
        self._room = self._per_slot([2.0**s.margin for s in self.slot_settings])
        self._current = self._per_slot([s.amax_compute_algo == "current" for s in self.slot_settings]) > 0
        self.stats = TensorStats(len(names), device)
        self.mode: Mode = "off"
        self.phase: Mode = "off"  # the last training mode, which an evaluation in between leaves alone
        self.generation = 0  # moves whenever a cached quantized weight may be out of date
        self.is_warm = all(settings.amax_compute_algo == "current" for settings in self.settings.values())
        self.cache_weights = True
        self.sampling = False
        self.weights_ready = False
        self._seeding = False

    def _per_slot(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.amax_now.device)

    def set_mode(self, mode: Mode) -> None:
        """Switch all layers at once. Raises ValueError for an unknown mode."""
        if mode not in get_args(Mode):
            raise ValueError(f"mode is one of {', '.join(get_args(Mode))}, not {mode!r}")
        self.mode = mode
        if mode in ("calibrate", "quantize"):
            self.phase = mode
        self._moved()

    def _moved(self) -> None:
        self.generation += 1
        self.weights_ready = False

    def is_current(self, slot: int) -> bool:
        """Whether the slot's tensor is scaled by its own amax (CTS)."""
        return self.slot_settings[slot].amax_compute_algo == "current"

    def knows_scale(self, slot: int) -> bool:
        """Whether the scale stands before the tensor is looked at, so that one pass over it is enough."""
        return self.is_warm and not self.is_current(slot)

    @property
    def recording(self) -> bool:
        """Whether a forward pass may record: in training modes and with gradients on, or while seeding."""
        return self.mode in ("calibrate", "quantize") and (torch.is_grad_enabled() or self._seeding)

    def record(self, slot: int, amax: Tensor) -> None:
        """Fold one tensor's amax (scalar) into this step's entry; NaN and Inf stick, to be counted."""
        now = self.amax_now[slot]
        now.copy_(torch.maximum(now, amax))

    def scale_for(self, slot: int, amax: Tensor | None = None) -> Tensor:
        """The scale (scalar) for a tensor whose own amax is given; delayed unless current or cold.

        `amax` may be left out where `knows_scale`.
        """
        if self.knows_scale(slot):
            return self.scale[slot]
        assert amax is not None
        settings = self.slot_settings[slot]
        own = amax_to_scale(amax * 2.0**settings.margin, settings.hif8_max)
        if self.is_current(slot):
            return own
        return torch.where(self.estimate[slot] > 0, self.scale[slot], own)

    @property
    def needs_seed(self) -> bool:
        """Whether no delayed slot has a history yet. One that stays empty is not looked at twice."""
        return not self.is_warm and not bool(((self.running > 0) & ~self._current).any())

    @contextmanager
    def seed(self) -> Iterator[None]:
        """Passes under this, unquantized and with or without gradients, give cold slots their first estimate.

        So the first step of a run without warm-up depends on its whole global batch, not on how that was
        cut into micro-batches and over ranks. The history stays empty.
        """
        mode = self.mode
        self.set_mode("calibrate")
        self._seeding = True
        try:
            yield
        finally:
            self._seeding = False
            self.set_mode(mode)
        amax = self._take()
        cold = (self.estimate == 0) & is_usable(amax) & ~self._current
        self._estimate(torch.where(cold, amax * self._room, self.estimate))

    def update(self, last: bool = True) -> StepScaling:
        """Close an optimizer step: reduce, push, estimate, rescale. Returns the step's telemetry.

        Where the history counts micro-batches, only the step's `last` one takes what was sampled.
        """
        stats = self.stats.take(self.config.reduce_amax) if self.sampling and last else None
        amax = self._take()
        usable = is_usable(amax)
        by_itself = self._current | (self.estimate == 0)
        used = torch.where(by_itself, amax * self._room, self.estimate)
        step = StepScaling(amax, used, usable & (amax > used), self.mode == "quantize", stats)
        self._push(amax, usable)
        self._moved()
        return step

    def discard(self) -> None:
        """Forget what a step recorded: one whose loss or gradient was not finite."""
        self.amax_now.zero_()
        self.stats.zero()
        self._moved()

    def empty_history(self) -> None:
        """Start cold again (the published code's switch)."""
        for name in ("history", "running"):
            getattr(self, name).zero_()
        self.is_warm = False
        self._estimate(torch.zeros_like(self.estimate))

    def _take(self) -> Tensor:
        amax = max_over_ranks(self.amax_now) if self.config.reduce_amax else self.amax_now.clone()
        self.amax_now.zero_()
        return amax

    def _push(self, amax: Tensor, usable: Tensor) -> None:
        shifted = torch.cat([amax[None], self.history[:-1]])
        self.history.copy_(torch.where(usable, shifted, self.history))
        fresh = self._estimators()
        self.running.copy_(torch.where(usable & is_usable(fresh), fresh, self.running))
        self.num_skipped += (~usable).long()
        self.num_updates += 1
        due = (self.num_updates % self.config.amax_update_interval == 0) | (self.estimate == 0)
        self._estimate(torch.where(due & (self.running > 0), self.running * self._room, self.estimate))

    def _estimators(self) -> Tensor:
        fresh = self.running.clone()
        for kind, slots in self._slots.items():
            settings = self.settings[kind]
            algo = settings.amax_compute_algo
            history = self.history[: settings.history_len, slots]
            found = ESTIMATORS[algo](history, self.running[slots], settings.smoothing_decay)
            if getattr(found, "shape", None) != slots.shape:
                got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise UserError(
                    f"estimator {algo} returned {got}; it has to be a tensor {tuple(slots.shape)}"
                )
            fresh[slots] = found.to(fresh.dtype)
        return fresh

    def _estimate(self, estimate: Tensor) -> None:
        self.estimate.copy_(estimate)
        self.scale.copy_(amax_to_scale(estimate, self._hif8_max))
        if not self.is_warm:
            self.is_warm = bool(((self.estimate > 0) | self._current).all())

    def spread(self) -> Tensor:
        """(largest - smallest) / mean of each slot's history [n]; Inf until the history is full."""
        low, high = self.history.aminmax(dim=0)
        return torch.where(low > 0, (high - low) / self.history.mean(0), torch.inf)

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
            mine.copy_(state[name])
        self.amax_now.zero_()
        self.is_warm = False
        self._estimate(self.estimate.clone())
        self._moved()


def _settings_of(name: str, config: QuantConfig) -> TensorConfig:
    """A slot's settings; the inputs' margin may be for some layers only."""
    kind = kind_of(name)
    settings = config.for_kind(kind)
    group = "down" if "down_proj" in name else "gate_up"
    if kind == "input" and config.margin_layers not in ("all", group):
        return settings.model_copy(update={"margin": 0.0})
    return settings
