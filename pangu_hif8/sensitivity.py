"""How much the held-out loss rises when one block alone is quantized, before any training.

The untouched base model is evaluated as it is, and once for each block with that block's MLP in HiF8, every
tensor scaled by its own amax (probing.py). The rise, sequence by sequence, is what the block adds to the cost
of quantization; blocks in the order of it are the `ranking` by which a sweep keeps the most sensitive ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig
from pangu_hif8.files import digest, read_json, sha256_file
from pangu_hif8.freshness import PACKAGE, exclusive, source_digest
from pangu_hif8.measured_rows import MeasuredRows, Row
from pangu_hif8.metrics import Interval, paired_loss_difference
from pangu_hif8.paths import run_dir
from pangu_hif8.plan_workload import shape_of
from pangu_hif8.prepared import Prepared
from pangu_hif8.run import resolve_run
from pangu_hif8.run_checks import DOMAINS
from pangu_hif8.sections import page_dir

COLUMNS = ("block", "domain", "sequence", "loss", "num_tokens")
UNQUANTIZED = -1  # in the column block: the base model as it is
PROBED = "E4"  # current scaling: probing.BASE, which can't be imported without torch


@dataclass(frozen=True)
class Sensitivity:
    """The measured losses: rows of `COLUMNS`, one a block, domain and sequence."""

    losses: pd.DataFrame
    file_hash: str

    def increase(self, block: int, domain: str | None = None) -> Interval:
        """Held-out loss with this block quantized minus without, nats, over sequences (of both domains)."""
        return paired_loss_difference(self._losses(block, domain), self._losses(UNQUANTIZED, domain))

    def _losses(self, block: int, domain: str | None) -> pd.Series:
        rows = self.losses[self.losses["block"] == block]
        return (rows if domain is None else rows[rows["domain"] == domain])["loss"]

    @property
    def blocks(self) -> list[int]:
        """The blocks that were quantized, by index."""
        return sorted(set(self.losses["block"]) - {UNQUANTIZED})

    @property
    def ranking(self) -> list[int]:
        """The blocks, the most sensitive first."""
        return sorted(self.blocks, key=lambda block: -self.increase(block).value)


def table_of(found: Sensitivity) -> pd.DataFrame:
    """One row a block: the rise of the loss over both domains with its interval, and in each domain."""
    rows = []
    for block in found.blocks:
        both = found.increase(block)
        ends = {"rise_nats": both.value, "rise_nats_low": both.low, "rise_nats_high": both.high}
        by_domain = {f"{domain}_nats": found.increase(block, domain).value for domain in DOMAINS}
        rows.append({"block": block} | ends | by_domain)
    return pd.DataFrame(rows)


def read_sensitivity(profile: str) -> Sensitivity | None:
    """What was measured; None without a complete file of these settings, this code and the runs' base model.

    Needs no torch and no prepared model.
    """
    inputs = _inputs(profile) | _base_of_runs(profile)
    rows = _file(profile)
    losses = rows.read(inputs)
    return None if losses is None else Sensitivity(losses, sha256_file(rows.csv))


def ranking(profile: str) -> list[int]:
    """The blocks, the most sensitive to quantization first; empty where that is not measured."""
    found = read_sensitivity(profile)
    return found.ranking if found else []


def measure_sensitivity(profile: str, *, fresh: bool = False) -> None:
    """Measure every block, if not there already. `fresh`: what came with the repository does not count."""
    rows = _file(profile)
    again = fresh and not rows.stamp.is_file()
    if read_sensitivity(profile) is not None and not again:
        return
    from pangu_hif8.prepare import prepare

    prepared = prepare(profile)
    base = {"base model": prepared.digests["model"], "held-out text": prepared.digests["shards"]}
    inputs = _inputs(profile) | base
    with exclusive(rows.directory, "the sensitivity of the blocks"):
        if again or rows.fault(inputs):
            keys = ["unquantized", *(f"block {block}" for block in range(_num_blocks(profile)))]
            rows.make(inputs, keys, lambda key: _losses(profile, keys.index(key) - 1, prepared))


def _file(profile: str) -> MeasuredRows:
    return MeasuredRows("sensitivity", page_dir(profile, "beyond"), COLUMNS)


def _num_blocks(profile: str) -> int:
    return shape_of(load_profile(profile).model).num_blocks


def _probe(profile: str, block: int) -> RunConfig:
    """The settings with this block alone quantized."""
    others = [other for other in range(_num_blocks(profile)) if other != block]
    return resolve_run(PROBED, profile, 0, hp_blocks=others)


def _inputs(profile: str) -> dict[str, str]:
    """What decides the losses, as far as it is known without the prepared model."""
    config = _probe(profile, 0)
    assert config.quantization
    settings = {
        "blocks": _num_blocks(profile),
        "model": config.model.model_copy(update={"hp_blocks": None}).identity(),
        "data": config.data.identity(),
        "quantization": config.quantization.effective(),
        "batch size": config.evaluation.batch_size,
    }
    own = [sha256_file(PACKAGE / f"{name}.py") for name in ("sensitivity", "probing")]
    code = digest([source_digest("train_stage", "evaluate_stage"), *own])
    return {"settings": digest(settings), "code": code}


def _base_of_runs(profile: str) -> dict[str, str]:
    """Base model and text of the untouched checkpoint's run, where there is one."""
    try:
        info = read_json(run_dir(profile, "E0", 0) / "run.json")
        return {"base model": str(info["model_digest"]), "held-out text": str(info["data_digest"])}
    except (UserError, KeyError, TypeError):
        return {}


def _losses(profile: str, block: int, prepared: Prepared) -> Iterator[Row]:
    """The held-out losses with one block quantized, or none. Raises UserError where one is not finite."""
    from pangu_hif8.corpus import TokenShards
    from pangu_hif8.heldout import heldout_losses
    from pangu_hif8.models import load_base
    from pangu_hif8.probing import load_probe

    config = _probe(profile, max(block, 0))
    model = load_base(prepared.model_dir)[0] if block == UNQUANTIZED else load_probe(config, prepared)[0]
    shards = TokenShards.open(prepared.shards_dir, verify=False)  # the prepare step has looked at them
    table = heldout_losses(model, shards, config.evaluation.batch_size)
    rows: list[list[int | float | str]] = table[list(COLUMNS[1:])].to_numpy(dtype=object).tolist()
    yield from ([block, *row] for row in rows)
