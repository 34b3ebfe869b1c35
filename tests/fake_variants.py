"""Synthetic runs of variants and a synthetic dose response, beside the trees of fake_results.py."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from fake_results import Dial, write_config, write_tree

from pangu_hif8.audit_variants import audit_variants
from pangu_hif8.config import load_profile
from pangu_hif8.dose_files import Point, dose_file, dose_inputs, dose_task, points
from pangu_hif8.measured_rows import Row
from pangu_hif8.variants import Variant

MADE = {"model": "m" * 64, "data": "d" * 64, "items": "i" * 64}
DIALS = {
    "A1-E1": Dial(turned_wrong=0.2, heldout_shift=1.2, second_shift=1.1),
    "A1-E6": Dial(turned_wrong=0.02, heldout_shift=0.2, second_shift=0.2),
    "A2-E6-bfloat16": Dial(heldout_shift=-0.01),
    "A3-E2-taper": Dial(turned_right=0.01, ape_pct=0.02),
    "A4-E8-micro": Dial(force_saturated=0.2),
    "A4-E8-published": Dial(force_saturated=0.2, heldout_shift=0.01, noise=0.002),
    "A5-E8-no-warmup": Dial(ape_pct=0.05),
    "A6-E8-gradients": Dial(heldout_shift=0.02, noise=0.004),
}


def write_variants(
    results: Path,
    variants: Iterable[Variant],
    profile: str = "smoke",
    seeds: tuple[int, ...] = (0,),
    dials: dict[str, Dial] | None = None,
) -> None:
    """Write a run of each variant, where its own settings put it."""
    for variant in variants:
        for seed in seeds:
            config = variant.config(profile, seed)
            directory = results / profile / config.run_name / f"seed{seed}"
            write_config(directory, config, (dials or {}).get(variant.id, Dial()))


def write_dose(profile: str = "smoke", taper: float = 0.002) -> None:
    """A dose response in the results directory in use; clipping costs more than the taper (nats a factor)."""
    task = dose_task(load_profile(profile)).name
    by_name = {point.name: point for point in points()}
    inputs = dose_inputs(profile) | MADE
    dose_file(profile).make(inputs, by_name, lambda name: _dose_rows(by_name[name], task, taper))


def _dose_rows(point: Point, task: str, taper: float) -> list[Row]:
    cost = (1 - point.factor) * {"saturate": 0.5, "taper": taper}[point.overflow]
    own = np.random.default_rng([round(100 * point.factor), len(point.overflow), len(point.layers)])
    rows: list[Row] = []
    for domain in ("same_domain", "second_domain"):
        level = np.random.default_rng([9, 32]).normal(3.0, 0.3, 32)
        loss = level + cost + own.normal(0, 0.002, 32)
        rows += [[point.name, domain, str(i), float(value), ""] for i, value in enumerate(loss)]
    right = own.random(40) < 0.6 - cost
    return rows + [[point.name, task, f"q{i}", float(hit), 1.0 + cost] for i, hit in enumerate(right)]


def write_audit(results: Path, seeds: tuple[int, ...] = (0,)) -> None:
    """Everything that smoke's audit needs; the environment must name `results`."""
    write_tree(results, "smoke", seeds)
    write_variants(results, audit_variants(load_profile("smoke")), seeds=seeds, dials=DIALS)
    write_dose("smoke")
