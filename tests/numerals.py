"""Which numerals of a sentence stand for none of its numbers."""

from __future__ import annotations

import re
from typing import Any

NAMES = re.compile(r"\b[ACEFTW]\d[\w.-]*[\w]|\b[ACE]\d\b|lr [\d.]+e-\d+|b?float\d+|\d+th\b")
NUMERAL = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def untraced(text: str, numbers: dict[str, Any]) -> list[str]:
    """Numerals of `text` that no value of `numbers` rounds to; names of runs and rates are no numerals."""
    known = list(_flat(numbers))
    for value in (v for v in known if isinstance(v, str)):
        text = text.replace(value, "")
    values = [v for v in known if isinstance(v, int | float) and not isinstance(v, bool)]
    found = [match.group() for match in NUMERAL.finditer(NAMES.sub("", text))]
    return [numeral for numeral in found if not any(_is(numeral, value) for value in values)]


def _flat(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _flat(inner)
    else:
        yield value


def _is(numeral: str, value: float) -> bool:
    plain = numeral.replace(",", "").lstrip("+")
    mantissa, _, exponent = plain.partition("e")
    unit = 10.0 ** (-len(mantissa.partition(".")[2]) + int(exponent or 0))
    return abs(float(plain) - value) <= 0.5001 * unit + 1e-12
