"""Fake quantization, amax and the count of clipped elements in one pass over memory.

`fake_quantize` and `amax` say what is computed, in ops that each walk through memory. Here the same bits come
from a kernel that reads x once and writes x_q once: torch.compile makes it, for whatever device x is on,
where it finds a compiler; elsewhere, and on request, eager ops run, piece by piece on a large tensor. Nothing
waits for the device.

The kernel rounds by integer arithmetic on the float32 bits, not by a table as `hif8_tables` does: a gather is
one load per element, while shifts, masks and comparisons run on whole vectors. Half a step is added to the
magnitude and the bits below the step are cut off; the step follows from the exponent, and a carry into the
exponent is right, since every power of two is a HiF8 value.

    abs(E)            0..3   4..7   8..15   16..22
    step, in bits     2^20   2^21   2^22    2^23      of the 23 mantissa bits

Clipping is a minimum of magnitudes; a NaN is recognised by its bits, so that it does not matter whether the
multiplication before made a signalling NaN quiet. Only float32 operations that IEEE 754 fixes are used (one
product, one quotient), which leaves a compiler nothing to reorder. Results are equal bit for bit, except that
which of the many NaN patterns a NaN has is nowhere promised.

A 16-bit type has 65,536 values, so that for a large tensor x_q at the given scale is a table of as many,
made by the plain function, and a gather, compiled or eager; this spares two conversions an element, and is
several times faster on a CPU. Its amax is then a second pass over x: inside the gather's loop, or between its
pieces, it took longer. (benchmarks/README.md has the times.)

A kernel is compiled once for each dtype and number of threads, not for each shape or scale: tensors are
passed flat, with a dynamic length, and scale and limit as tensors.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from pangu_hif8.amax import tensor_to_amax
from pangu_hif8.fake_quantize import ScaledOverflow, scaled_quantize_dequantize
from pangu_hif8.hif8 import MAX
from pangu_hif8.hif8_tables import every_value, look_up_into, pieces

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]  # x, scale, limit, x_q

_SIGN, _MAGNITUDE, _INF, _NAN = -(2**31), 0x7FFFFFFF, 0x7F800000, 0x7FC00000  # float32 bits as int32
_BIAS, _NUM_MANTISSA_BITS = 127, 23
_without_compiler: set[torch.device] = set()  # where a kernel could not be made
_NUM_TRIAL = 2**18  # elements; 512 a thread are the least for which torch.compile uses several
_TABLE_FROM = 2**18  # elements of a 16-bit type from which a table for all its values pays off
_TINY, _HALF_TINY = (_BIAS - 22) << _NUM_MANTISSA_BITS, (_BIAS - 23) << _NUM_MANTISSA_BITS


def scaled_qdq(
    x: Tensor,
    scale: Tensor,
    hif8_max: float = 15.0,
    overflow: ScaledOverflow = "saturate",
    *,
    out: Tensor | None = None,
    compiled: bool = True,
) -> Tensor:
    """The bits of `fake_quantize.scaled_quantize_dequantize`, from one pass where a compiler is there.

    `out`, contiguous and like x but not x itself, takes the result: on a CPU a new large tensor costs several
    times what filling it does. `compiled=False` runs eager ops and leaves the compiler alone.
    """
    limit, target = _limit(hif8_max, overflow, x.device), _target(x, out)
    if _fits_table(x):
        _by_table(x, _table(x, scale, hif8_max, overflow), limit, target, compiled)
    elif compiled and (kernel := _kernel_for(_qdq_pass, x)):
        _run(kernel, x, scale, limit, target)
    else:
        for part, place in pieces(_flat(x), target.view(-1)):
            place.copy_(scaled_quantize_dequantize(part, scale.detach(), hif8_max, overflow))
    return target


def scaled_qdq_amax(
    x: Tensor,
    scale: Tensor,
    hif8_max: float = 15.0,
    overflow: ScaledOverflow = "saturate",
    count_clipped: bool = False,
    *,
    out: Tensor | None = None,
    compiled: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(x_q, amax, num_clipped) of x [any shape; float32, bfloat16 or float16] at a float32 scalar scale.

    x_q is `scaled_qdq`'s, in x's shape and dtype (and in `out`, if given); amax is `tensor_to_amax(x)`, a
    float32 scalar (a zero is +0 here, of either sign there); num_clipped, an int64 scalar or None, counts
    where abs(x * scale) lies beyond the limit: hif8_max (at most 32768) under "saturate", 32768 under
    "taper". A NaN is not counted. All three stay on x's device. `compiled=False` as in `scaled_qdq`.
    """
    limit, target = _limit(hif8_max, overflow, x.device), _target(x, out)
    one_pass = compiled and (count_clipped or not _fits_table(x))
    kernel = _kernel_for(_counting_pass if count_clipped else _amax_pass, x) if one_pass else None
    if kernel is not None:
        amax, *counted = _run(kernel, x, scale, limit, target)
        return target, amax, counted[0] if counted else None
    again = compiled and not one_pass  # where the one pass could not be made, don't ask for another
    scaled_qdq(x, scale, hif8_max, overflow, out=target, compiled=again)
    num_clipped = _num_clipped(x, scale.detach(), limit.view(torch.float32)) if count_clipped else None
    return target, tensor_to_amax(x).abs(), num_clipped


def _num_clipped(x: Tensor, scale: Tensor, limit: Tensor) -> Tensor:
    """How many abs(x * scale) lie above the limit, a float32 scalar; in eager ops."""
    counts = [((part.float() * scale).abs() > limit).sum() for (part,) in pieces(_flat(x))]
    return torch.stack(counts).sum()


# ---- the kernels: flat x and x_q, scale and limit as scalars -------------------------------------------


def _qdq_pass(x: Tensor, scale: Tensor, limit: Tensor, x_q: Tensor) -> tuple[Tensor, ...]:
    x_q.copy_(qdq_bits(_scaled_bits(x, scale), scale, limit))
    return ()


def _amax_pass(x: Tensor, scale: Tensor, limit: Tensor, x_q: Tensor) -> tuple[Tensor, ...]:
    x_q.copy_(qdq_bits(_scaled_bits(x, scale), scale, limit))
    return (_amax(x),)


def _counting_pass(x: Tensor, scale: Tensor, limit: Tensor, x_q: Tensor) -> tuple[Tensor, ...]:
    bits = _scaled_bits(x, scale)
    magnitude = bits & _MAGNITUDE
    clipped = (magnitude > limit) & (magnitude <= _INF)
    x_q.copy_(qdq_bits(bits, scale, limit))
    return _amax(x), clipped.sum()


def _table_pass(x: Tensor, table: Tensor, limit: Tensor, x_q: Tensor) -> tuple[Tensor, ...]:
    """x, table and x_q are the bits of a 16-bit type; limit is not used."""
    x_q.copy_(table[x.to(torch.int32) & 0xFFFF])
    return ()


def _scaled_bits(x: Tensor, scale: Tensor) -> Tensor:
    return (x.to(torch.float32) * scale).view(torch.int32)


def _amax(x: Tensor) -> Tensor:
    """As integers, magnitudes are ordered like the values, Inf above them and NaN above Inf."""
    return (x.to(torch.float32).view(torch.int32) & _MAGNITUDE).amax().view(torch.float32)


def qdq_bits(bits: Tensor, scale: Tensor, limit: Tensor | None = None) -> Tensor:
    """float32 of scaled values, given and limited as bits in int32, rounded to HiF8 and divided by the scale.

    Without `limit` they are within HiF8's range already.
    """
    magnitude = bits & _MAGNITUDE
    rounded = _round(magnitude if limit is None else torch.minimum(magnitude, limit))
    signed = torch.where(rounded == 0, rounded, rounded | (bits & _SIGN))  # HiF8's only zero is positive
    return torch.where(magnitude > _INF, _NAN, signed).view(torch.float32) / scale


def _round(magnitude: Tensor) -> Tensor:
    """float32 bits of magnitudes up to 32768, rounded to HiF8 by TA."""
    distance = ((magnitude >> _NUM_MANTISSA_BITS) - _BIAS).abs()
    step = torch.full_like(distance, 1 << 23)
    for limit, bit in ((15, 22), (7, 21), (3, 20)):
        step = step.masked_fill(distance <= limit, 1 << bit)
    rounded = (magnitude + (step >> 1)) & -step
    return torch.where(magnitude < _HALF_TINY, 0, rounded.clamp(min=_TINY))


# ---- how they run --------------------------------------------------------------------------------------


def _flat(x: Tensor) -> Tensor:
    return x.detach().contiguous().view(-1)


def _run(kernel: Kernel, x: Tensor, scale: Tensor, limit: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return kernel(_flat(x), scale.detach(), limit, target.view(-1))


def _run_table(kernel: Kernel, x: Tensor, table: Tensor, limit: Tensor, target: Tensor) -> None:
    _run(kernel, _flat(x).view(torch.int16), table.view(torch.int16), limit, target.view(torch.int16))


def _by_table(x: Tensor, table: Tensor, limit: Tensor, target: Tensor, compiled: bool) -> None:
    if compiled and (kernel := _kernel_for(_table_pass, x)):
        _run_table(kernel, x, table, limit, target)
    else:
        look_up_into(target, table, x.detach())


def _fits_table(x: Tensor) -> bool:
    return x.element_size() == 2 and x.numel() >= _TABLE_FROM


def _table(x: Tensor, scale: Tensor, hif8_max: float, overflow: ScaledOverflow) -> Tensor:
    return scaled_quantize_dequantize(every_value(x.dtype, x.device), scale.detach(), hif8_max, overflow)


def _target(x: Tensor, out: Tensor | None) -> Tensor:
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"x is float32, bfloat16 or float16, not {x.dtype}")
    if out is None:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    same = (out.shape, out.dtype, out.device) == (x.shape, x.dtype, x.device)
    if not same or not out.is_contiguous() or out is x or out.requires_grad:
        raise ValueError("out is contiguous, without a gradient, of x's shape, dtype and device, and not x")
    return out


@cache
def _limit(hif8_max: float, overflow: ScaledOverflow, device: torch.device) -> Tensor:
    """The magnitude from which a scaled value is clipped, as float32 bits in an int32 scalar."""
    if overflow not in ("saturate", "taper"):
        raise ValueError(f"overflow is 'saturate' or 'taper', not {overflow!r}")
    if not hif8_max > 0:
        raise ValueError(f"hif8_max is above 0, not {hif8_max}")
    limit = min(hif8_max, MAX) if overflow == "saturate" else MAX
    return torch.tensor(struct.unpack("<i", struct.pack("<f", limit))[0], dtype=torch.int32, device=device)


def _kernel_for(function: Kernel, x: Tensor) -> Kernel | None:
    """The compiled function, or None where eager ops must do: no compiler, or fewer than 2 elements."""
    if x.device in _without_compiler or x.numel() < 2:  # a length of 0 or 1 is never dynamic
        return None
    return _compiled(function, x.dtype, x.device, torch.get_num_threads())


@cache
def _compiled(function: Kernel, dtype: torch.dtype, device: torch.device, num_threads: int) -> Kernel | None:
    """The compiled function once it has worked here; None, with a warning, if it can't be made.

    It is made for one dtype and number of threads at a time; the trial sees to it that what it is made on is
    a large tensor. For a small one torch.compile would write a loop for one thread, and keep it.
    """
    try:
        kernel: Kernel = torch.compile(function, dynamic=True)
        _try_out(kernel, function is _table_pass, torch.ones(_NUM_TRIAL, dtype=dtype, device=device))
    except Exception as error:  # a missing compiler, header or driver: each backend has errors of its own
        _without_compiler.add(device)  # what stops one kernel stops them all: ask, and warn, once
        reason = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(f"HiF8 runs without a compiled kernel on {device}: {reason[0]}", stacklevel=4)
        return None
    return kernel


def _try_out(kernel: Kernel, by_table: bool, x: Tensor) -> None:
    limit, target = _limit(15.0, "saturate", x.device), torch.empty_like(x)
    if by_table:
        _run_table(kernel, x, every_value(x.dtype, x.device), limit, target)
    else:
        _run(kernel, x, torch.ones((), device=x.device), limit, target)
