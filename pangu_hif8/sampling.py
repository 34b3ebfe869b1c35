"""What quantization does to the elements, on sampled steps: share clipped, share flushed to zero, SQNR.

Amax and saturation come free with every step; these need passes over the tensor, so a run takes them every
`telemetry_every` steps. Counts are summed over micro-batches and ranks before they are divided. Activations
that are recomputed for the backward pass are counted twice, in numerator and denominator alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pangu_hif8.reductions import sum_over_ranks

NUM, CLIPPED, FLUSHED, SIGNAL, NOISE = range(5)


@dataclass(frozen=True)
class SampledStats:
    """[n] tensors: shares of elements in [0, 1], and SQNR in dB (NaN for a tensor of zeros or not seen).

    SQNR is 10 log10(sum x^2 / sum (x - x_q)^2); Inf where nothing was rounded.
    """

    clipped_share: Tensor
    flushed_share: Tensor
    sqnr_db: Tensor


class TensorStats:
    """Running sums for n slots, [5, n] in float64 (float32 where a device has none)."""

    def __init__(self, num_slots: int, device: torch.device | str) -> None:
        wide = torch.float32 if torch.device(device).type == "mps" else torch.float64
        self.sums = torch.zeros(5, num_slots, dtype=wide, device=device)

    def add(self, slot: int, x: Tensor, x_q: Tensor, clipped: Tensor) -> None:
        """Count one tensor: x before, x_q after quantization [any shape], clipped: how many lie beyond."""
        error = x.float() - x_q.float()
        flushed = torch.count_nonzero(x) - torch.count_nonzero(x_q)  # what is zero stays zero
        energies = [_energy(x), _energy(error)]
        row = torch.stack([value.to(self.sums.dtype) for value in (clipped, flushed, *energies)])
        self.sums[CLIPPED:, slot].add_(row)
        self.sums[NUM, slot].add_(x.numel())

    def zero(self) -> None:
        """Forget what was counted."""
        self.sums.zero_()

    def take(self, reduce: bool) -> SampledStats:
        """The shares since the last call, over all ranks when `reduce`, and start again."""
        sums = sum_over_ranks(self.sums) if reduce else self.sums.clone()
        self.sums.zero_()
        num = sums[NUM]
        ratio = 10 * torch.log10(sums[SIGNAL] / sums[NOISE])
        return SampledStats(
            (sums[CLIPPED] / num).float(),
            (sums[FLUSHED] / num).float(),
            torch.where(sums[SIGNAL] > 0, ratio, torch.nan).float(),
        )


def _energy(x: Tensor) -> Tensor:
    flat = x.detach().reshape(-1).float()
    return torch.dot(flat, flat)
