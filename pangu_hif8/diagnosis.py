"""Where the first value that is not finite comes from, found by repeating the step that failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pangu_hif8.ranks import whole


def first_non_finite(
    model: nn.Module, micro_batches: Sequence[Tensor], loss_of: Callable[[Tensor], Tensor]
) -> str | None:
    """The first tensor with a NaN or Inf, in words; None when the repetition finds none.

    `loss_of(tokens)` is a micro-batch's loss by `model`, neither compiled nor in DDP. Weights are looked at
    first, then each module's output in the order of the forward pass, the loss, the gradients of those
    outputs in the order of the backward pass, the gradients of the weights, and the norm of these. Leaves
    gradients behind.
    """
    for name, parameter in model.named_parameters():
        if not _is_finite(whole(parameter.detach())):
            return f"the weight {name} holds values that are not finite"
    model.zero_grad()
    found: list[str] = []
    hooks = [module.register_forward_hook(_watch(name, found)) for name, module in _leaves(model)]
    places: list[int] = []
    try:
        # To the end, as peers may go on: sharded parameters are gathered in every pass.
        for number, tokens in enumerate(micro_batches, start=1):
            _repeat(model, loss_of, tokens, found)
            places += [number] * (len(found) - len(places))
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"{found[0]}, in micro-batch {places[0]} of {len(micro_batches)}"
    return _overflow(model)


def by_rank(found: Sequence[str | None]) -> str:
    """What the ranks found, as one phrase."""
    hits = [(rank, text) for rank, text in enumerate(found) if text]
    if not hits:
        return "not seen again when the step was repeated"
    rank, text = hits[0]
    return text if len(found) == 1 else f"{text} (rank {rank})"


def _repeat(model: nn.Module, loss_of: Callable[[Tensor], Tensor], tokens: Tensor, found: list[str]) -> None:
    loss = loss_of(tokens)
    if not _is_finite(loss):
        found.append("the loss is not finite while all outputs are")
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _is_finite(_own(parameter.grad)):
            found.append(f"the gradient of the weight {name} is not finite while those of all outputs are")


def _overflow(model: nn.Module) -> str | None:
    gradients = [_own(p.grad) for p in model.parameters() if p.grad is not None]
    if _is_finite(torch.nn.utils.get_total_norm(gradients)):
        return None
    return "none; all gradients are finite, but their squares overflow"


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _own(gradient: Tensor) -> Tensor:
    """This rank's shard, for which no peer is needed, or the tensor itself."""
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def _leaves(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if not list(module.children())]


def _watch(name: str, found: list[str]) -> Callable[..., None]:
    def watch(module: nn.Module, inputs: object, output: object) -> None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        if not _is_finite(output):
            found.append(f"the output of {name} is the first tensor that is not finite")
        elif output.requires_grad:
            output.register_hook(lambda gradient: _note(name, gradient, found))

    return watch


def _note(name: str, gradient: Tensor, found: list[str]) -> None:
    if not _is_finite(gradient):
        found.append(f"the gradient at the output of {name} is the first that is not finite")
