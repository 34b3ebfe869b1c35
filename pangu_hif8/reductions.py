"""One small tensor over all ranks, for scaling and telemetry; each rank has to call. Alone: a copy."""

from __future__ import annotations

import torch
from torch import Tensor


def max_over_ranks(amax: Tensor) -> Tensor:
    """The largest over all ranks. Where there are several, NaN comes back as Inf: an amax skips for both."""
    if not _has_peers():
        return amax.clone()
    reduced = torch.nan_to_num(amax, nan=float("inf"), posinf=float("inf"))
    torch.distributed.all_reduce(reduced, op=torch.distributed.ReduceOp.MAX)
    return reduced


def sum_over_ranks(sums: Tensor) -> Tensor:
    """The sum over all ranks."""
    total = sums.clone()
    if _has_peers():
        torch.distributed.all_reduce(total)
    return total


def _has_peers() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
