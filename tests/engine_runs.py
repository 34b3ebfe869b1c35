"""Small runs of the real Trainer whose amaxes are known, and HiF8 in NumPy, for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from test_linear import tiny_llama
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from pangu_hif8.config import QuantConfig, TrainConfig
from pangu_hif8.linear import prepare_qat
from pangu_hif8.ranks import Ranks
from pangu_hif8.scaling import ScalingState
from pangu_hif8.train import StepRecord, Trainer

VOCAB = 16


def text(step: int, batch: int = 4, seq: int = 12) -> Tensor:
    """The batch of a step for tiny_llama."""
    return torch.randint(0, 64, (batch, seq), generator=torch.Generator().manual_seed(step))


def quant(algo: str = "max_window", **more: Any) -> QuantConfig:
    return QuantConfig(**(dict(amax_compute_algo=algo, amax_history_len=4) | more))


def trainer(
    config: QuantConfig | None, model: nn.Module | None = None, lr: float = 1e-2, blocks: int = 1, **more: Any
) -> Trainer:
    """A Trainer, alone; `blocks` first and last ones stay in high precision. `more` is for TrainConfig."""
    model = model or tiny_llama()
    scaling = prepare_qat(model, config, blocks, blocks) if config else None
    settings = TrainConfig(**(dict(steps=100, batch_size=4, micro_batch_size=4, bf16_warmup_steps=0) | more))
    return Trainer(model, settings, lr, scaling, Ranks("none"))


def scales(run: Trainer) -> ScalingState:
    assert run.scaling is not None
    return run.scaling


def steps(run: Trainer, num: int, batch: Callable[[int], Tensor] = text, first: int = 1) -> list[StepRecord]:
    return [run.run_step(step, batch(step)) for step in range(first, first + num)]


def losses(records: Sequence[StepRecord]) -> list[float]:
    return [record.loss for record in records]


def everything(run: Trainer) -> dict[str, Tensor]:
    """A copy of all that the next step depends on: weights, AdamW's state, scales, what is being recorded."""
    found = {f"weight {name}": p.detach().clone() for name, p in run.model.named_parameters()}
    for number, state in enumerate(run.adamw.state.values()):
        found |= {f"adamw {number} {name}": value.clone() for name, value in state.items()}
    if run.scaling:
        found |= {f"scaling {name}": value for name, value in run.scaling.state_dict().items()}
        found |= {"amax_now": run.scaling.amax_now.clone(), "sums": run.scaling.stats.sums.clone()}
    return found


def differences(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that differ in a bit."""
    assert before.keys() == after.keys()
    return [
        name
        for name, value in before.items()
        if value.detach().numpy().tobytes() != after[name].detach().numpy().tobytes()
    ]


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = MLP(width)


class Body(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(width)])


class TokensAreAmaxes(nn.Module):
    """One quantized block whose input is the token's number, so that its amax is the largest token."""

    def __init__(self, width: int = 4, calls: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.head, self.calls = Body(width), nn.Linear(width, VOCAB), calls
        self.width = width

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> CausalLMOutput:
        x = input_ids[..., None].float().expand(*input_ids.shape, self.width)
        mlp = self.model.layers[0].mlp
        out = sum(mlp(x * (call + 1)) for call in range(self.calls))
        return CausalLMOutput(logits=self.head(out))


def rows(*largest: int, seq: int = 3) -> Tensor:
    """A batch whose row i holds largest[i] once, and zeros otherwise."""
    batch = torch.zeros(len(largest), seq, dtype=torch.int64)
    batch[:, 0] = torch.tensor(largest)
    return batch


def state(config: QuantConfig, *kinds: str) -> ScalingState:
    made = ScalingState([f"0.down_proj.{kind}" for kind in kinds or ("input",)], config)
    made.set_mode("quantize")
    return made


def feed(scaling: ScalingState, *amaxes: float) -> list[float]:
    """One step in which slot i has the amax amaxes[i]; the estimates afterwards."""
    for slot, amax in enumerate(amaxes):
        scaling.record(slot, torch.tensor(amax))
    scaling.update()
    return scaling.estimate.tolist()


def crafted(config: QuantConfig, **more: object) -> Trainer:
    return trainer(config, TokensAreAmaxes(), blocks=0, **more)


def tokens_of(*largest: int) -> Tensor:
    """A batch whose amax is its largest number, whatever the cut."""
    return rows(*(largest * 4)[:4])


def estimates(run: Trainer, *largest: int) -> list[float]:
    """The input's estimate in use in each of some steps with known amaxes."""
    records = steps(run, len(largest), lambda step: tokens_of(largest[step - 1]))
    return [r.scaling.estimate[0].item() for r in records if r.scaling]


def numpy_hif8(x: np.ndarray, scale: float, limit: float = 15.0) -> np.ndarray:
    """qdq of float32 x, from the format's description: float64, floor and powers of two."""
    scaled = (x.astype(np.float32) * np.float32(scale)).astype(np.float64)
    magnitude = np.minimum(np.abs(scaled), limit)
    exponent = np.floor(np.log2(np.where(magnitude > 0, magnitude, 1.0)))
    num_bits = np.select([abs(exponent) <= 3, abs(exponent) <= 7, abs(exponent) <= 15], [3, 2, 1], 0)
    step = 2.0 ** (exponent - num_bits)
    rounded = np.floor(magnitude / step + 0.5) * step
    rounded = np.where(magnitude < 2.0**-22, np.where(magnitude >= 2.0**-23, 2.0**-22, 0.0), rounded)
    return np.sign(scaled).astype(np.float32) * rounded.astype(np.float32) / np.float32(scale)
