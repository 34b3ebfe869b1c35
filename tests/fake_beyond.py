"""Synthetic runs of the sweeps, and a synthetic sensitivity of the blocks, in the files' own layout."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fake_results import Dial, write_config, write_tree

from pangu_hif8 import sensitivity
from pangu_hif8.beyond_variants import beyond_variants, num_blocks
from pangu_hif8.config import load_profile
from pangu_hif8.heldout import DOMAINS
from pangu_hif8.run import directory_of
from pangu_hif8.variants import Variant

RISES = (0.001, 0.02, 0.003, 0.03, 0.0005, 0.002, 0.004, 0.01)  # of the 8 blocks' losses, nats
RANKING = [3, 1, 7, 6, 2, 5, 0, 4]
VARIANTS = {v.id: v for v in beyond_variants(load_profile("smoke"), RANKING)}


def write_sweeps(
    results: Path, seeds: tuple[int, ...] = (0,), leave_out: Collection[str] = (), measured: bool = True
) -> tuple[Variant, ...]:
    """The smoke profile's experiments and variants; every variant's training-text loss has a shift."""
    write_tree(results, seeds=seeds)
    if measured:
        write_sensitivity()
    variants = beyond_variants(load_profile("smoke"), sensitivity.ranking("smoke"))
    for index, variant in enumerate(variants):
        for seed in seeds if variant.id not in leave_out else ():
            write_variant(variant, seed, shift=0.002 * (index % 5 - 2))
    return variants


def write_variant(variant: Variant, seed: int, shift: float = 0.0) -> Path:
    """One variant's run."""
    spread = variant.changes.get("adaptive_warmup_spread")
    more: dict[str, Any] = {"switch": round(18 - 2 * math.log10(spread))} if spread else {}
    dial = Dial(heldout_shift=shift, second_shift=-shift, noise=0.0015, **more)
    config = variant.config("smoke", seed)
    return write_config(directory_of(config), config, dial)


def write_sensitivity(profile: str = "smoke") -> None:
    """A measurement whose ranking is RANKING."""
    rows = sensitivity._file(profile)
    inputs = sensitivity._inputs(profile) | sensitivity._base_of_runs(profile)
    keys = ["unquantized", *(f"block {block}" for block in range(num_blocks(load_profile(profile))))]
    rows.make(inputs, keys, lambda key: fake_losses(keys.index(key) - 1))


def fake_losses(block: int, num: int = 16) -> list[list[int | float | str]]:
    """Losses of one block's measurement: a level for each sequence, the block's rise, a little noise."""
    found: list[list[int | float | str]] = []
    for domain in DOMAINS:
        level = np.random.default_rng(1).normal(3.0, 0.3, num)
        noise = np.random.default_rng(block + 2).normal(0, 1e-4, num)
        rise = 0.0 if block < 0 else RISES[block]
        found += [[block, domain, i, float(level[i] + rise + noise[i]), 63] for i in range(num)]
    return found


@contextmanager
def at(base: Path) -> Iterator[None]:
    """Results lie in this directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANGU_HIF8_RESULTS", str(base))
        yield


def heldout_difference(name: str, other: str, domain: str, base: Path, seed: int = 0) -> float:
    """Mean difference of two runs' held-out losses, read from the files."""
    return losses(name, domain, base, seed) - losses(other, domain, base, seed)


def losses(name: str, domain: str, base: Path, seed: int) -> float:
    table = pd.read_csv(place(name, base, seed) / "heldout.csv")
    return float(table.loc[table["domain"] == domain, "loss"].mean())


def place(name: str, base: Path, seed: int = 0) -> Path:
    with at(base):
        found = directory_of(VARIANTS[name].config("smoke", seed)) if name in VARIANTS else None
    return found or base / "smoke" / name / f"seed{seed}"
