"""What a profile's runs cost on a given machine, before one is started: memory, disk, traffic and hours.

`make_plan` computes, `plan_text.plan_text` writes it down. Every formula is in `plan_shape`, `plan_memory`,
`plan_time` and `plan_hardware`; what is assumed and not counted stands beside the figure. No torch is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.plan_hardware import GIB, Cluster
from pangu_hif8.plan_memory import FLOAT32, USABLE_SHARE, MemorySettings, Parallel
from pangu_hif8.plan_moments import Memory, training_memory
from pangu_hif8.plan_shape import ModelShape
from pangu_hif8.plan_time import HOUR, Span, StepTime, evaluation_seconds, step_time
from pangu_hif8.plan_workload import Workload

CHECKPOINT_BYTES = 3 * FLOAT32  # weights and AdamW's two moments, a parameter
EXAMINED_NODES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Plan:
    """A workload on a cluster, laid out so that it fits, or as asked where nothing fits."""

    workload: Workload
    cluster: Cluster
    settings: MemorySettings
    memory: Memory
    step_fits: bool
    step: StepTime
    evaluation: Span

    @property
    def usable(self) -> float:
        """Bytes of a GPU that a run may fill."""
        return self.cluster.gpu.memory * USABLE_SHARE

    @property
    def whole_model(self) -> float:
        """Bytes of the float32 model, which each GPU holds whole before it is sharded and to evaluate."""
        return float(FLOAT32 * self.workload.shape.num_parameters)

    @property
    def fits(self) -> bool:
        """Whether a GPU holds a training step, and the whole model at the start."""
        return self.step_fits and self.whole_model <= self.usable


@dataclass(frozen=True)
class ExperimentHours:
    """One experiment: its steps by kind, and the hours of its training."""

    experiment: str
    title: str
    plain_steps: int
    quantized_steps: int
    hours: Span


def make_plan(
    workload: Workload,
    cluster: Cluster,
    *,
    parallel: Parallel = "ddp",
    micro_batch: int | None = None,
    checkpointing: bool | None = None,
) -> Plan:
    """Lay the workload out: the fastest of `layouts` that fits both kinds of run, else the smallest.

    Raises UserError when the global batch can't be cut for so many GPUs.
    """
    if checkpointing is None and workload.checkpointing:
        checkpointing = True
    candidates = list(layouts(workload, cluster, parallel, micro_batch, checkpointing))
    limit = cluster.gpu.memory * USABLE_SHARE
    fitting = [s for s in candidates if worst_memory(workload.shape, s).total <= limit]
    chosen = min(fitting, key=lambda s: step_time(workload.shape, s, cluster).plain.low, default=None)
    settings = chosen or min(candidates, key=lambda s: worst_memory(workload.shape, s).total)
    return Plan(
        workload=workload,
        cluster=cluster,
        settings=settings,
        memory=worst_memory(workload.shape, settings),
        step_fits=chosen is not None,
        step=step_time(workload.shape, settings, cluster),
        evaluation=evaluation_seconds(workload.shape, workload.tasks, cluster),
    )


def worst_memory(shape: ModelShape, settings: MemorySettings) -> Memory:
    """Of a quantized and a plain run, the one that needs more: both are among the eight."""
    kinds = (replace(settings, quantized=quantized) for quantized in (True, False))
    return max((training_memory(shape, kind) for kind in kinds), key=lambda memory: memory.total)


def layouts(
    workload: Workload,
    cluster: Cluster,
    parallel: Parallel = "ddp",
    micro_batch: int | None = None,
    checkpointing: bool | None = None,
) -> Iterator[MemorySettings]:
    """Ways to lay a step out: the profile's micro-batch and smaller ones, down to an eighth, then the same
    down to 1 with activation checkpointing. What is given is kept."""
    micros = [micro_batch] if micro_batch is not None else list(_micro_batches(workload, cluster))
    for checkpointed in (False, True) if checkpointing is None else (checkpointing,):
        for micro in micros:
            if checkpointing is None and not checkpointed and micro * 8 < micros[0]:
                continue
            yield _settings(workload, cluster, parallel, micro, checkpointed)


def _micro_batches(workload: Workload, cluster: Cluster) -> Iterator[int]:
    share = workload.batch_size // cluster.ranks
    if workload.batch_size % cluster.ranks or not share:
        raise UserError(
            f"a global batch of {workload.batch_size} sequences can't be shared equally by {cluster.ranks} "
            "GPUs; take a number of GPUs that divides it"
        )
    yield from (m for m in range(min(workload.micro_batch, share), 0, -1) if share % m == 0)


def _settings(
    workload: Workload, cluster: Cluster, parallel: Parallel, micro: int, checkpointed: bool
) -> MemorySettings:
    if isinstance(micro, bool) or not isinstance(micro, int) or micro < 1:
        raise UserError(f"micro_batch must be a whole number from 1, got {micro!r}")
    if workload.batch_size % (micro * cluster.ranks):
        raise UserError(
            f"{cluster.ranks} GPUs x micro-batch {micro} does not divide the global batch "
            f"{workload.batch_size}; take a smaller micro-batch"
        )
    return MemorySettings(
        micro_batch=micro,
        sequence_length=workload.sequence_length,
        accumulation_steps=workload.batch_size // (micro * cluster.ranks),
        ranks=cluster.ranks,
        parallel=parallel,
        checkpointing=checkpointed,
    )


def experiment_hours(plan: Plan) -> list[ExperimentHours]:
    """Training hours of the eight experiments, E0 (never trained) left out."""
    return [_hours(plan, row.id) for row in EXPERIMENTS.values() if row.lr is not None]


def _hours(plan: Plan, name: str) -> ExperimentHours:
    row, steps = EXPERIMENTS[name], plan.workload.steps
    warmup = plan.workload.warmup_steps if row.bf16_warmup else 0
    quantized = 0 if row.amax_compute_algo is None else steps - warmup
    plain = plan.step.plain.times(steps - quantized, steps - quantized)
    if quantized:
        plain += plan.step.quantized(row.amax_compute_algo or "").times(quantized, quantized)
    return ExperimentHours(name, row.title, steps - quantized, quantized, plain.times(1 / HOUR, 1 / HOUR))


def total_hours(plan: Plan) -> Span:
    """All eight experiments and the nine evaluations (the untouched checkpoint's included)."""
    evaluations = plan.evaluation.times(9 / HOUR, 9 / HOUR)
    return sum((row.hours for row in experiment_hours(plan)), evaluations)


def shard_bytes(workload: Workload) -> int:
    """Disk for the tokens that the runs read, tokenized once."""
    return workload.num_stored_sequences * workload.sequence_length * workload.token_bytes


def checkpoint_bytes(workload: Workload) -> dict[str, int]:
    """Disk for checkpoints: one; a run's at most (kept, best, one being written), which go when it is
    complete; and the weights that eight finished runs keep."""
    parameters = workload.shape.num_parameters
    one = CHECKPOINT_BYTES * parameters
    most = (workload.keep_checkpoints + 2) * one
    return {"one": one, "while a run trains": most, "eight finished runs": 8 * FLOAT32 * parameters}


def by_nodes(plan: Plan) -> list[Plan]:
    """The same work on more nodes, as far as the global batch can be shared."""
    found = []
    for nodes in EXAMINED_NODES:
        cluster = replace(plan.cluster, nodes=nodes)
        if plan.workload.batch_size % cluster.ranks == 0:
            found.append(make_plan(plan.workload, cluster, parallel=plan.settings.parallel))
    return found


def advice(plan: Plan) -> list[str]:
    """What to change where a plan does not fit."""
    if plan.fits:
        return []
    if plan.whole_model > plan.usable:
        size = f"{plan.whole_model / GIB:.1f} GiB"
        return [f"GPUs that hold the whole float32 model ({size}), as each does at the start and to evaluate"]
    enough = next((p.cluster for p in _sharded(plan) if p.fits), None)
    if enough is None:
        return ["GPUs with more memory: sharding over more of these is not enough"]
    if enough.nodes == plan.cluster.nodes:
        return ["shard the parameters: fsdp on the same GPUs fits"]
    return [f"shard the parameters over more GPUs: fsdp on {enough.nodes} nodes fits"]


def _sharded(plan: Plan) -> Iterator[Plan]:
    """The same work with FSDP, on as many nodes and more."""
    for nodes in EXAMINED_NODES:
        cluster = replace(plan.cluster, nodes=nodes)
        if nodes >= plan.cluster.nodes and plan.workload.batch_size % cluster.ranks == 0:
            yield make_plan(plan.workload, cluster, parallel="fsdp")
