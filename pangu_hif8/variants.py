"""Experiments beside the paper's eight: one of them with changed settings, under a name of its own.

A variant is data: which experiment it starts from, what it changes, and what it is compared with. The audit
and the sweeps are lists of them, made for a profile, because some settings (a window, a warm-up) only make
sense in proportion to its number of steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS, RunConfig
from pangu_hif8.run import resolve_run


@dataclass(frozen=True)
class Variant:
    """One row of a list of variants.

    `base`: the experiment that is changed; `changes`: fields of `overrides.Overrides`; `against`: the name of
    the experiment or variant that it is compared with.
    """

    id: str
    title: str
    base: str
    against: str
    changes: dict[str, Any] = field(default_factory=dict)

    def config(self, profile: str, seed: int) -> RunConfig:
        """Its full settings. Raises UserError where the changes don't fit the profile."""
        return resolve_run(self.base, profile, seed, **self.changes)


def checked(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """The variants in an order in which each comes after what it is compared with.

    Raises UserError for a name given twice, or one that nobody has.
    """
    found: dict[str, Variant] = {}
    for variant in variants:
        if variant.id in found or variant.id in EXPERIMENTS:
            raise UserError(f"the name {variant.id} is given twice")
        for name in (variant.base, variant.against):
            if name not in EXPERIMENTS and name not in found:
                raise UserError(f"{variant.id} names {name}, which is no experiment and no earlier variant")
        found[variant.id] = variant
    return tuple(found.values())


def experiments_for(variants: Iterable[Variant]) -> Iterator[str]:
    """The experiments of the paper that the variants are compared with, in the registry's order."""
    named = {name for variant in variants for name in (variant.base, variant.against)}
    yield from (name for name in EXPERIMENTS if name in named)


def chosen(variants: tuple[Variant, ...], only: str) -> tuple[Variant, ...]:
    """Those whose name starts with one of the words of `only`; all when it is empty. Raises UserError."""
    words = only.replace(",", " ").split()
    for word in words:
        if not any(variant.id.startswith(word) for variant in variants):
            names = ", ".join(variant.id for variant in variants)
            raise UserError(f"nothing is called {word}; valid: {names}")
    return tuple(v for v in variants if not words or v.id.startswith(tuple(words)))
