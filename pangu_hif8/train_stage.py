"""Train one run and write what it leaves: run.json, steps.csv, saturation.csv, timings, a checkpoint.

Everything but the timings is a function of configuration, seed and machine: the same seed twice gives the
same bytes. Files get their final names only when complete, and the stamp comes last.
"""

from __future__ import annotations

import csv
import io
import platform
import resource
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import set_seed

from pangu_hif8.corpus import TokenShards, TrainingOrder
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig, get_experiment
from pangu_hif8.files import atomic_path, write_json, write_text
from pangu_hif8.freshness import source_digest
from pangu_hif8.linear import converted_linears, prepare_qat
from pangu_hif8.models import load_base
from pangu_hif8.prepared import Prepared
from pangu_hif8.scaling import ScalingState
from pangu_hif8.train import BatchForStep, StepRecord, fit

SCHEMA_VERSION = 1
OUTPUTS = ("run.json", "steps.csv", "train_timing.json", "step_times.csv", "checkpoint/model.safetensors")
QUANTIZED_OUTPUTS = ("saturation.csv", "checkpoint/scaling.safetensors")
LIBRARIES = ("torch", "transformers", "accelerate", "numpy", "safetensors")


def library_versions() -> dict[str, str]:
    """Versions that a run's numbers can depend on."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}


def make_deterministic(seed: int, num_threads: int) -> None:
    """Fix every source of difference between two runs on one machine."""
    set_seed(seed)
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)


def build_model(config: RunConfig, prepared: Prepared) -> tuple[nn.Module, ScalingState | None]:
    """The base model on the device that Accelerate picks, converted when the run quantizes."""
    model = load_base(prepared.model_dir)[0].to(PartialState().device)
    if config.quantization is None:
        return model, None
    blocks = (config.model.num_first_hp_blocks, config.model.num_last_hp_blocks)
    return model, prepare_qat(model, config.quantization, *blocks)


def batches(config: RunConfig, shards: TokenShards) -> BatchForStep:
    """The seed's batches by step: the same for every experiment."""
    order = TrainingOrder(len(shards.train), config.train.batch_size, config.seed)
    return lambda step: torch.from_numpy(shards.train[order.indices(step)].astype("int64"))


def train_run(config: RunConfig, prepared: Prepared, directory: Path) -> list[Path]:
    """Train, check that the run is what its label says, write the files; returns their paths."""
    if config.lr is None:
        return _write_untrained(config, prepared, directory)
    make_deterministic(config.seed, config.train.num_threads)
    shards = TokenShards.open(prepared.shards_dir)
    model, scaling = build_model(config, prepared)
    converted, num_linears = converted_linears(model), _num_linears(model)
    print(f"{config.run_name}: converted {len(converted)}/{num_linears} linear layers to HiF8", flush=True)
    records = fit(
        model,
        batches(config, shards),
        steps=config.train.steps,
        micro_batch_size=config.train.micro_batch_size,
        lr=config.lr,
        optimizer=config.train.optimizer,
        scaling=scaling,
        description=f"{config.run_name} seed {config.seed}: training",
    )
    facts = _facts(config, prepared, model, converted, records)
    return _write(config, directory, facts, records, model, scaling)


def _num_linears(model: nn.Module) -> int:
    return sum(isinstance(module, nn.Linear) for module in model.modules())


def _facts(
    config: RunConfig, prepared: Prepared, model: nn.Module, converted: list[str], records: list[StepRecord]
) -> dict[str, Any]:
    switched = next((r.step for r in records if r.scaling and r.scaling.quantized), None)
    if config.quantization and (not converted or switched is None):
        raise UserError(f"{config.run_name} is labelled HiF8 and never quantized; nothing is written")
    facts = {
        "device": str(next(model.parameters()).device),
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "num_linears": _num_linears(model),
        "num_converted_linears": len(converted),
        "converted": converted,
        "quantized_from_step": switched,
        "tokens_per_step": config.train.batch_size * config.data.sequence_length,
        "num_steps": len(records),
        "final_loss": records[-1].loss if records else None,
    }
    return _identity(config, prepared) | facts


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


def _write_untrained(config: RunConfig, prepared: Prepared, directory: Path) -> list[Path]:
    model, _ = load_base(prepared.model_dir)
    write_json(directory / "run.json", _facts(config, prepared, model, [], []))
    return [directory / "run.json"]


def _write(
    config: RunConfig,
    directory: Path,
    facts: dict[str, Any],
    records: list[StepRecord],
    model: nn.Module,
    scaling: ScalingState | None,
) -> list[Path]:
    names = OUTPUTS + (QUANTIZED_OUTPUTS if scaling else ())
    _save_tensors(directory / "checkpoint" / "model.safetensors", _trained_weights(model))
    write_text(directory / "steps.csv", _steps_csv(records))
    write_text(directory / "step_times.csv", _table(["step", "seconds"], _times(records)))
    if scaling:
        _save_tensors(directory / "checkpoint" / "scaling.safetensors", scaling.state_dict())
        write_text(directory / "saturation.csv", _saturation_csv(records, scaling.names))
    write_json(directory / "train_timing.json", _timing(config, records))
    write_json(directory / "run.json", facts)
    return [directory / name for name in names]


def _trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter once (a tied head is left out), by the name that the base model gives it."""
    return {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}


def _save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary)
        except SafetensorError as error:  # it wraps the system's errors, a full disk among them
            raise UserError(f"cannot write {path}: {error}. Check free space.") from error


def _table(header: list[str], rows: list[list[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _steps_csv(records: list[StepRecord]) -> str:
    header = ["step", "loss", "lr", "grad_norm", "quantized", "saturated_share", "max_overshoot"]
    return _table(header, [[r.step, r.loss, r.lr, r.grad_norm, *_scaling_cells(r)] for r in records])


def _scaling_cells(record: StepRecord) -> list[Any]:
    step = record.scaling
    if step is None or not step.quantized:
        return [0, "", ""]
    overshoot = (step.amax / step.estimate).nan_to_num(0.0)
    return [1, float(step.saturated.double().mean()), float(overshoot.max())]


def _saturation_csv(records: list[StepRecord], names: list[str]) -> str:
    header = ["step", "block", "layer", "kind", "amax", "estimate", "saturated"]
    return _table(header, [row for record in records for row in _saturation_rows(record, names)])


def _saturation_rows(record: StepRecord, names: list[str]) -> list[list[Any]]:
    step = record.scaling
    assert step is not None
    columns = zip(names, step.amax.tolist(), step.estimate.tolist(), step.saturated.tolist(), strict=True)
    return [
        [record.step, *name.split("."), f"{amax:.9g}"]
        + ([f"{estimate:.9g}", int(saturated)] if step.quantized else ["", ""])
        for name, amax, estimate, saturated in columns
    ]


def _times(records: list[StepRecord]) -> list[list[Any]]:
    return [[record.step, f"{record.seconds:.4f}"] for record in records]


def _timing(config: RunConfig, records: list[StepRecord]) -> dict[str, Any]:
    return {
        "train_seconds": round(sum(r.seconds for r in records), 2),
        "seconds_per_step_median": round(statistics.median(r.seconds for r in records), 4),
        "peak_rss_mb": peak_rss_mb(),
        "num_threads": config.train.num_threads,
        "machine": f"{platform.system()} {platform.machine()}, {cpu_name()}",
    }


def cpu_name() -> str:
    """The processor's name where Linux tells it, else what Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, in MB (Linux reports KiB, macOS bytes)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if platform.system() == "Darwin" else 1e3), 1)
