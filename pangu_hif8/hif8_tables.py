"""TA rounding to HiF8 by look-up: `hif8_codes` tabulated, and one gather an element.

    input                 index into the table                   entries
    float32               the top 13 bits, which decide          8,192
    bfloat16, float16     all bits, as an unsigned number        65,536
    codes (uint8)         the code                               256

A large tensor is walked through in pieces: the index, as large as a float32 input, is then a small tensor
whose memory is used again, not new pages for each call. On one CPU thread this takes a quarter off the time
for float32. The larger table for 16-bit types spares them the way through float32, which makes them 5 times
faster. (benchmarks/README.md has the times.)
Every HiF8 value is exact in bfloat16, float16 and float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from pangu_hif8.hif8_codes import (
    CODE_NAN,
    NUM_PREFIXES,
    PREFIX_SHIFT,
    Overflow,
    decode_code,
    prefix_codes,
)

PIECE = 2**20  # elements; smaller pieces gain nothing, and cost more launches of threads
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def pieces(*flat: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """Flat tensors of one length and device, cut alike; whole on an accelerator, which pays for launches."""
    if flat[0].device.type != "cpu" or flat[0].numel() <= PIECE:
        return [flat]
    return zip(*(tensor.split(PIECE) for tensor in flat), strict=True)


def look_up(table: Tensor, x: Tensor, *, nan: float | None = None) -> Tensor:
    """table[index of x], contiguous, in x's shape and the table's dtype; `nan` replaces x's NaNs if given."""
    if x.numel() > PIECE:
        out = torch.empty(x.shape, dtype=table.dtype, device=x.device)
        look_up_into(out, table, x, nan=nan)
        return out
    found = table.index_select(0, _index(x.contiguous().view(-1))).view(x.shape)
    return found if nan is None else found.masked_fill_(x.isnan(), nan)


def look_up_into(out: Tensor, table: Tensor, x: Tensor, *, nan: float | None = None) -> None:
    """`look_up` into a contiguous tensor that is there."""
    for part, place in pieces(x.contiguous().view(-1), out.view(-1)):
        torch.index_select(table, 0, _index(part), out=place)
        if nan is not None:
            place.masked_fill_(part.isnan(), nan)


def _index(x: Tensor) -> Tensor:
    if x.dtype == torch.uint8:
        return x.int()
    if x.dtype == torch.float32:
        prefix = x.view(torch.int32).bitwise_right_shift(PREFIX_SHIFT)
        return prefix.bitwise_and_(NUM_PREFIXES - 1)  # the shift is arithmetic: drop the copies of the sign
    return x.view(torch.int16).to(torch.int32).bitwise_and_(0xFFFF)


def nearest_values(x: Tensor, overflow: Overflow) -> Tensor:
    """x [any shape, one of DTYPES, without a gradient] rounded to HiF8, in x's dtype; NaN stays NaN."""
    nan = float("nan") if x.dtype == torch.float32 else None  # 16 bits tell NaN from Inf by themselves
    return look_up(_value_table(checked(overflow), _checked_dtype(x), x.device), x, nan=nan)


def nearest_codes(x: Tensor, overflow: Overflow) -> Tensor:
    """uint8 codes of `nearest_values` with the same arguments."""
    nan = CODE_NAN if x.dtype == torch.float32 else None
    return look_up(_code_table(checked(overflow), _checked_dtype(x), x.device), x, nan=nan)


def round_float32(x: Tensor, *, overflow: Overflow = "inf") -> Tensor:
    """The bare table look-up for float32 that came out of arithmetic, where every NaN is quiet.

    A signalling NaN, which only loading raw bits can make, would read as Inf here.
    """
    return look_up(_value_table(checked(overflow), torch.float32, x.device), x)


def values_of(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Values [same shape] of uint8 HiF8 codes."""
    return look_up(_decode_table(dtype, codes.device), codes)


@cache
def every_value(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The 65,536 values of a 16-bit type, in the order of their bits as an unsigned number."""
    return torch.arange(65536, dtype=torch.int32, device=device).to(torch.int16).view(dtype)


@cache
def _value_table(overflow: Overflow, dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype != torch.float32:
        return nearest_values(every_value(dtype, device).float(), overflow).to(dtype)
    values = [decode_code(code) for code in prefix_codes(overflow)]
    return torch.tensor(values, dtype=torch.float32, device=device)


@cache
def _code_table(overflow: Overflow, dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype != torch.float32:
        return nearest_codes(every_value(dtype, device).float(), overflow)
    return torch.tensor(prefix_codes(overflow), dtype=torch.uint8, device=device)


@cache
def _decode_table(dtype: torch.dtype, device: torch.device) -> Tensor:
    values = [decode_code(code) for code in range(256)]
    return torch.tensor(values, dtype=torch.float32, device=device).to(dtype)


def _checked_dtype(x: Tensor) -> torch.dtype:
    if x.dtype not in DTYPES:
        raise ValueError(f"HiF8 takes float32, bfloat16 or float16 (all exact in float32), not {x.dtype}")
    return x.dtype


def checked(overflow: Overflow) -> Overflow:
    """`overflow` itself; ValueError for an unknown one."""
    if overflow not in ("inf", "saturate"):
        raise ValueError(f"overflow is 'inf' or 'saturate', not {overflow!r}")
    return overflow
