"""FSDP's formulas against torch's fully_shard: memory as tracked, collectives, gradients on two ranks.

The tracked models have the paper's true width on fake tensors, and are the first of eight ranks whose
collectives do nothing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_plan_memory import fake_tensors, llama
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaForCausalLM

from pangu_hif8.paths import ROOT
from pangu_hif8.plan_memory import FLOAT32, MemorySettings
from pangu_hif8.plan_moments import training_memory
from pangu_hif8.plan_shape import OPENPANGU_1B, ModelShape
from pangu_hif8.plan_time import exchange_bytes
from pangu_hif8.train import next_token_loss_sum

RANKS = 8


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        yield init_device_mesh("cpu", (RANKS,))
    finally:
        dist.destroy_process_group()


def sharded(shape: ModelShape, checkpointing: bool, mesh: DeviceMesh) -> LlamaForCausalLM:
    model = llama(shape, checkpointing)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def forward_and_backward(model: LlamaForCausalLM, settings: MemorySettings) -> None:
    tokens = torch.zeros((settings.micro_batch, settings.sequence_length), dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss = next_token_loss_sum(model, tokens)
    loss.backward()


def tracked_peak(shape: ModelShape, settings: MemorySettings, mesh: DeviceMesh) -> int:
    """Bytes at the worst moment of a micro-batch other than the first, weights to gradients included."""
    with fake_tensors():
        model = sharded(shape, settings.checkpointing, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            forward_and_backward(model, settings)
        return max(sizes["Total"] for sizes in tracker.get_tracker_snapshot("peak").values())


@pytest.mark.parametrize(
    ("blocks", "vocab", "batch", "checkpointing", "tied", "moment"),
    [
        (4, 60000, (4, 1024), False, True, "backward pass of the loss"),
        (8, 2000, (1, 1024), False, True, "backward pass of a block"),
        (8, 2000, (1, 1024), True, True, "backward pass of a block"),
        (4, 2000, (16, 1024), True, True, "backward pass of a block"),
        (4, 30000, (1, 1024), True, False, "backward pass of a block"),
        (2, 153376, (1, 1024), True, True, "backward pass of the embedding"),
        (2, 153376, (1, 256), True, False, "start of the forward pass"),
    ],
)
def test_worst_moment_of_a_shard(
    blocks: int,
    vocab: int,
    batch: tuple[int, int],
    checkpointing: bool,
    tied: bool,
    moment: str,
    mesh: DeviceMesh,
) -> None:
    """Within 0.2%."""
    sizes = dict(num_blocks=blocks, vocab_size=vocab, num_first_hp_blocks=0, num_last_hp_blocks=0)
    shape = replace(OPENPANGU_1B, tie_word_embeddings=tied, **sizes)  # type: ignore[arg-type]
    settings = MemorySettings(*batch, 2, RANKS, "fsdp", checkpointing=checkpointing, quantized=False)
    found = training_memory(shape, settings)
    assert found.moment == moment
    assert found.total == pytest.approx(tracked_peak(shape, settings, mesh), rel=2e-3)


@dataclass
class Traffic:
    """Bytes of whole tensors that went through each collective."""

    gathered: int = 0
    scattered: int = 0


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    found = Traffic()
    gather, scatter = dist.all_gather_single, dist.reduce_scatter_single

    def all_gather(output: torch.Tensor, *more: Any, **named: Any) -> Any:
        found.gathered += output.nbytes
        return gather(output, *more, **named)

    def reduce_scatter(**named: Any) -> Any:
        found.scattered += named["input"].nbytes
        return scatter(**named)

    monkeypatch.setattr(dist, "all_gather_single", all_gather)
    monkeypatch.setattr(dist, "reduce_scatter_single", reduce_scatter)
    return found


@pytest.mark.parametrize("checkpointing", [False, True])
def test_collectives_of_a_step(checkpointing: bool, mesh: DeviceMesh, traffic: Traffic) -> None:
    """Three micro-batches, in widths that eight ranks can share without padding."""
    shape = replace(OPENPANGU_1B, num_blocks=3, vocab_size=800, num_first_hp_blocks=0, num_last_hp_blocks=0)
    settings = MemorySettings(1, 16, 3, RANKS, "fsdp", checkpointing=checkpointing)
    with fake_tensors():
        model = sharded(shape, checkpointing, mesh)
        for _ in range(settings.accumulation_steps):
            forward_and_backward(model, settings)
    expected = exchange_bytes(shape, settings)
    assert traffic.gathered == expected["weight all-gathers"]
    assert traffic.scattered == expected["gradient reduce-scatters"]


MICRO_BATCHES = """
import os, sys
sys.path.insert(0, "tests")
rank, port = sys.argv[1:]
os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
import torch
from test_plan_memory import SMALL, llama
from pangu_hif8.config import TrainConfig
from pangu_hif8.ranks import Ranks
from pangu_hif8.train import Trainer

settings = TrainConfig(steps=1, batch_size=6, micro_batch_size=1, bf16_warmup_steps=0)
trainer = Trainer(llama(SMALL), settings, 1e-3, None, Ranks("fsdp"))
loss, held = trainer._loss, []

def watched(model, tokens):
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    held.append(sum(g.to_local().nbytes for g in grads))
    return loss(model, tokens)

trainer._loss = watched
trainer.run_step(1, torch.zeros((6, 8), dtype=torch.int64))
print("held", *held)
"""


def test_gradients_are_sharded_between_micro_batches(tmp_path: Path) -> None:
    """The training loop on two ranks: each holds half of them before every micro-batch but the first."""
    from test_plan_memory import SMALL
    from tiny_runs import _free_port

    port = str(_free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", MICRO_BATCHES, rank, port], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    try:
        told = [rank.communicate(timeout=150)[0].splitlines()[-1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()  # one that died leaves the other waiting
    held = [list(map(int, line.split()[1:])) for line in told]
    parts = training_memory(SMALL, MemorySettings(1, 8, 3, 2, "fsdp", "float32")).parts
    whole = FLOAT32 * SMALL.num_parameters
    assert parts["gradients, float32"] == whole / 2
    assert all(row[0] == 0 and row[1] == row[2] for row in held)
    assert [sum(column) for column in zip(*held, strict=True)] == [0, whole, whole]
