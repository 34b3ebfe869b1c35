"""What run.json says of a run: configuration, code, versions, what was converted, how training went."""

from __future__ import annotations

from typing import Any

from torch import nn

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig, get_experiment
from pangu_hif8.freshness import source_digest
from pangu_hif8.linear import converted_linears
from pangu_hif8.machine import library_versions
from pangu_hif8.prepared import Prepared
from pangu_hif8.train import Trainer

SCHEMA_VERSION = 2


def num_linears(model: nn.Module) -> int:
    """Linear layers in all, converted or not."""
    return sum(isinstance(module, nn.Linear) for module in model.modules())


def training_facts(
    config: RunConfig,
    prepared: Prepared,
    trainer: Trainer,
    entries: list[dict[str, Any]],
) -> dict[str, Any]:
    """What run.json says of a trained run. Raises UserError when it was to quantize and never did."""
    converted = converted_linears(trainer.model)
    switched = next((e["step"] for e in entries if e["quantized"]), None)
    if config.quantization and (not converted or switched is None):
        raise UserError(f"{config.run_name} is labelled HiF8 and never quantized; nothing is written")
    trained = {
        "device": str(trainer.ranks.device),
        "num_converted_linears": len(converted),
        "converted": converted,
        "quantized_from_step": switched,
        "num_steps": len(entries),
        "num_skipped_steps": sum(e["skipped"] for e in entries),
        "world_size": trainer.ranks.world,
        "parallel": trainer.ranks.parallel if trainer.ranks.world > 1 else "none",
        "final_loss": _last_finite(entries),
    }
    return model_facts(config, prepared, trainer.model) | trained


def model_facts(config: RunConfig, prepared: Prepared, model: nn.Module) -> dict[str, Any]:
    """What holds for the untrained checkpoint."""
    return _identity(config, prepared) | {
        "device": str(next(model.parameters()).device),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "num_linears": num_linears(model),
        "num_converted_linears": 0,
        "converted": [],
        "quantized_from_step": None,
        "tokens_per_step": config.train.batch_size * config.data.sequence_length,
        "num_steps": 0,
        "num_skipped_steps": 0,
        "world_size": 1,
        "parallel": "none",
        "final_loss": None,
        "resumed_from": [],
    }


def _last_finite(entries: list[dict[str, Any]]) -> float | None:
    return next((e["loss"] for e in reversed(entries) if not e["skipped"]), None)


def _identity(config: RunConfig, prepared: Prepared) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "complete",
        "profile": config.profile,
        "experiment": config.experiment,
        "title": get_experiment(config.experiment).title,
        "seed": config.seed,
        "config": config.model_dump(),
        "train_hash": config.train_hash(),
        "eval_hash": config.eval_hash(),
        "train_code": source_digest("train_stage"),
        "model_digest": prepared.digests["model"],
        "data_digest": prepared.digests["shards"],
        "versions": library_versions(),
    }
