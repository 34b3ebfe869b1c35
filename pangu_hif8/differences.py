"""Which settings of two configurations differ, in words."""

from __future__ import annotations

from typing import Any

_NUM_SHOWN = 3


def differences(old: Any, new: Any, words: str, ignored: tuple[str, ...] = ()) -> str:
    """The settings that differ, each by `words` (with {name}, {old} and {new}); empty where none does.

    Both are nested dictionaries of plain values. Three are spelt out, the rest counted.
    """
    a, b = _flat(old), _flat(new)
    names = sorted(n for n in a | b if a.get(n) != b.get(n) and n not in ignored)
    shown = [words.format(name=n, old=repr(a.get(n)), new=repr(b.get(n))) for n in names[:_NUM_SHOWN]]
    more = [f"and {len(names) - _NUM_SHOWN} more"] if len(names) > _NUM_SHOWN else []
    return "; ".join(shown + more)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix or "config": value}
    return {
        k: v for key, inner in value.items() for k, v in _flat(inner, f"{prefix}.{key}".lstrip(".")).items()
    }
