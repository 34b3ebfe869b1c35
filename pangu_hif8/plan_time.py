"""How long a run takes, from its FLOPs and an assumed share of the peak, and what stands beside the FLOPs.

Fake quantization adds no matrix products: it adds passes over memory (scale, clip, round, amax) for each
quantized input and weight. Two figures bracket its cost: this project's goal for a step's time, and the 2.65
times of the published run, whose code waits for the device once per tensor and forward pass. The traffic
alone is given too, as the least that it could cost on the GPU at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

from pangu_hif8.plan_hardware import Cluster
from pangu_hif8.plan_memory import FLOAT32, MemorySettings
from pangu_hif8.plan_moments import root_parameters
from pangu_hif8.plan_shape import OPENPANGU_1B, ModelShape

HOUR = 3600.0
GOAL_RATIO = {"current": 1.20, "delayed": 1.15}  # a quantized step over a plain one, telemetry included
EVAL_MFU = 0.2  # assumed for prompts in batches of 16 with padding
EVAL_BATCH = 16
DECODE_S_PER_BLOCK = (
    1.2e-3  # assumed for transformers' generate: launching kernels, not arithmetic, sets the pace
)
EVAL_SPREAD = 3.0  # the high figure of evaluation over the low one


@dataclass(frozen=True)
class PublishedRun:
    """The authors' logs: median step times of 10,000 steps on 8 GPUs of 80 GB, micro-batch 16."""

    gpus: int = 8
    micro_batch: int = 16
    accumulation_steps: int = 8
    sequence_length: int = 1024
    bf16_step_s: float = 2.90
    qat_step_s: float = 7.69
    run_hours: float = 21.0

    @property
    def ratio(self) -> float:
        """A quantized step over a plain one."""
        return self.qat_step_s / self.bf16_step_s

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch."""
        return self.gpus * self.micro_batch * self.accumulation_steps * self.sequence_length

    def flops_per_gpu(self) -> float:
        """FLOP per second and GPU of its BF16 steps, by the same count as here."""
        work = OPENPANGU_1B.train_flops_per_token(self.sequence_length) * self.tokens_per_step
        return work / self.gpus / self.bf16_step_s

    def implied_mfu(self, peak: float) -> float:
        """What share of a GPU's peak its BF16 steps reached; above 1 it was another GPU."""
        return self.flops_per_gpu() / peak


PUBLISHED = PublishedRun()


@dataclass(frozen=True)
class Span:
    """A low and a high figure."""

    low: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.high + other.high)

    def times(self, low: float, high: float) -> Span:
        """Each end by its own factor."""
        return Span(self.low * low, self.high * high)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one optimizer step of an unquantized run, and of what a quantized one adds."""

    compute: Span
    gradients: float
    amaxes: float
    traffic: float

    @property
    def plain(self) -> Span:
        """Compute and gradient exchange: hidden behind each other at best, one after the other at worst."""
        return Span(max(self.compute.low, self.gradients), self.compute.high + self.gradients)

    def quantized(self, algorithm: str) -> Span:
        """Compute stretched by goal and published ratio."""
        goal = GOAL_RATIO["current" if algorithm == "current" else "delayed"]
        stretched = self.compute.times(goal, PUBLISHED.ratio)
        return Span(max(stretched.low, self.gradients), stretched.high + self.gradients)


def step_time(shape: ModelShape, settings: MemorySettings, cluster: Cluster) -> StepTime:
    """The time of one optimizer step on a cluster."""
    flops = step_flops(shape, settings) + recomputed_flops(shape, settings)
    gpu = cluster.gpu
    return StepTime(
        compute=Span(flops / gpu.peak_bf16 / gpu.mfu_high, flops / gpu.peak_bf16 / gpu.mfu_low),
        gradients=exchange_seconds(shape, settings, cluster),
        amaxes=cluster.small_all_reduce_seconds,
        traffic=quantizing_bytes(shape, settings) / gpu.memory_bandwidth,
    )


def tokens_per_gpu(settings: MemorySettings) -> int:
    """Tokens that one GPU computes in an optimizer step."""
    return settings.tokens * settings.accumulation_steps


def step_flops(shape: ModelShape, settings: MemorySettings) -> float:
    """Of one GPU in one optimizer step."""
    return shape.train_flops_per_token(settings.sequence_length) * tokens_per_gpu(settings)


def recomputed_flops(shape: ModelShape, settings: MemorySettings) -> float:
    """With checkpointing, the blocks' forward pass once more, up to the last tensor kept: down's input."""
    if not settings.checkpointing:
        return 0.0
    left_out = shape.embedding_weights + shape.num_blocks * shape.hidden_size * shape.intermediate_size
    forward = shape.forward_flops_per_token(settings.sequence_length) - 2.0 * left_out
    return forward * tokens_per_gpu(settings)


def quantizing_bytes(shape: ModelShape, settings: MemorySettings) -> float:
    """Bytes read and written by one fused pass (quantize and amax) over each quantized tensor of a step.

    The input of gate and up and that of down in each micro-batch; weights once a step, with FSDP in each
    micro-batch.
    """
    inputs = shape.hidden_size + shape.intermediate_size
    passes = 2 if settings.checkpointing else 1
    each = 2 * settings.width * inputs * shape.num_quantized_blocks * passes * tokens_per_gpu(settings)
    times = settings.accumulation_steps * passes if settings.is_sharded else 1
    cast = FLOAT32 + settings.width if settings.width < FLOAT32 else 0
    weight = cast + 2 * settings.width
    return float(each + weight * shape.quantized_weights * times)


def exchange_bytes(shape: ModelShape, settings: MemorySettings) -> dict[str, float]:
    """Bytes of a step's collectives, each counted as the size of the whole tensor.

    FSDP's are of every micro-batch: the blocks' weights for the forward and for the backward pass, the root's
    once for both, and all gradients.
    """
    whole = float(FLOAT32 * shape.num_parameters)
    if settings.ranks == 1:
        return {}
    if not settings.is_sharded:
        return {"gradient all-reduce": whole}
    return {
        "weight all-gathers": (2 * whole - FLOAT32 * root_parameters(shape)) * settings.accumulation_steps,
        "gradient reduce-scatters": whole * settings.accumulation_steps,
    }


def exchange_seconds(shape: ModelShape, settings: MemorySettings, cluster: Cluster) -> float:
    """Time of a step's collectives with nothing hidden behind the computation."""
    sizes = exchange_bytes(shape, settings)
    reduced = sizes.pop("gradient all-reduce", 0.0)
    return cluster.all_reduce_seconds(reduced) + sum(map(cluster.gather_seconds, sizes.values()))


@dataclass(frozen=True)
class EvalTask:
    """One benchmark: passes over the model an item, prompt tokens a pass, tokens generated an item."""

    name: str
    num_items: int
    num_fewshot: int
    passes: int
    tokens_per_example: int
    generated: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Tokens read in all."""
        return self.num_items * self.passes * self.tokens_per_example * (self.num_fewshot + 1)


def evaluation_seconds(shape: ModelShape, tasks: tuple[EvalTask, ...], cluster: Cluster) -> Span:
    """One evaluation by data parallel: prompts at EVAL_MFU, generation by the number of decoding steps."""
    length = max((task.tokens_per_example * (task.num_fewshot + 1) for task in tasks), default=1)
    flops = shape.forward_flops_per_token(length) * sum(task.prompt_tokens for task in tasks)
    reading = flops / (cluster.ranks * cluster.gpu.peak_bf16 * EVAL_MFU)
    rounds = sum(task.generated * -(-task.num_items // (cluster.ranks * EVAL_BATCH)) for task in tasks)
    low = reading + rounds * DECODE_S_PER_BLOCK * shape.num_blocks
    return Span(low, EVAL_SPREAD * low)
