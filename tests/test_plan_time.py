"""`plan`'s times: FLOPs against torch's own count, the published run, traffic and exchange by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from test_plan_memory import SMALL, llama
from torch.utils.flop_counter import FlopCounterMode

from pangu_hif8.config import TaskConfig
from pangu_hif8.paper import TOKENS_PER_STEP, WARMUP_STEPS
from pangu_hif8.plan import (
    make_plan,
)
from pangu_hif8.plan_hardware import GIB, GPUS, Cluster, get_gpu
from pangu_hif8.plan_memory import MemorySettings
from pangu_hif8.plan_shape import OPENPANGU_1B
from pangu_hif8.plan_time import (
    PUBLISHED,
    evaluation_seconds,
    exchange_bytes,
    exchange_seconds,
    quantizing_bytes,
    recomputed_flops,
    step_flops,
)
from pangu_hif8.plan_workload import eval_task, load_workload
from pangu_hif8.train import next_token_loss_sum

PAPER = load_workload("paper")
NODE = Cluster(get_gpu("h100"), 8)


def counted_flops(checkpointing: bool) -> int:
    """torch's count of a forward and backward pass over 2 x 16 tokens; eager attention shows its products."""
    model = llama(replace(SMALL, attention_bias=False), checkpointing)
    model.set_attn_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        next_token_loss_sum(model, torch.zeros((2, 16), dtype=torch.int64)).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_flops_equal_torchs_count(checkpointing: bool) -> None:
    shape = replace(SMALL, attention_bias=False)
    settings = MemorySettings(2, 16, checkpointing=checkpointing)
    assert step_flops(shape, settings) + recomputed_flops(shape, settings) == counted_flops(checkpointing)


def test_the_published_run() -> None:
    """Its step times fit its 21 hours, and only GPUs of H100's class could have reached them."""
    assert PUBLISHED.tokens_per_step == TOKENS_PER_STEP == PAPER.tokens_per_step
    assert f"{PUBLISHED.ratio:.2f}" == "2.65"
    plain, quantized = PUBLISHED.bf16_step_s, PUBLISHED.qat_step_s
    hours = (WARMUP_STEPS * plain + (PAPER.steps - WARMUP_STEPS) * quantized) / 3600
    assert hours == pytest.approx(PUBLISHED.run_hours, rel=0.02)
    assert PUBLISHED.implied_mfu(GPUS["a100-80g"].peak_bf16) > 1
    assert GPUS["h100"].mfu_low == round(PUBLISHED.implied_mfu(GPUS["h100"].peak_bf16), 2)


def test_every_gpu_has_sane_figures_and_sources() -> None:
    for gpu in GPUS.values():
        assert gpu.source and gpu.mfu_source
        assert 0 < gpu.mfu_low < gpu.mfu_high < 1
        assert gpu.memory == gpu.memory_gib * GIB
        assert float(re.findall(r"(\d+) GB", gpu.name)[0]) * 0.9 < gpu.memory / 1e9 < 210
        assert gpu.network_bandwidth < gpu.link_bandwidth < gpu.memory_bandwidth < gpu.peak_bf16
    assert get_gpu("RTX 4090") is GPUS["rtx-4090"]


def test_ring_all_reduce_by_hand() -> None:
    """Two ranks: each sends half and gets half, twice: the whole tensor over the bus."""
    pair = Cluster(get_gpu("a100-80g"), 2)
    assert pair.bus_bandwidth == pytest.approx(210e9)
    assert pair.all_reduce_seconds(210e9) == pytest.approx(1.0)
    assert replace(pair, gpus=1).all_reduce_seconds(210e9) == 0.0
    nodes = Cluster(get_gpu("a100-80g"), 8, 2)
    assert nodes.bus_bandwidth == pytest.approx(0.7 * 200e9)  # eight network cards of 25 GB/s a node


def test_exchange_of_a_step() -> None:
    whole = 4.0 * OPENPANGU_1B.num_parameters
    ddp = MemorySettings(8, 1024, 16, ranks=8)
    assert exchange_bytes(OPENPANGU_1B, ddp) == {"gradient all-reduce": whole}
    assert exchange_seconds(OPENPANGU_1B, ddp, NODE) == pytest.approx(2 * whole * 7 / 8 / (0.7 * 450e9))
    fsdp = replace(ddp, parallel="fsdp")
    assert exchange_bytes(OPENPANGU_1B, fsdp) == {
        "weight all-gathers": 32 * whole - 16 * 4 * (153376 * 1536 + 1536),  # the root's but once
        "gradient reduce-scatters": 16 * whole,
    }
    assert exchange_bytes(OPENPANGU_1B, replace(ddp, ranks=1)) == {}


def test_quantizing_traffic_by_hand() -> None:
    """One block of two: bytes of reading and writing each input and weight."""
    shape = replace(SMALL, num_blocks=2, num_first_hp_blocks=1, num_last_hp_blocks=0)
    inputs, weights = 48 + 112, 3 * 48 * 112
    plain = MemorySettings(2, 10, 3, precision="float32")
    assert quantizing_bytes(shape, plain) == 8 * inputs * 60 + 8 * weights
    recomputed = replace(plain, checkpointing=True, ranks=2, parallel="fsdp")
    assert quantizing_bytes(shape, recomputed) == 2 * 8 * inputs * 60 + 6 * 8 * weights
    autocast = replace(plain, precision="bfloat16")  # a weight is cast, then quantized
    assert quantizing_bytes(shape, autocast) == 4 * inputs * 60 + 10 * weights


def test_evaluation_by_hand() -> None:
    task = eval_task(TaskConfig(name="gsm8k", num_items=160, metric="exact_match"))
    seconds = evaluation_seconds(OPENPANGU_1B, (task,), NODE)
    flops = OPENPANGU_1B.forward_flops_per_token(180) * 160 * 180
    decoding = 2 * 256 * 1.2e-3 * 26  # 160 items are two rounds of 8 ranks x 16
    assert seconds.low == pytest.approx(flops / (8 * 989.4e12 * 0.2) + decoding)


def test_more_ranks_never_take_longer_to_compute() -> None:
    plans = [make_plan(PAPER, replace(NODE, nodes=nodes)) for nodes in (1, 2, 4, 8)]
    computing = [plan.step.compute.low for plan in plans]
    assert computing == pytest.approx([computing[0] / nodes for nodes in (1, 2, 4, 8)])
    assert all(plan.fits for plan in plans)
