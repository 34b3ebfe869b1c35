"""How HiF8 scales each kind of tensor, as data. No torch here: reports read it too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from pangu_hif8.strict import Positive, PositiveFloat, Strict

BUILTIN_ALGOS = ("most_recent", "exponential_smoothing", "max_window", "current")
CUSTOM_ALGOS: set[str] = set()  # names that `amax.register_estimator` added in this process


def _known_algo(name: str) -> str:
    if name not in (*BUILTIN_ALGOS, *CUSTOM_ALGOS):
        raise ValueError(
            f"{name!r} is no estimator; valid: {', '.join((*BUILTIN_ALGOS, *sorted(CUSTOM_ALGOS)))} "
            "(your own: amax.register_estimator first)"
        )
    return name


AmaxAlgo = Annotated[str, AfterValidator(_known_algo)]
Kind = Literal["input", "weight", "gradient"]


class TensorConfig(Strict):
    """How the tensors of one kind are scaled: hif8_max / (estimated amax * 2**margin), and what lies beyond.

    `margin`, in octaves, leaves room above the estimate; a negative one clips on purpose.
    """

    amax_compute_algo: AmaxAlgo
    amax_history_len: Positive = 64
    smoothing_decay: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.9
    margin: Annotated[float, Field(ge=-16, le=16)] = 0.0
    hif8_max: Annotated[float, Field(gt=0, le=32768)] = 15.0
    overflow: Literal["saturate", "taper"] = "saturate"

    @property
    def history_len(self) -> int:
        """Steps of history that the estimator is given: all but the windowed ones look at the last alone."""
        return self.amax_history_len if self.uses_window else 1

    @property
    def uses_window(self) -> bool:
        return self.amax_compute_algo == "max_window" or self.amax_compute_algo in CUSTOM_ALGOS

    def effective(self) -> dict[str, Any]:
        """Only the settings that this estimator reads; margin only where it is used."""
        unused = set() if self.uses_window else {"amax_history_len"}
        if self.amax_compute_algo != "exponential_smoothing" and self.amax_compute_algo not in CUSTOM_ALGOS:
            unused.add("smoothing_decay")
        names = {*TensorConfig.model_fields} - unused - (set() if self.margin else {"margin"})
        return self.model_dump(include=names)


class QuantConfig(TensorConfig):
    """HiF8 W8A8 fake quantization with a per-tensor scale. The settings above are those of the inputs.

    `weights` None: as the inputs. `gradients` None: the incoming gradient is not quantized (the text; the
    published code does it, with target 15). `history_unit`, `warmup_history` and `reduce_amax` have the
    published code's readings beside ours (first).
    """

    weights: TensorConfig | None = None
    gradients: TensorConfig | None = None
    amax_update_interval: Positive = 1  # steps from one new estimate to the next
    bf16_warmup_steps: Annotated[int, Field(ge=0)] = 0
    adaptive_warmup_spread: PositiveFloat | None = None  # quantize as soon as the amax history has settled
    history_unit: Literal["step", "micro_batch"] = "step"
    warmup_history: Literal["kept", "emptied"] = "kept"
    reduce_amax: bool = True
    margin_layers: Literal["all", "gate_up", "down"] = "all"  # whose inputs `margin` is for

    def for_kind(self, kind: Kind) -> TensorConfig:
        """The settings of one kind of tensor."""
        return {"input": self, "weight": self.weights or self, "gradient": self.gradients or self}[kind]

    def kinds(self) -> tuple[Kind, ...]:
        """The kinds that are quantized."""
        return ("input", "weight", "gradient") if self.gradients else ("input", "weight")

    def effective(self) -> dict[str, Any]:
        """As above, with the engine's settings where they differ from the default."""
        values = super().effective() | {"bf16_warmup_steps": self.bf16_warmup_steps}
        for name in ("weights", "gradients"):
            if (settings := getattr(self, name)) is not None:
                values[name] = settings.effective()
        for name in ENGINE_SETTINGS:
            if getattr(self, name) != QuantConfig.model_fields[name].default:
                values[name] = getattr(self, name)
        return values


ENGINE_SETTINGS = (
    "amax_update_interval",
    "adaptive_warmup_spread",
    "history_unit",
    "warmup_history",
    "reduce_amax",
    "margin_layers",
)
