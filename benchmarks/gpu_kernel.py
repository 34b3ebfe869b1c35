"""The format's kernel beside a copy: calls, how they are timed on a GPU, and all settings in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import gpu_table as table
import torch
from format_speed import HIF8_MAX, seconds
from gpu_block import Setting
from gpu_rounds import Budget, Turn, attempt, free_memory, ready, run_rounds, say
from gpu_table import Report, Timings
from torch import Tensor

from pangu_hif8 import fused
from pangu_hif8.amax import amax_to_scale, tensor_to_amax
from pangu_hif8.errors import UserError
from pangu_hif8.fake_quantize import scaled_quantize_dequantize

AHEAD = 4_000_000  # clock cycles, some 2 ms, that the GPU waits while a call is queued


def gpu_seconds(call: Callable[[], object], emptied: Tensor) -> float:
    """Time on the GPU alone: the level-2 cache holds something else, and the launches are queued before."""
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    emptied.zero_()
    torch.cuda._sleep(AHEAD)
    started.record()
    result = call()
    ended.record()
    ended.synchronize()
    del result
    return started.elapsed_time(ended) / 1e3  # from milliseconds


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    table.COPY: lambda x, scale, out: out.copy_(x),
    table.FUSED: lambda x, scale, out: fused.scaled_qdq(x, scale, HIF8_MAX, out=out),
    table.FUSED_AMAX: lambda x, scale, out: fused.scaled_qdq_amax(x, scale, HIF8_MAX, out=out),
    table.FUSED_COUNT: lambda x, scale, out: fused.scaled_qdq_amax(
        x, scale, HIF8_MAX, count_clipped=True, out=out
    ),
    table.EAGER: lambda x, scale, out: fused.scaled_qdq(x, scale, HIF8_MAX, out=out, compiled=False),
    table.EAGER_AMAX: lambda x, scale, out: fused.scaled_qdq_amax(
        x, scale, HIF8_MAX, out=out, compiled=False
    ),
}


def kernel_turn(name: str, x: Tensor, scale: Tensor, out: Tensor, emptied: Tensor) -> Turn:
    """A call of the kernel. Raises UserError where it is not what its name says, or not right."""
    call = partial(CALLS[name], x, scale, out)
    out.zero_()
    for _ in range(2):
        call()
    if name in (table.FUSED, table.FUSED_AMAX, table.FUSED_COUNT) and x.device in fused._without_compiler:
        raise UserError("torch.compile could make no kernel here")
    expected = x if name == table.COPY else scaled_quantize_dequantize(x, scale, HIF8_MAX)
    if not torch.equal(out, expected):
        raise UserError("its result differs from the reference")
    return partial(gpu_seconds, call, emptied) if x.is_cuda else partial(seconds, call)


def measure_kernel(report: Report, setting: Setting, budget: Budget) -> None:
    """The format's kernel at every size and dtype."""
    for (num_values, dtype), found in report.kernel.items():
        print(f"kernel: {num_values:,} values of {dtype}", flush=True)
        _, why = attempt(partial(_kernel_at, num_values, getattr(torch, dtype), found, setting, budget))
        say(found.values(), why)
        free_memory()


def _kernel_at(num: int, dtype: torch.dtype, found: Timings, setting: Setting, budget: Budget) -> None:
    torch.manual_seed(0)
    x = torch.randn(num, dtype=dtype, device=setting.device)
    scale, out = amax_to_scale(tensor_to_amax(x), HIF8_MAX), torch.empty_like(x)
    emptied = torch.empty(2**28 if setting.on_gpu else 0, dtype=torch.uint8, device=setting.device)
    makers = {name: partial(kernel_turn, name, x, scale, out, emptied) for name in CALLS}
    run_rounds(found, ready(found, makers, budget), setting.num_rounds, budget)
