"""What a profile asks of a machine, worked out from its settings; sizes by the formulas of `plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from pangu_hif8.benchmarks import evaluation_wheels
from pangu_hif8.config import ParquetConfig, Profile
from pangu_hif8.doctor import Needs, Source, task_sources
from pangu_hif8.errors import UserError
from pangu_hif8.licences import WHEEL_SETS
from pangu_hif8.lm_tasks import check_task
from pangu_hif8.paths import cache_dir, prepared_dir, results_dir
from pangu_hif8.plan import CHECKPOINT_BYTES, checkpoint_bytes, shard_bytes, worst_memory
from pangu_hif8.plan_memory import FLOAT32, USABLE_SHARE, MemorySettings
from pangu_hif8.plan_time import PUBLISHED
from pangu_hif8.plan_workload import Workload, workload_of
from pangu_hif8.texts import data_wheels

PROCESS_BYTES = 2 << 30  # of Python, torch and lm-eval, assumed
STARTS_SHARE = 0.02  # the shards' index of documents, over their tokens (`shard_writer`)
DOWNLOAD_BYTES = 3 << 30  # one Parquet file of a text from the hub at a time, assumed
WHEEL_BYTES = 100 << 20  # the largest of the pinned wheels


def profile_needs(profile: Profile, gpus: int | None = None) -> Needs:
    """The needs of a profile's runs on `gpus` GPUs of one node; 0 is a run on the CPU.

    By default 8 for a profile that computes in bfloat16, as the published run had, else none. Raises
    UserError where the batch can't be cut for so many.
    """
    num_gpus = _default_gpus(profile) if gpus is None else gpus
    needs = Needs(
        cache_dir=cache_dir(),
        results_dir=results_dir(),
        num_gpus=num_gpus,
        sources=_sources(profile),
        wheels=_wheels(profile),
        wheel_sets=_wheel_sets(profile),
        faults=tuple(_faults(profile)),
    )
    settings = _settings(profile, max(1, num_gpus))
    try:
        workload = workload_of(profile)
    except UserError as error:  # another model or benchmark than those that plan knows
        return replace(needs, notes=(str(error),))
    return _with_sizes(needs, profile, workload, settings)


def _default_gpus(profile: Profile) -> int:
    return PUBLISHED.gpus if profile.train.precision == "bfloat16" else 0


def _settings(profile: Profile, ranks: int) -> MemorySettings:
    train = profile.train
    if train.batch_size % (train.micro_batch_size * ranks):
        raise UserError(
            f"{ranks} GPUs x micro_batch_size {train.micro_batch_size} does not divide batch_size "
            f"{train.batch_size}; ask for another number of GPUs"
        )
    return MemorySettings(
        micro_batch=train.micro_batch_size,
        sequence_length=profile.data.sequence_length,
        accumulation_steps=train.batch_size // (train.micro_batch_size * ranks),
        ranks=ranks,
        precision=train.precision,
        checkpointing=train.activation_checkpointing,
    )


def _with_sizes(needs: Needs, profile: Profile, workload: Workload, settings: MemorySettings) -> Needs:
    """On GPUs, main memory holds each process's model as it is loaded, and one process's checkpoint.

    Disk is what is still to be written.
    """
    step = worst_memory(workload.shape, settings).total
    model = FLOAT32 * workload.shape.num_parameters
    if needs.num_gpus:
        memory = needs.num_gpus * (model + PROCESS_BYTES) + CHECKPOINT_BYTES * workload.shape.num_parameters
    else:
        memory = int(step) + PROCESS_BYTES
    return replace(
        needs,
        memory_bytes=memory,
        gpu_memory_bytes=int(step / USABLE_SHARE) if needs.num_gpus else 0,
        whole_model_bytes=int(model / USABLE_SHARE) if needs.num_gpus else 0,
        cache_bytes=max(0, _cache_bytes(needs, profile, workload) - _held(prepared_dir(profile.name))),
        results_bytes=max(0, _results_bytes(profile, workload) - _held(results_dir() / profile.name)),
    )


def _held(folder: Path) -> int:
    """Bytes of the files that are there already."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _cache_bytes(needs: Needs, profile: Profile, workload: Workload) -> int:
    """Shards, the prepared model, and what is downloaded for them (the hub's copy of the model: bfloat16)."""
    data, parameters = profile.data, workload.shape.num_parameters
    heldout = (data.num_heldout_sequences + data.num_second_domain_sequences) * data.sequence_length
    shards = shard_bytes(workload) + heldout * workload.token_bytes
    remote = [source for source in needs.sources if source.local is None]
    text = (
        {t.dataset for t in (data.text, data.second_domain_text) if t} if data.source == "parquet" else set()
    )
    downloads = DOWNLOAD_BYTES if any(source.name in text for source in remote) else 0
    downloads += sum(2 * parameters for source in remote if source.repo_type == "model")
    downloads += WHEEL_BYTES * len(needs.wheels)
    return int(shards * (1 + STARTS_SHARE)) + FLOAT32 * parameters + downloads


def _results_bytes(profile: Profile, workload: Workload) -> int:
    """Eight finished runs, and the checkpoints of one that trains."""
    sizes = checkpoint_bytes(workload)
    training = sizes["while a run trains"] if profile.train.checkpoint_every else sizes["one"]
    return sizes["eight finished runs"] + training


def _faults(profile: Profile) -> list[str]:
    found = []
    for task in profile.evaluation.tasks:
        try:
            check_task(task, profile.evaluation.source)
        except UserError as error:
            found.append(str(error))
    return found


def _wheels(profile: Profile) -> tuple[str, ...]:
    """Names of the pinned wheels that the profile reads, each once."""
    model = [profile.model.wheel] if profile.model.source == "gguf" and profile.model.wheel else []
    others = [*data_wheels(profile.data), *evaluation_wheels(profile.evaluation)]
    return tuple(dict.fromkeys([*model, *(wheel.name for wheel in others)]))


def _wheel_sets(profile: Profile) -> tuple[str, ...]:
    """What lies in those wheels; the invented world and its questions are nobody's."""
    model = WHEEL_SETS.get(str(profile.model.wheel), ()) if profile.model.source == "gguf" else ()
    texts = WHEEL_SETS.get(profile.data.source, ())
    tasks = [task.name for task in profile.evaluation.tasks] if profile.evaluation.source == "wheel" else []
    return (*model, *texts, *(source.name for source in task_sources(tasks)))


def _sources(profile: Profile) -> tuple[Source, ...]:
    model, data, evaluation = profile.model, profile.data, profile.evaluation
    found: list[Source] = []
    if model.source == "hub":
        name = str(model.name)
        found.append(_source(name, Path(name), "model"))
    if data.source == "parquet":
        texts: list[ParquetConfig] = [text for text in (data.text, data.second_domain_text) if text]
        found += [_source(text.dataset, Path(text.dataset).expanduser(), "dataset") for text in texts]
    if evaluation.source == "hub":
        local = Path(evaluation.items_dir).expanduser() if evaluation.items_dir else None
        found += task_sources([task.name for task in evaluation.tasks], local)
    return tuple(dict.fromkeys(found))


def _source(name: str, path: Path, repo_type: Literal["model", "dataset"]) -> Source:
    """Local where there is such a folder, or where the name can't be the hub's owner/name."""
    is_local = path.is_dir() or name.count("/") != 1 or name[0] in "/.~"
    return Source(name, repo_type, path if is_local else None)
