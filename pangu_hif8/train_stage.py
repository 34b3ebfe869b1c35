"""Train one run and write what it leaves: run.json, steps.csv, saturation.csv, timings, a checkpoint.

Everything but the timings is a function of configuration, seed and machine: the same seed twice gives the
same bytes. Files get their final names only when complete, and the stamp comes last.
"""

from __future__ import annotations

import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import set_seed

from pangu_hif8.corpus import TokenShards, TrainingOrder
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import RunConfig
from pangu_hif8.files import atomic_path, write_json, write_text
from pangu_hif8.launch import Parallel, accelerate_state, is_main_process
from pangu_hif8.linear import converted_linears, prepare_qat
from pangu_hif8.machine import cpu_name, peak_rss_mb
from pangu_hif8.models import load_base
from pangu_hif8.prepared import Prepared
from pangu_hif8.ranks import Ranks
from pangu_hif8.records import csv_text, saturation_csv, steps_csv
from pangu_hif8.run_facts import model_facts, num_linears, training_facts
from pangu_hif8.scaling import ScalingState
from pangu_hif8.sessions import Session
from pangu_hif8.stop_signal import stop_signal
from pangu_hif8.train import BatchForStep, Trainer, progress
from pangu_hif8.training_state import Parts, gather

OUTPUTS = ("run.json", "steps.csv", "train_timing.json", "step_times.csv", "checkpoint/model.safetensors")
QUANTIZED_OUTPUTS = ("saturation.csv", "checkpoint/scaling.safetensors")


def make_deterministic(seed: int, num_threads: int) -> None:
    """Fix every source of difference between two runs on one machine."""
    set_seed(seed)
    torch.set_num_threads(num_threads)
    torch.use_deterministic_algorithms(True)


def build_model(config: RunConfig, prepared: Prepared) -> tuple[nn.Module, ScalingState | None]:
    """The base model on the device that Accelerate picks, converted when the run quantizes."""
    model = load_base(prepared.model_dir)[0].to(accelerate_state().device)
    if config.quantization is None:
        return model, None
    return model, convert(model, config)


def convert(model: nn.Module, config: RunConfig) -> ScalingState:
    """The model's middle blocks quantized as the run says."""
    blocks = config.model
    assert config.quantization
    first, last = blocks.num_first_hp_blocks, blocks.num_last_hp_blocks
    return prepare_qat(model, config.quantization, first, last, blocks.hp_blocks)


def batches(order: TrainingOrder, shards: TokenShards) -> BatchForStep:
    """The seed's batches by step: the same for every experiment."""
    return lambda step: torch.from_numpy(shards.train[order.indices(step)].astype("int64"))


def train_run(
    config: RunConfig,
    prepared: Prepared,
    directory: Path,
    identity: dict[str, str],
    *,
    parallel: Parallel = "ddp",
    resume: Path | str = "auto",
) -> list[Path]:
    """Train, check that the run is what its label says, write the files; returns their paths.

    `identity` is what decides the run's numbers, by name: a checkpoint with another one is not resumed.
    `resume` is "auto", "never" or a checkpoint's directory. On several ranks each calls this, and rank 0
    writes. Raises Preempted after SIGTERM, UserError for what the user can mend.
    """
    if config.lr is None:
        return _write_untrained(config, prepared, directory) if is_main_process() else []
    accelerate_state()  # sets the number of threads, which is the configuration's to say
    make_deterministic(config.seed, config.train.num_threads)
    shards = TokenShards.open(prepared.shards_dir, verify=False)  # the prepare step has looked at them
    with stop_signal() as stop:
        trainer = _trainer(config, config.lr, prepared, parallel)
        trainer.stop_requested = stop
        order = TrainingOrder(len(shards.train), config.train.batch_size, config.seed)
        trainer.describe_batch = lambda step: f"sequences {order.indices(step).tolist()}"
        who = identity | _world_identity(config, trainer)
        session = Session(directory, trainer, who, config.model_dump(mode="json"), resume)
        _train(config, trainer, session, batches(order, shards))
        return _finish(config, prepared, directory, trainer, session)


def _trainer(config: RunConfig, lr: float, prepared: Prepared, parallel: Parallel) -> Trainer:
    model, scaling = build_model(config, prepared)
    trainer = Trainer(model, config.train, lr, scaling, Ranks(parallel))
    if trainer.ranks.is_main:
        num, total = len(converted_linears(model)), num_linears(model)
        print(f"{config.run_name}: converted {num}/{total} linear layers to HiF8", flush=True)
    return trainer


def _world_identity(config: RunConfig, trainer: Trainer) -> dict[str, str]:
    """The number of ranks, where it decides the numbers: where amaxes are not those of the global batch."""
    settings = config.quantization
    kinds = [settings.for_kind(kind) for kind in settings.kinds()] if settings else []
    current = any(kind.amax_compute_algo == "current" for kind in kinds)
    if current or (settings and not (settings.reduce_amax and settings.history_unit == "step")):
        return {"number of processes": str(trainer.ranks.world)}
    return {}


def _train(config: RunConfig, trainer: Trainer, session: Session, batch_for_step: BatchForStep) -> None:
    label = f"{config.run_name} seed {config.seed}: training"
    try:
        for step in progress(session.step + 1, config.train.steps, label, trainer.ranks.is_main):
            session.after(trainer.run_step(step, batch_for_step(step)))
    finally:
        session.close()
    trainer.finish()


def _finish(
    config: RunConfig,
    prepared: Prepared,
    directory: Path,
    trainer: Trainer,
    session: Session,
) -> list[Path]:
    parts = gather(trainer)
    written: list[Path] = []

    def write() -> None:
        entries = session.entries()
        facts = training_facts(config, prepared, trainer, entries) | {"resumed_from": session.resumed_from}
        written.extend(_write(config, directory, facts, entries, parts, trainer.scaling))

    trainer.ranks.on_main(write)
    session.remove()
    return written


def _write_untrained(config: RunConfig, prepared: Prepared, directory: Path) -> list[Path]:
    model, _ = load_base(prepared.model_dir)
    write_json(directory / "run.json", model_facts(config, prepared, model))
    return [directory / "run.json"]


def _write(
    config: RunConfig,
    directory: Path,
    facts: dict[str, Any],
    entries: list[dict[str, Any]],
    parts: Parts,
    scaling: ScalingState | None,
) -> list[Path]:
    outputs = OUTPUTS + (QUANTIZED_OUTPUTS if scaling else ())
    slots = scaling.names if scaling else []
    _save_tensors(directory / "checkpoint" / "model.safetensors", parts["model"])
    write_text(directory / "steps.csv", steps_csv(entries, slots))
    times = ([e["step"], f"{e['seconds']:.4f}"] for e in entries)
    write_text(directory / "step_times.csv", csv_text(["step", "seconds"], times))
    if scaling:
        _save_tensors(directory / "checkpoint" / "scaling.safetensors", parts["scaling"])
        write_text(directory / "saturation.csv", saturation_csv(entries, slots))
    write_json(directory / "train_timing.json", _timing(config, entries))
    write_json(directory / "run.json", facts)
    return [directory / name for name in outputs]


def _save_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    with atomic_path(path) as temporary:
        try:
            save_file(tensors, temporary)
        except SafetensorError as error:  # it wraps the system's errors, a full disk among them
            raise UserError(f"cannot write {path}: {error}. Check free space.") from error


def _timing(config: RunConfig, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "train_seconds": round(sum(e["seconds"] for e in entries), 2),
        "seconds_per_step_median": round(statistics.median(e["seconds"] for e in entries), 4),
        "peak_rss_mb": peak_rss_mb(),
        "num_threads": config.train.num_threads,
        "machine": f"{platform.system()} {platform.machine()}, {cpu_name()}",
    }
