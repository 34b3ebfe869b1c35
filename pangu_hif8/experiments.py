"""The registry: the untouched checkpoint E0 and the paper's eight experiments E1 to E8.

The paper names its variables (amax estimator, learning rate, warm-up) and prints no list; this table is
our reading of it. Learning rates are the paper's; a profile may multiply both by `lr_scale`.
"""

from __future__ import annotations

from typing import Any

from pangu_hif8.config import DataConfig, EvalConfig, ModelConfig, Profile, TrainConfig, load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.files import digest
from pangu_hif8.overrides import (
    BLOCKS_SETTINGS,
    QUANTIZER_SETTINGS,
    TENSOR_SETTINGS,
    TRAIN_SETTINGS,
    Overrides,
)
from pangu_hif8.quant_config import BUILTIN_ALGOS, ENGINE_SETTINGS, AmaxAlgo, QuantConfig
from pangu_hif8.strict import Strict, validated


class Experiment(Strict):
    """One row of the registry. `lr` is None for E0, which is evaluated and never trained."""

    id: str
    title: str
    notebook: str
    lr: float | None
    amax_compute_algo: AmaxAlgo | None = None
    bf16_warmup: bool = False
    baseline: str | None = None


EXPERIMENTS: dict[str, Experiment] = {
    row.id: row
    for row in (
        Experiment(id="E0", title="untouched checkpoint", notebook="00_prepare", lr=None),
        Experiment(id="E1", title="BF16, lr 1e-4", notebook="01_bf16_lr1e-4", lr=1e-4),
        Experiment(
            id="E2",
            title="most-recent, lr 1e-4",
            notebook="02_most_recent_lr1e-4",
            lr=1e-4,
            amax_compute_algo="most_recent",
            baseline="E1",
        ),
        Experiment(
            id="E3",
            title="exponential smoothing, lr 1e-4",
            notebook="03_exponential_smoothing_lr1e-4",
            lr=1e-4,
            amax_compute_algo="exponential_smoothing",
            baseline="E1",
        ),
        Experiment(
            id="E4",
            title="current (CTS), lr 1e-4",
            notebook="04_current_lr1e-4",
            lr=1e-4,
            amax_compute_algo="current",
            baseline="E1",
        ),
        Experiment(
            id="E5",
            title="max-window, lr 1e-4",
            notebook="05_max_window_lr1e-4",
            lr=1e-4,
            amax_compute_algo="max_window",
            baseline="E1",
        ),
        Experiment(id="E6", title="BF16, lr 1e-5", notebook="06_bf16_lr1e-5", lr=1e-5),
        Experiment(
            id="E7",
            title="most-recent, lr 1e-5",
            notebook="07_most_recent_lr1e-5",
            lr=1e-5,
            amax_compute_algo="most_recent",
            baseline="E6",
        ),
        Experiment(
            id="E8",
            title="max-window + BF16 warm-up, lr 1e-5",
            notebook="08_max_window_warmup_lr1e-5",
            lr=1e-5,
            amax_compute_algo="max_window",
            bf16_warmup=True,
            baseline="E6",
        ),
    )
}


class RunConfig(Strict):
    """Everything that decides a run's numbers."""

    profile: str
    experiment: str
    seed: int
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    evaluation: EvalConfig
    lr: float | None
    quantization: QuantConfig | None
    custom: bool = False

    def train_hash(self) -> str:
        """Identity of the training half: two runs with equal hashes train the same way."""
        values = self.model_dump(exclude={"evaluation", "custom", "quantization", "train"})
        values |= {
            "train": self.train.identity(),
            "data": self.data.identity(),
            "model": self.model.identity(),
        }
        for name in ("amax_history_len", "bf16_warmup_steps", "lr_scale"):
            values["train"].pop(name)  # they act through quantization and lr only
        values["quantization"] = self.quantization and self.quantization.effective()
        return digest(values)

    def eval_hash(self) -> str:
        """Identity of the evaluation half."""
        return digest([self.evaluation.identity(), self.data.identity()])

    @property
    def run_name(self) -> str:
        """Directory name: the experiment's id, with a mark when an override changed it."""
        return f"{self.experiment}-custom-{self.train_hash()[:8]}" if self.custom else self.experiment


def get_experiment(name: str) -> Experiment:
    """Look an experiment up. Raises UserError with the valid ids."""
    if name not in EXPERIMENTS:
        raise UserError(f"unknown experiment {name!r}; valid: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def resolve(experiment: str, profile: str, seed: int = 0, **overrides: Any) -> RunConfig:
    """Combine registry, profile and overrides into one RunConfig.

    Raises UserError for an unknown name, a wrong type, or an override without effect on this run.
    """
    row, settings = get_experiment(experiment), load_profile(profile)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UserError(f"seed must be a whole number from 0, got {seed!r}")
    changes = validated(Overrides, overrides, f"parameters of {experiment}")
    _reject_unused(row, changes)
    train = _train_config(settings, changes)
    return RunConfig(
        profile=profile,
        experiment=experiment,
        seed=seed,
        model=_model_config(settings, changes),
        data=settings.data,
        train=train,
        evaluation=settings.evaluation,
        lr=None if row.lr is None else (changes.lr or float(f"{row.lr * train.lr_scale:.12g}")),
        quantization=_quant_config(row, train, changes),
        custom=any(value is not None for value in overrides.values()),
    )


def _reject_unused(row: Experiment, changes: Overrides) -> None:
    """A setting that is accepted has an effect: refuse quantizer settings on an unquantized run."""
    given = {name for name, value in changes.model_dump().items() if value is not None}
    algo = changes.amax_compute_algo or row.amax_compute_algo
    if row.lr is None and given:
        raise UserError(f"{row.id} is not trained; it takes no {', '.join(sorted(given))}")
    if row.amax_compute_algo is None and given & QUANTIZER_SETTINGS:
        names = ", ".join(sorted(given & QUANTIZER_SETTINGS))
        raise UserError(f"{row.id} does not quantize; {names} would have no effect")
    if algo in BUILTIN_ALGOS and "smoothing_decay" in given and algo != "exponential_smoothing":
        raise UserError(f"{row.id} does not smooth; smoothing_decay would have no effect")
    if algo in BUILTIN_ALGOS and "amax_history_len" in given and algo != "max_window":
        raise UserError(f"{row.id} has no window; amax_history_len would have no effect")
    if changes.hp_blocks is not None and given & {"num_first_hp_blocks", "num_last_hp_blocks"}:
        raise UserError(
            "hp_blocks replaces num_first_hp_blocks and num_last_hp_blocks; give one or the other"
        )


def _model_config(settings: Profile, changes: Overrides) -> ModelConfig:
    return validated(
        ModelConfig, settings.model.model_dump() | changes.given(BLOCKS_SETTINGS), "model settings"
    )


def _train_config(settings: Profile, changes: Overrides) -> TrainConfig:
    values = settings.train.model_dump() | changes.given(TRAIN_SETTINGS)
    values["optimizer"] |= changes.given(["lr_decay_per_block"])
    return validated(TrainConfig, values, "training settings")


def _quant_config(row: Experiment, train: TrainConfig, changes: Overrides) -> QuantConfig | None:
    if row.amax_compute_algo is None:
        return None
    warmup = train.bf16_warmup_steps if row.bf16_warmup or changes.bf16_warmup_steps is not None else 0
    if warmup >= train.steps:
        raise UserError(
            f"{row.id} would never quantize: bf16_warmup_steps {warmup} is not below steps {train.steps}"
        )
    if changes.adaptive_warmup_spread is not None and warmup == 0:
        raise UserError(f"{row.id} has no warm-up to end early; give bf16_warmup_steps, the latest switch")
    inputs = {"amax_compute_algo": row.amax_compute_algo, "amax_history_len": train.amax_history_len}
    inputs |= changes.given(TENSOR_SETTINGS)
    values: dict[str, Any] = inputs | {"bf16_warmup_steps": warmup} | changes.given(ENGINE_SETTINGS)
    if changes.weights is not None:
        values["weights"] = inputs | changes.weights
    if changes.gradients not in (None, False):
        own = changes.gradients if isinstance(changes.gradients, dict) else {}
        values["gradients"] = inputs | {"margin": 0.0, "hif8_max": 15.0} | own
    return validated(QuantConfig, values, "quantizer settings")
