"""Everything that the next optimizer step depends on, as named tensors, and back.

Parts: model (every parameter once), optimizer (AdamW's moments and counts), scaling (amax history and
estimates), rng (of every rank). Shards of FSDP2 are gathered, so a checkpoint does not depend on how many
ranks wrote it. Position in the data and in the schedule is the step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pangu_hif8.errors import UserError
from pangu_hif8.ranks import copy_whole, whole
from pangu_hif8.rng import gather_rng, rng_of_rank, rng_state, set_rng_state
from pangu_hif8.train import Trainer

Parts = dict[str, dict[str, Tensor]]


def gather(trainer: Trainer) -> Parts:
    """The trainer's state, whole and on the CPU. Every rank has to call it; only rank 0 keeps the tensors."""
    parts: Parts = {"model": {}, "optimizer": {}, "rng": gather_rng(trainer.ranks.all(rng_state()))}
    for name, parameter in trainer.model.named_parameters():
        _keep(parts["model"], name, parameter, trainer)
        for key, value in trainer.adamw.state.get(parameter, {}).items():
            _keep(parts["optimizer"], f"{name}.{key}", value, trainer)
    if trainer.scaling is not None:
        parts["scaling"] = _scaling(trainer)
    return parts


def _keep(target: dict[str, Tensor], name: str, tensor: Tensor, trainer: Trainer) -> None:
    gathered = whole(tensor.detach())
    if trainer.ranks.is_main:
        target[name] = gathered.cpu()


def _scaling(trainer: Trainer) -> dict[str, Tensor]:
    """One state where ranks share it; where each keeps its own amaxes, one a rank."""
    assert trainer.scaling is not None
    if trainer.scaling.config.reduce_amax:
        return trainer.scaling.state_dict()
    states = trainer.ranks.all(trainer.scaling.state_dict())
    return {f"rank{rank}.{name}": t for rank, state in enumerate(states) for name, t in state.items()}


def restore(trainer: Trainer, parts: Parts) -> None:
    """Put a gathered state into a trainer built the same way. Raises UserError where it does not fit."""
    load_parameters(trainer.model, parts["model"])
    _restore_optimizer(trainer, dict(trainer.model.named_parameters()), parts["optimizer"])
    if trainer.scaling is not None:
        trainer.scaling.load_state_dict(_own_scaling(trainer, parts["scaling"]))
    set_rng_state(_own_rng(parts["rng"], trainer.ranks.rank))


@torch.no_grad()
def load_parameters(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Fill every parameter, sharded or not. Raises UserError for a tensor too few, too many or misshapen."""
    parameters = dict(model.named_parameters())
    _check_names("model", parameters, saved)
    for name, parameter in parameters.items():
        if parameter.shape != saved[name].shape:
            raise UserError(f"checkpoint tensor {name} has shape {tuple(saved[name].shape)}")
        copy_whole(parameter, saved[name])


def _own_rng(saved: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    """A rank that the checkpoint did not have starts as rank 0 does: all ranks draw the same numbers."""
    return rng_of_rank(saved, rank if any(name.startswith(f"rank{rank}.") for name in saved) else 0)


@torch.no_grad()
def _restore_optimizer(trainer: Trainer, parameters: dict[str, Any], saved: dict[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        keys = ("step", "exp_avg", "exp_avg_sq")
        values = {key: saved[f"{name}.{key}"] for key in keys if f"{name}.{key}" in saved}
        if values and len(values) < len(keys):
            raise UserError(f"checkpoint has only part of AdamW's state for {name}")
        if values:
            state = {key: torch.zeros_like(parameter) for key in keys[1:]}
            for key, target in state.items():
                copy_whole(target, values[key])
            trainer.adamw.state[parameter] = {"step": values["step"].to(parameter.device), **state}
    _check_names(
        "optimizer", {f"{n}.{k}" for n, p in parameters.items() for k in trainer.adamw.state[p]}, saved
    )


def _own_scaling(trainer: Trainer, saved: dict[str, Tensor]) -> dict[str, Tensor]:
    assert trainer.scaling is not None
    if trainer.scaling.config.reduce_amax:
        return saved
    prefix = f"rank{trainer.ranks.rank}."
    return {name.removeprefix(prefix): t for name, t in saved.items() if name.startswith(prefix)}


def _check_names(part: str, mine: Any, saved: Any) -> None:
    odd = sorted(set(mine) ^ set(saved))
    if odd:
        raise UserError(f"checkpoint and {part} differ in {len(odd)} tensors, first {odd[0]}")
