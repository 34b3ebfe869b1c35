"""A block of the paper's shape on any device, and its step in every kind, peers included."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import gpu_table as table
import torch
from block_time import LR, Blocks
from peers import replace_linears, torchao_linear, writing_out
from torch import Tensor, nn
from torch._dynamo.utils import counters

from pangu_hif8.compiling import compile_model, compiler_errors
from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.linear import prepare_qat, refresh_weights
from pangu_hif8.saved_codes import save_inputs_as_codes
from pangu_hif8.scaling import ScalingState

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Setting:
    """Where, and how much."""

    device: torch.device
    shape: dict[str, Any]
    num_sequences: int
    length: int
    num_values: tuple[int, ...]
    num_rounds: int
    num_steps: int  # of a block, in a turn, between two waits for the device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def batch(self) -> tuple[Tensor, Tensor]:
        """An input that asks for a gradient, and the output's gradient."""
        size = (self.num_sequences, self.length, self.shape["hidden_size"])
        x, gradient = (torch.randn(size, device=self.device) for _ in range(2))
        return x.requires_grad_(), 1e-3 * gradient

    def blocks(self, num_blocks: int) -> tuple[Blocks, torch.optim.Optimizer]:
        """Blocks and their optimizer, as training has it."""
        torch.manual_seed(0)
        base = Blocks(self.shape, num_blocks).to(self.device)
        return base, torch.optim.AdamW(base.parameters(), lr=LR, fused=True)


def engine_linear(linear: nn.Linear) -> nn.Module:
    """transformer-engine's linear, to be run under `in_engine`; ImportError where it is absent."""
    engine: Any = importlib.import_module("transformer_engine.pytorch")
    bias, dtype = linear.bias is not None, linear.weight.dtype
    made = engine.Linear(linear.in_features, linear.out_features, bias=bias, params_dtype=dtype)
    made.weight = linear.weight
    return cast(nn.Module, made)


def in_engine() -> AbstractContextManager[Any]:
    """transformer-engine's fp8."""
    engine: Any = importlib.import_module("transformer_engine.pytorch")
    enter = getattr(engine, "autocast", None) or engine.fp8_autocast  # its name in older versions
    return cast(AbstractContextManager[Any], enter(enabled=True))


def autocast(x: Tensor) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU, as the training loop has it: without a cache of cast weights."""
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if x.is_cuda else nullcontext()


@dataclass(frozen=True)
class Kind:
    """One kind of step. `algo` None: the plain block, or a peer's."""

    algo: str | None = None
    codes: bool = False
    compiled: bool = False
    evaluates: bool = False
    around: Around = nullcontext
    peer: Callable[[nn.Linear], nn.Module] | None = None


KINDS = {
    table.PLAIN: Kind(),
    table.WINDOW: Kind("max_window"),
    table.CURRENT: Kind("current"),
    table.CODES: Kind("max_window", codes=True),
    table.EVAL_PLAIN: Kind(evaluates=True),
    table.EVAL: Kind("max_window", evaluates=True),
    table.WRITTEN_OUT: Kind("max_window", around=writing_out),
    table.TORCHAO: Kind(peer=torchao_linear),
    table.ENGINE: Kind(peer=engine_linear, around=in_engine),
    table.PLAIN_COMPILED: Kind(compiled=True),
    table.WINDOW_COMPILED: Kind("max_window", compiled=True),
}


class Runner:
    """A block of one kind around shared weights, and its step; ready to be timed when it is made."""

    def __init__(self, kind: Kind, base: Blocks, adamw: torch.optim.Optimizer, x: Tensor, dy: Tensor) -> None:
        self.kind, self.adamw, self.x, self.dy = kind, adamw, x, dy
        self.block = copy.deepcopy(base, {id(p): p for p in base.parameters()})
        self.call: nn.Module = self.block
        self.state: ScalingState | None = None
        if kind.algo:
            self.state = prepare_qat(self.block, QuantConfig(amax_compute_algo=kind.algo), 0, 0)
            self.state.set_mode("quantize")
        if kind.codes:
            save_inputs_as_codes(self.block)
        if kind.peer:
            replace_linears(self.block, kind.peer)
        self._warm_up()

    def _warm_up(self) -> None:
        self._train()  # gives every slot its scale
        if self.kind.evaluates and self.state:
            self.state.set_mode("frozen")
        if self.kind.compiled:
            self._compile()
        self.step()

    def _compile(self) -> None:
        """Raises UserError where torch would run it, or a part of it, uncompiled (or had a graph like it)."""
        num_graphs, num_breaks = _graphs()
        self.call = compile_model(self.block) if self.x.is_cuda else _traced(self.block)
        with compiler_errors():
            self._train()
        graphs, breaks = _graphs()
        if graphs == num_graphs or breaks > num_breaks:
            raise UserError("torch.compile runs a part of it uncompiled")

    def step(self) -> None:
        """One step of training, or the forward pass of an evaluation; nothing in it waits for the device."""
        if not self.kind.evaluates:
            self._train()
            return
        with torch.no_grad():
            self._forward()

    def _train(self) -> None:
        try:
            self._forward().backward(self.dy)
            self.adamw.step()
            if self.state:
                self.state.update()
        finally:
            self.adamw.zero_grad(set_to_none=True)
            self.x.grad = None

    def _forward(self) -> Tensor:
        with autocast(self.x), self.kind.around():
            if self.kind.compiled:
                refresh_weights(self.block)
            return self.call(self.x)


def _graphs() -> tuple[int, int]:
    """How many graphs torch.compile has made so far, and how often it had to break one."""
    return int(counters["stats"]["unique_graphs"]), sum(counters["graph_break"].values())


def _traced(block: nn.Module) -> nn.Module:
    """For a trial on a CPU: the same graphs, run op by op; the C++ compiler would take half a minute."""
    return cast(nn.Module, torch.compile(block, backend="aot_eager"))
