"""What one kind of step keeps for backward, and the peak memory of its process; prints a line of JSON.

Counted are the storages of the tensors that torch saves in the forward pass, each once; parameters and
their quantized copies, which exist however many tokens there are, are left out. `inputs_bytes` are those
of the linears that HiF8 quantizes (of the MLP, in a plain block). `copies_bytes` are the quantized copies
of the weights, which are held from step to step.

`peak_bytes` is the process's largest resident size less the size with nothing but the parameters and
AdamW's state in place, which is looked at before anything is quantized, and so is the same for every kind:
gradients, quantized copies and what passes by are in it. Called by block_time.py, which has glibc give the
pages of a freed tensor back at once, so that the peak is of what is held and not of what the allocator keeps.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from block_time import KINDS, LR, Blocks, Runner, batch
from peers import MLP
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pangu_hif8.linear import HiF8Linear
from pangu_hif8.saved_codes import CodedHiF8Linear

KIB = 1024


class Counter:
    """Storages kept for backward: place in memory to bytes."""

    def __init__(self, block: nn.Module) -> None:
        self.block = block
        self.kept: dict[int, int] = {}
        self.inputs: dict[int, int] = {}
        self.in_linear = False

    def add(self, tensor: Tensor) -> None:
        """Note a tensor that is kept."""
        place = tensor.untyped_storage().data_ptr()
        if place not in self._weights():
            size = tensor.untyped_storage().nbytes()
            self.kept[place] = size
            if self.in_linear:
                self.inputs[place] = size

    def _weights(self) -> set[int]:
        tensors = [*self.block.parameters(), *quantized_copies(self.block)]
        return {tensor.untyped_storage().data_ptr() for tensor in tensors}

    def enter(self, *_: Any) -> None:
        self.in_linear = True

    def leave(self, *_: Any) -> None:
        self.in_linear = False


def quantized_copies(block: nn.Module) -> list[Tensor]:
    """The weights' quantized copies that the layers hold now."""
    layers = [module for module in block.modules() if isinstance(module, HiF8Linear)]
    return [layer.quantized_weight for layer in layers if layer.quantized_weight is not None]


@contextmanager
def counting(counter: Counter) -> Iterator[None]:
    """Count what the forward passes in here keep."""
    plain = CodedHiF8Linear._pack

    def pack(self: CodedHiF8Linear, saved: Tensor) -> Any:
        kept = plain(self, saved)
        counter.add(kept if isinstance(kept, Tensor) else kept[0].codes)
        return kept

    def keep(saved: Tensor) -> Tensor:
        counter.add(saved)
        return saved

    modules = list(counter.block.named_modules())
    linears: list[nn.Module] = [m for _, m in modules if isinstance(m, HiF8Linear)]
    linears = linears or [m for name, m in modules if name.rsplit(".", 1)[-1] in MLP]
    hooks = [linear.register_forward_pre_hook(counter.enter) for linear in linears]
    hooks += [linear.register_forward_hook(counter.leave) for linear in linears]
    with mock.patch.object(CodedHiF8Linear, "_pack", pack), saved_tensors_hooks(keep, lambda kept: kept):
        yield
    for hook in hooks:
        hook.remove()


def resident_bytes(largest: bool = False) -> int:
    """The resident size of this process now, or the largest so far.

    From /proc where there is one: `getrusage`, which knows the largest alone, begins in a child with the
    largest size of its parent.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        unit = 1 if sys.platform == "darwin" else KIB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    name = "VmHWM:" if largest else "VmRSS:"
    line = next(line for line in status.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * KIB


def adamw_with_state(block: nn.Module) -> torch.optim.Optimizer:
    """AdamW that has its state already; one gradient at a time, so that no more than that was ever needed."""
    adamw = torch.optim.AdamW(block.parameters(), lr=LR)
    for parameter in block.parameters():
        parameter.grad = torch.zeros_like(parameter)
        adamw.step()
        parameter.grad = None
    return adamw


def measure(
    name: str, num_sequences: int, length: int, shape: dict[str, Any], num_blocks: int = 1
) -> dict[str, int]:
    """The numbers of one kind of step, in bytes."""
    torch.manual_seed(0)
    base = Blocks(shape, num_blocks)
    adamw = adamw_with_state(base)
    before = resident_bytes()
    runner = Runner(KINDS[name], base, adamw)
    runner.step(*batch(1, shape["hidden_size"], 8))  # every slot's scale
    counter = Counter(runner.block)
    with counting(counter):
        runner.step(*batch(num_sequences, shape["hidden_size"], length))
    found = {"inputs_bytes": sum(counter.inputs.values()), "kept_bytes": sum(counter.kept.values())}
    found["copies_bytes"] = sum(copy.untyped_storage().nbytes() for copy in quantized_copies(runner.block))
    return found | {"peak_bytes": resident_bytes(largest=True) - before}


if __name__ == "__main__":
    kind, sequences, tokens, sizes, blocks = sys.argv[1:]
    print(json.dumps(measure(kind, int(sequences), int(tokens), json.loads(sizes), int(blocks))))
