"""What one kind of step keeps for backward, and the peak memory of its process; prints a line of JSON.

Counted are the storages of the tensors that torch saves in the forward pass, each once; parameters and
their quantized copies, which exist however many tokens there are, are left out. `inputs_bytes` are those
of the linears that HiF8 quantizes (of the MLP, in a plain block). `peak_bytes` is the rise of the process's
largest resident size over that with the model and its optimizer's state in place. Called by block_time.py.
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
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from pangu_hif8.linear import HiF8Linear
from pangu_hif8.saved_codes import CodedHiF8Linear

MLP = ("gate_proj", "up_proj", "down_proj")
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
        copies = [getattr(module, "quantized_weight", None) for module in self.block.modules()]
        tensors = [*self.block.parameters(), *(copy for copy in copies if copy is not None)]
        return {tensor.untyped_storage().data_ptr() for tensor in tensors}

    def enter(self, *_: Any) -> None:
        self.in_linear = True

    def leave(self, *_: Any) -> None:
        self.in_linear = False


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


def peak_bytes() -> int:
    """The largest resident size of this process so far.

    From /proc where there is one: `getrusage` of a child begins with the largest size of its parent.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * KIB


def measure(
    name: str, num_sequences: int, length: int, shape: dict[str, Any], num_blocks: int = 1
) -> dict[str, int]:
    """The numbers of one kind of step."""
    torch.manual_seed(0)
    base = Blocks(shape, num_blocks)
    runner = Runner(KINDS[name], base, torch.optim.AdamW(base.parameters(), lr=LR))
    for tokens in (8, 8):  # AdamW's state, every slot's scale, the quantized weights
        runner.step(*batch(1, shape["hidden_size"], tokens))
    before = peak_bytes()
    data = batch(num_sequences, shape["hidden_size"], length)
    counter = Counter(runner.block)
    with counting(counter):
        runner.block(data[0])
    runner.step(*data)
    found = {"inputs_bytes": sum(counter.inputs.values()), "kept_bytes": sum(counter.kept.values())}
    return found | {"peak_bytes": peak_bytes() - before}


if __name__ == "__main__":
    print(
        json.dumps(
            measure(
                sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), int(sys.argv[5])
            )
        )
    )
