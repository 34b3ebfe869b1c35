"""The GPU benchmark's steps: each kind computes what its name says, on its device, without waiting for it."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_gpu_bench import PEERS, SMALL, out_of_memory
from torch import Tensor

from pangu_hif8.paths import ROOT
from pangu_hif8.scaling import ScalingState

sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu
import gpu_table as table
from block_time import Blocks
from gpu_block import KINDS, Kind, Runner


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()  # a graph of another test would be taken for this one's


def gradient_of(kind: str) -> Tensor:
    """The input's gradient after some steps that leave the weights alone."""
    base, _ = SMALL.blocks(2)
    x, dy = torch.randn(2, 16, 64, requires_grad=True), torch.ones(2, 16, 64)
    runner = Runner(KINDS[kind], base, torch.optim.AdamW(base.parameters(), lr=0.0), x, dy)
    runner._forward().backward(runner.dy)
    assert runner.x.grad is not None
    return runner.x.grad


def test_kinds_compute_what_their_names_say() -> None:
    window, plain = gradient_of(table.WINDOW), gradient_of(table.PLAIN)
    assert gradient_of(table.CODES).equal(window) and gradient_of(table.WRITTEN_OUT).equal(window)
    assert gradient_of(table.WINDOW_COMPILED).equal(window)
    assert not window.equal(plain) and (window - plain).abs().max() > 1e-3


def test_frozen_weights_are_quantized_once() -> None:
    runner = Runner(KINDS[table.EVAL], *SMALL.blocks(1), *SMALL.batch())
    layer: Any = runner.block.get_submodule("model.layers.0.mlp.down_proj")
    before = layer.quantized_weight
    runner.step()
    assert layer.quantized_weight is before and layer.state.mode == "frozen"


@pytest.mark.parametrize(
    "kind", [name for name in table.KINDS if name not in PEERS and "compile" not in name]
)
def test_a_step_stays_on_its_device_and_does_not_wait_for_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the meta device, where whatever asks for a value, or mixes devices, fails."""
    plain = ScalingState._estimate

    def warm(self: ScalingState, estimate: Tensor) -> None:
        self.is_warm = True  # a first step may wait
        plain(self, estimate)

    monkeypatch.setattr(ScalingState, "_estimate", warm)
    monkeypatch.setattr("pangu_hif8.quantized_linear._compiles", lambda x: False)
    monkeypatch.setattr("pangu_hif8.quantized_linear._autocast_dtype", lambda x: None)
    base = Blocks(gpu.SMALL, 2).to("meta")
    x = torch.empty(2, 16, 64, device="meta", requires_grad=True)
    runner = Runner(KINDS[kind], base, torch.optim.AdamW(base.parameters()), x, x.detach())
    runner.step()
    assert runner._forward().device.type == "meta"


def test_memory_is_counted_above_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated, wanted = iter((100, 130)), SimpleNamespace(device=torch.device("cuda"), wait=lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(allocated, 100))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 190)
    shared = (*SMALL.blocks(1), *SMALL.batch())
    setting: Any = wanted
    assert gpu.memory_of(Kind("current"), setting, *shared) == table.Memory(30, 90, "")
    failing: Any = lambda linear: out_of_memory()  # noqa: E731
    found = gpu.memory_of(Kind(peer=failing), setting, *shared)
    assert found == table.Memory(None, None, "not run: out of memory")
