"""Which rows a rank computes, and how losses and gradients come together: their number changes nothing.

A step's global batch is cut into equal consecutive shares, a share into micro-batches. The loss of a
micro-batch is its sum over the number of predicted tokens of the whole global batch; gradients are added over
micro-batches and ranks. So activations' gradients, too, are those of one process, which matters where they
are quantized.

Processes come from `accelerate launch`, torchrun or Slurm. DDP is Accelerate's. FSDP2 is torch's fully_shard,
one group a block: Accelerate offers none on a CPU, and what is tested there is what runs on GPUs. Launching
with Accelerate's own FSDP switched on selects it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pangu_hif8.errors import UserError
from pangu_hif8.launch import Parallel, accelerate_state
from pangu_hif8.linear import decoder_blocks

_LAUNCHED_FSDP = "PANGU_HIF8_LAUNCHED_FSDP"


def launched_parallel(asked: Parallel = "ddp") -> Parallel:
    """What to use: `asked`, or "fsdp" where `accelerate launch` was told to and `asked` is not "none".

    Accelerate's own variable has to go before it makes a plugin of it; ours stays, for the next call.
    """
    if os.environ.pop("ACCELERATE_USE_FSDP", "").lower() in ("1", "true"):
        os.environ[_LAUNCHED_FSDP] = "1"
    return "fsdp" if asked == "ddp" and _LAUNCHED_FSDP in os.environ else asked


class Ranks:
    """This process among its peers. "none" works alone even where there are others."""

    def __init__(self, parallel: Parallel = "ddp") -> None:
        self.parallel = launched_parallel(parallel)
        accelerate_state()
        self.accelerator = Accelerator(mixed_precision="no")
        alone = parallel == "none"
        self.world = 1 if alone else self.accelerator.num_processes
        self.rank = 0 if alone else self.accelerator.process_index
        self.device = self.accelerator.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are spread over ranks."""
        return self.parallel == "fsdp" and self.world > 1

    def check_sizes(self, batch_size: int, micro_batch_size: int) -> None:
        """Raises UserError unless every rank gets whole micro-batches, equally many."""
        if batch_size % (self.world * micro_batch_size):
            raise UserError(
                f"batch_size {batch_size} is no multiple of {self.world} processes times micro_batch_size "
                f"{micro_batch_size}; change the number of processes or micro_batch_size"
            )

    def micro_batches(self, tokens: Tensor, micro_batch_size: int) -> Sequence[Tensor]:
        """This rank's rows of the global batch [batch, seq], cut."""
        share = tokens.shape[0] // self.world
        return tokens[self.rank * share : (self.rank + 1) * share].to(self.device).split(micro_batch_size)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as it is to be called. FSDP2 changes `model` itself, so make the optimizer afterwards."""
        if self.world == 1:
            return model
        if not self.is_sharded:
            return cast(nn.Module, self.accelerator.prepare_model(model))
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device.type, (self.world,))
        for block in decoder_blocks(model):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model

    @contextmanager
    def syncing(self, wrapped: nn.Module, last: bool) -> Iterator[None]:
        """DDP reduces gradients in the last micro-batch only; FSDP in each, as whole ones would not fit."""
        if self.world == 1 or last or self.is_sharded:
            yield
        else:
            with self.accelerator.no_sync(wrapped):
                yield

    def to_sums(self, model: nn.Module) -> None:
        """Turn DDP's and FSDP's means over ranks into sums."""
        if self.world > 1:
            for p in model.parameters():
                if p.grad is not None:
                    p.grad.mul_(self.world)

    def sum(self, values: Tensor) -> Tensor:
        """Sum of a small tensor over ranks."""
        if self.world > 1:
            torch.distributed.all_reduce(values)
        return values

    def all(self, value: Any) -> list[Any]:
        """Every rank's plain object, by rank."""
        found = [value] * self.world
        if self.world > 1:
            torch.distributed.all_gather_object(found, value)
        return found

    def wait(self) -> None:
        """Return when all ranks are here."""
        if self.world > 1:
            self.accelerator.wait_for_everyone()

    def on_main(self, action: Callable[[], None]) -> None:
        """Rank 0 acts while the others wait; a UserError there is raised on all of them."""
        fault = None
        if self.is_main:
            try:
                action()
            except UserError as error:
                fault = error
        told = self.all(None if fault is None else str(fault))[0]
        if told is not None:
            raise fault or UserError(told)


def whole(tensor: Tensor) -> Tensor:
    """A tensor gathered from its shards (a collective call), or itself."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_whole(target: Tensor, source: Tensor) -> None:
    """Copy a whole tensor into `target`, of which this rank may hold a shard only."""
    if isinstance(target, DTensor):
        from torch.distributed.tensor import distribute_tensor

        source = source.to(target.device, target.dtype)
        source = distribute_tensor(source, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(source)
