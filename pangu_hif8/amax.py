"""Estimators: from the amax of earlier steps to the amax that this step is scaled by.

A delayed estimator sees only finished steps. `history` is [L, n], newest step first, for n tensors; a 0
means "no step there yet". `previous` is the [n] estimate made one step earlier, 0 where there was none.
Source of the four names: the paper's comparison (arXiv 2605.26189), section "amax algorithms".
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pangu_hif8.errors import UserError
from pangu_hif8.quant_config import BUILTIN_ALGOS, CUSTOM_ALGOS

Estimator = Callable[[Tensor, Tensor, float], Tensor]

SCALE_LIMIT = torch.finfo(torch.float32).max


def most_recent(history: Tensor, previous: Tensor, decay: float) -> Tensor:
    """The last step's amax, [n]."""
    return history[0].clone()


def exponential_smoothing(history: Tensor, previous: Tensor, decay: float) -> Tensor:
    """decay * previous + (1 - decay) * last step's amax, [n]; the first step's amax starts it."""
    blended = decay * previous + (1.0 - decay) * history[0]
    return torch.where(previous > 0, blended, history[0])


def max_window(history: Tensor, previous: Tensor, decay: float) -> Tensor:
    """The largest amax of the last L steps, [n]."""
    return history.amax(0)


ESTIMATORS: dict[str, Estimator] = {
    "most_recent": most_recent,
    "exponential_smoothing": exponential_smoothing,
    "max_window": max_window,
    "current": most_recent,  # kept for telemetry only: current scaling reads the tensor itself
}


def register_estimator(name: str, estimator: Estimator) -> None:
    """Make a function of your own an `amax_compute_algo`, for this process.

    It gets `history` [amax_history_len, n] (newest first, 0 where there is no step yet), `previous` [n] (its
    last result, 0 at first) and `smoothing_decay`, and returns [n] float32; where that is not finite or not
    above zero, the last estimate stays. Register it again before a run that used it is resumed or evaluated.
    Raises UserError for a name that is taken, ValueError for something that can't be called.
    """
    if name in BUILTIN_ALGOS or not name.isidentifier():
        raise UserError(f"an estimator's name is an identifier other than {', '.join(BUILTIN_ALGOS)}")
    if not callable(estimator):
        raise ValueError(f"estimator {name} can't be called")
    ESTIMATORS[name] = estimator
    CUSTOM_ALGOS.add(name)


def tensor_to_amax(x: Tensor) -> Tensor:
    """Largest absolute value of x as a float32 scalar tensor; NaN if any element is; 0 if x is empty."""
    if x.numel() == 0:
        return torch.zeros((), dtype=torch.float32, device=x.device)
    low, high = torch.aminmax(x.detach())
    return torch.maximum(-low, high).float()


def is_usable(amax: Tensor) -> Tensor:
    """Where an amax may enter a history: finite and above zero."""
    return torch.isfinite(amax) & (amax > 0)


def amax_to_scale(amax: Tensor, hif8_max: float | Tensor) -> Tensor:
    """hif8_max / amax in float32, elementwise; 1 where amax is 0 or not finite; never Inf for a tiny one.

    One correctly rounded division: torch computes `number / tensor` as a reciprocal and a product.
    """
    usable, one = is_usable(amax), torch.ones_like(amax)
    scale = one * hif8_max / torch.where(usable, amax, one)
    return torch.where(usable, scale.clamp(max=SCALE_LIMIT), one)
