"""HiF8 described: its limits as `torch.finfo` gives a type's, and its 256 codes one by one.

The fields of a code are read here from its bits written as text, beside the arithmetic of `hif8_codes`; a
test puts the two together for every code. Precision tapers: what the mantissa loses the exponent gains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from pangu_hif8.hif8_codes import MAX, SMALLEST_NORMAL, TINY, decode_code

CodeClass = Literal["zero", "denormal", "normal", "infinity", "nan"]

_NUM_EXPONENT_BITS = {"11": 4, "10": 3, "01": 2, "001": 1, "0001": 0}  # by dot, the prefix after the sign
_DENORMAL_DOT = "0000"
_SPECIAL: dict[int, CodeClass] = {0x00: "zero", 0x80: "nan", 0x6F: "infinity", 0xEF: "infinity"}


@dataclass(frozen=True)
class CodeInfo:
    """One code. `bits` has its fields apart: sign, dot, exponent, mantissa.

    `exponent` is that of the value's power of two, `mantissa_bits` how many bits follow the leading 1; both
    are None for zero, infinity and NaN, and a denormal (a bare power of two) has 0 mantissa bits.
    """

    code: int
    bits: str
    value: float
    kind: CodeClass
    exponent: int | None
    mantissa_bits: int | None


def describe_code(code: int) -> CodeInfo:
    """What code 0..255 means. Raises ValueError for another number."""
    if not 0 <= code <= 0xFF:
        raise ValueError(f"a HiF8 code is 0 to 255, not {code}")
    sign, body = f"{code:08b}"[0], f"{code:08b}"[1:]
    dot = next((dot for dot in _NUM_EXPONENT_BITS if body.startswith(dot)), _DENORMAL_DOT)
    split = len(dot) + _NUM_EXPONENT_BITS.get(dot, 0)
    exponent_field, mantissa_field = body[len(dot) : split], body[split:]
    bits = " ".join(filter(None, (sign, dot, exponent_field, mantissa_field)))
    kind = _SPECIAL.get(code, "denormal" if dot == _DENORMAL_DOT else "normal")
    exponent, mantissa_bits = None, None
    if kind == "normal":
        exponent, mantissa_bits = _exponent(exponent_field), len(mantissa_field)
    elif kind == "denormal":
        exponent, mantissa_bits = int(mantissa_field, 2) - 23, 0
    return CodeInfo(code, bits, decode_code(code), kind, exponent, mantissa_bits)


def _exponent(bits: str) -> int:
    """Sign and magnitude; the magnitude's leading 1 is hidden in the place of the sign."""
    if not bits:
        return 0
    magnitude = int("1" + bits[1:], 2)
    return -magnitude if bits[0] == "1" else magnitude


def _mantissa_bits_by_binade() -> Mapping[int, int]:
    bits: dict[int, int] = {}
    for info in map(describe_code, range(0x80)):
        if info.exponent is not None and info.mantissa_bits is not None:
            bits[info.exponent] = info.mantissa_bits
    return MappingProxyType(dict(sorted(bits.items())))


@dataclass(frozen=True)
class HiF8Info:
    """Numerical properties, named as in `torch.finfo`.

    `tiny` is the smallest positive value of all, a denormal; torch's `tiny` is its smallest *normal* number.
    `mantissa_bits` maps a binade's exponent E (values from 2^E to 2^(E+1)) to the mantissa bits there.
    """

    bits: int = 8
    max: float = MAX
    min: float = -MAX
    smallest_normal: float = SMALLEST_NORMAL
    tiny: float = TINY
    eps: float = 0.125  # from 1 to the next larger value
    mantissa_bits: Mapping[int, int] = field(default_factory=_mantissa_bits_by_binade)


HIF8 = HiF8Info()


def table_text() -> str:
    """The code table for people: a line a code, then the limits."""
    header = f"{'code':<5} {'bits':<12} {'value':>22}  {'class':<9} {'exponent':>8} {'mantissa bits':>14}"
    rows = [_row(describe_code(code)) for code in range(256)]
    smallest = f"smallest normal {HIF8.smallest_normal:g}, smallest {HIF8.tiny:g}"
    notes = ("bits: sign, dot, exponent, mantissa", f"max {HIF8.max:g}, {smallest}, eps {HIF8.eps:g}")
    return "\n".join([header, *rows, "", *notes])


def _row(info: CodeInfo) -> str:
    exponent = "" if info.exponent is None else str(info.exponent)
    mantissa = "" if info.mantissa_bits is None else str(info.mantissa_bits)
    value = f"{info.value:.16g}"  # enough digits to be exact
    cells = f"0x{info.code:02X}  {info.bits:<12} {value:>22}  {info.kind:<9} {exponent:>8} {mantissa:>14}"
    return cells.rstrip()
