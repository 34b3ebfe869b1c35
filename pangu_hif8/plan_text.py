"""A plan as plain text: what fits, what it takes, and what each figure stands on."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pangu_hif8.plan import (
    Plan,
    by_nodes,
    checkpoint_bytes,
    experiment_hours,
    make_plan,
    shard_bytes,
    total_hours,
)
from pangu_hif8.plan_hardware import Cluster, get_gpu
from pangu_hif8.plan_memory import Parallel
from pangu_hif8.plan_memory_text import memory_lines, saved_lines, table
from pangu_hif8.plan_time import (
    GOAL_RATIO,
    HOUR,
    PUBLISHED,
    Span,
    exchange_bytes,
    quantizing_bytes,
    tokens_per_gpu,
)
from pangu_hif8.plan_workload import load_workload

WIDTH = 100


def plan_text(
    profile: str,
    *,
    gpus: int,
    gpu: str,
    nodes: int = 1,
    parallel: Parallel = "ddp",
    model: str | None = None,
    micro_batch: int | None = None,
    checkpointing: bool | None = None,
    details: bool = False,
) -> str:
    """The plan of a profile's runs on `nodes` nodes of `gpus` GPUs each.

    `model` plans another model at the same work; `micro_batch` and `checkpointing` fix what is otherwise
    chosen. Raises UserError for an unknown name, a count below 1, or a batch that can't be cut.
    """
    workload = load_workload(profile, model)
    cluster = Cluster(get_gpu(gpu), gpus, nodes)
    plan = make_plan(
        workload, cluster, parallel=parallel, micro_batch=micro_batch, checkpointing=checkpointing
    )
    first = [_title, _work, memory_lines, *([saved_lines] if details else [])]
    sections = [*first, _exchange, _disk, _hours, _basis, _nodes]
    return "\n\n".join("\n".join(map(_wrapped, section(plan))) for section in sections) + "\n"


def _wrapped(line: str) -> str:
    """Long sentences over several lines; what is a table's row stays one."""
    if len(line) <= WIDTH:
        return line
    return textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _span(span: Span) -> str:
    if span.low < 1:
        return f"{span.low:.2g} to {span.high:.2g}"
    digits = 0 if span.low >= 100 else 1
    return f"{span.low:,.{digits}f} to {span.high:,.{digits}f}"


def _title(plan: Plan) -> Iterator[str]:
    work, cluster = plan.workload, plan.cluster
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    kind = f"{cluster.ranks} ranks, {plan.settings.parallel.upper()}" if cluster.ranks > 1 else "1 rank"
    yield f"Profile {work.profile} on {nodes} x {cluster.gpus} {cluster.gpu.name} ({kind})"


def _work(plan: Plan) -> Iterator[str]:
    work, shape = plan.workload, plan.workload.shape
    tied = "tied" if shape.tie_word_embeddings else "untied"
    parameters = f"{shape.num_parameters:,} parameters ({tied} embeddings)"
    yield f"Model: {shape.name}, {parameters}" + (f"; {shape.source}" if shape.source else "")
    yield (
        f"  {shape.num_quantized_linears} linears in {shape.num_quantized_blocks} of {shape.num_blocks} "
        f"blocks quantized: {2 * shape.num_quantized_linears} tensors, {shape.num_scales} scales (gate and "
        "up share an input)"
    )
    batch = f"{work.batch_size:,} x {work.sequence_length:,}"
    yield f"Work: {work.steps:,} steps x {batch} = {work.tokens:,} tokens a run"
    flops = shape.train_flops_per_token(work.sequence_length)
    yield (
        f"FLOPs: {flops:.3g} a token, {flops * work.tokens_per_step:.3g} a step, {flops * work.tokens:.3g} a "
        f"run (6 N + 12 L H Q T: PaLM, arXiv 2204.02311, appendix B; N = {shape.matmul_weights:,} weights in "
        "products)"
    )
    traffic = quantizing_bytes(shape, plan.settings) / 1e9
    yield (
        "  HiF8 adds no products but passes over memory (scale, clip, round, amax): "
        f"{traffic:,.0f} GB a step and GPU, {plan.step.traffic:.3f} s at its memory's speed if each pass is "
        "one kernel"
    )


def _exchange(plan: Plan) -> Iterator[str]:
    shape, cluster = plan.workload.shape, plan.cluster
    if cluster.ranks == 1:
        yield "Between GPUs: nothing, there is one"
        return
    yield (
        f"Between GPUs, in a step, at {cluster.bus_bandwidth / 1e9:.0f} GB/s (70% of the slowest link's "
        "one-direction figure, assumed)"
    )
    for name, size in exchange_bytes(shape, plan.settings).items():
        yield f"  {name}: {size / 1e9:,.2f} GB"
    seconds, share = plan.step.gradients, plan.step.gradients / plan.step.compute.low
    yield f"  time {seconds:.3f} s, {share:.1%} of the fastest step's computation if none of it is hidden"
    yield (
        f"  amax all-reduce: {shape.num_scales} floats, {4 * shape.num_scales:,} bytes, "
        f"{plan.step.amaxes * 1e6:.0f} us (latency, assumed)"
    )


def _disk(plan: Plan) -> Iterator[str]:
    sizes, kept = checkpoint_bytes(plan.workload), plan.workload.keep_checkpoints
    one, most, finished = (size / 1e9 for size in sizes.values())
    yield (
        f"Disk: token shards {shard_bytes(plan.workload) / 1e9:.1f} GB, once for all runs; a checkpoint "
        f"{one:,.1f} GB (weights and AdamW, 12 bytes a parameter)"
    )
    yield (
        f"  while a run trains {most:,.1f} GB of checkpoints (last {kept}, best, one being written); weights "
        f"of eight finished runs {finished:,.1f} GB"
    )


def _hours(plan: Plan) -> Iterator[str]:
    yield (
        "Hours (low: high MFU, exchange hidden, HiF8 at this project's goal; high: low MFU, nothing hidden, "
        "HiF8 at the published ratio)"
    )
    rows = [["", "BF16 steps", "HiF8 steps", "hours"]]
    for row in experiment_hours(plan):
        steps = [f"{row.plain_steps:,}", f"{row.quantized_steps:,}"]
        rows.append([f"{row.experiment}  {row.title}", *steps, _span(row.hours)])
    yield from table(rows)
    once = plan.evaluation.times(1 / HOUR, 1 / HOUR)
    yield f"  one evaluation {_span(once)}; the eight with nine evaluations {_span(total_hours(plan))}"
    if not plan.fits:
        yield "  (hours of a layout that does not fit)"


def _basis(plan: Plan) -> Iterator[str]:
    gpu, implied = plan.cluster.gpu, PUBLISHED.implied_mfu(plan.cluster.gpu.peak_bf16)
    yield "Basis"
    yield f"  {gpu.name}: {gpu.peak_bf16 / 1e12:.1f} TFLOP/s dense bfloat16. {gpu.source}"
    yield f"  MFU {gpu.mfu_low:.0%} to {gpu.mfu_high:.0%}, assumed. {gpu.mfu_source}"
    yield (
        f"  Published run: {PUBLISHED.gpus} GPUs of 80 GB, micro-batch {PUBLISHED.micro_batch}, "
        f"{PUBLISHED.accumulation_steps} accumulation steps, {PUBLISHED.run_hours:.0f} h a run; median step: "
        f"BF16 {PUBLISHED.bf16_step_s:.2f} s, QAT {PUBLISHED.qat_step_s:.2f} s ({PUBLISHED.ratio:.2f} times)"
    )
    theirs = f"{PUBLISHED.flops_per_gpu() / 1e12:.0f} TFLOP/s a GPU in BF16, {implied:.1%} of this GPU's peak"
    yield f"  It reached {theirs}" + (": more than there is, so theirs were faster" if implied > 1 else "")
    yield (
        f"  A HiF8 step over a BF16 step: {GOAL_RATIO['delayed']:.2f} ({GOAL_RATIO['current']:.2f} for "
        "current scaling), this project's goal and not yet measured on a GPU, to "
        f"{PUBLISHED.ratio:.2f}, published"
    )


def _nodes(plan: Plan) -> Iterator[str]:
    yield "More nodes, same global batch"
    rows = [["nodes", "GPUs", "tokens a GPU", "micro-batch", "fits", "exchange", "E6, hours", "E8, hours"]]
    for other in by_nodes(plan):
        hours = {row.experiment: _span(row.hours) for row in experiment_hours(other)}
        exchange = f"{other.step.gradients / other.step.compute.low:.1%}"
        micro = f"{other.settings.micro_batch}{' ckpt' if other.settings.checkpointing else ''}"
        counts = [str(other.cluster.nodes), str(other.cluster.ranks), f"{tokens_per_gpu(other.settings):,}"]
        fits = "yes" if other.fits else "NO"
        rows.append([*counts, micro, fits, exchange, hours["E6"], hours["E8"]])
    yield from table(rows)
    yield (
        "  exchange: traffic of gradients (FSDP: and weights), unhidden, over the fastest computation. "
        "MFU is taken as equal at every size; it falls where a GPU has few tokens."
    )
