"""The benchmark of a block: every kind of step runs, memory follows from shapes, tables say the numbers."""

from __future__ import annotations

import csv
import io
import itertools
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

from pangu_hif8 import quantized_linear
from pangu_hif8.linear import HiF8Linear
from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import block_memory
import block_table
import block_time
import step_table

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
}
CODES, EVAL, EVAL_PLAIN = step_table.CODES, block_table.EVAL, block_table.EVAL_PLAIN
WRITTEN_OUT = "max_window, format written out in torch ops"


@pytest.fixture(scope="module")
def times() -> block_table.Rounds:
    return block_time.measure(SMALL, 2, 16, 3)


def test_every_kind_of_step_is_timed_in_every_round_and_peers_in_every_second(
    times: block_table.Rounds,
) -> None:
    assert list(times) == list(block_time.kinds_here())
    for name, found in times.items():
        turns = [seconds is not None and seconds > 0 for seconds in found]
        assert turns == [True, not block_time.KINDS[name].is_peer, True]
    assert next(name for name in times if None in times[name]) == WRITTEN_OUT


def test_ours_step_there_and_back_and_peers_on_the_way_there_of_every_second_round() -> None:
    order = [EVAL, WRITTEN_OUT, "plain", "max_window"]
    assert block_time.turns(order, 0) == [*order, "max_window", "plain", EVAL]
    assert block_time.turns(order, 1) == [EVAL, "plain", "max_window", "max_window", "plain", EVAL]


def test_the_mean_of_a_rounds_steps_is_kept_so_that_a_drift_meets_all_alike() -> None:
    runners = {name: one for name, one in block_time.make_runners(SMALL).items() if not one.kind.is_peer}
    ticks = (number**2 for number in itertools.count())  # each step takes a little longer than the one before
    found = block_time.time_rounds(runners, block_time.batch(2, 32, 16), 1, lambda: float(next(ticks)))
    num = 2 * len(runners)  # the clock is read twice a step: the k-th takes 4 k + 1
    assert found == {name: [4 * (num - 1) / 2 + 1] for name in runners}


def linears(block: torch.nn.Module) -> Iterator[HiF8Linear]:
    """Its quantized layers."""
    return (module for module in block.modules() if isinstance(module, HiF8Linear))


def test_frozen_weights_are_quantized_once_in_all_whatever_the_others_train() -> None:
    runners = block_time.make_runners(SMALL)
    frozen, calls = runners[EVAL], []
    weights = {layer.weight_slot for layer in linears(frozen.block)}
    plain = quantized_linear.quantize_slot

    def counted(state: Any, slot: int, *rest: Any) -> torch.Tensor:
        if state is frozen.state and slot in weights:
            calls.append(slot)
        return plain(state, slot, *rest)

    with mock.patch.object(quantized_linear, "quantize_slot", counted):
        block_time.time_rounds(runners, block_time.batch(2, 32, 16), 3, time.perf_counter)
    assert sorted(calls) == sorted(weights) and len(weights) == 3


def test_evaluations_share_weights_that_training_leaves_alone() -> None:
    runners = block_time.make_runners(SMALL)
    data = block_time.batch(2, 32, 16)
    runners[EVAL].step(*data)
    copies = [layer.quantized_weight for layer in linears(runners[EVAL].block)]
    trained, before = next(runners["plain"].block.parameters()), next(runners[EVAL].block.parameters())
    assert next(runners[EVAL_PLAIN].block.parameters()) is before and trained.equal(before)
    runners["plain"].step(*data)
    runners[EVAL].step(*data)
    now = [layer.quantized_weight for layer in linears(runners[EVAL].block)]
    assert all(a is b and a is not None for a, b in zip(copies, now, strict=True))
    assert not trained.equal(before) and next(runners["max_window"].block.parameters()) is trained


def gradient_of(kind: str) -> torch.Tensor:
    """The input's gradient in a first step."""
    torch.manual_seed(0)
    base = block_time.Blocks(SMALL)
    runner = block_time.Runner(block_time.KINDS[kind], base, torch.optim.AdamW(base.parameters(), lr=0.0))
    x, gradient = block_time.batch(2, 32, 16)
    runner.step(x, gradient)
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("name", ["current", CODES, WRITTEN_OUT])
def test_quantized_kinds_differ_from_the_plain_one_and_not_from_each_other(name: str) -> None:
    """A first step is scaled by its own amax, as current scaling is."""
    found = gradient_of(name)
    assert found.equal(gradient_of("max_window")) and not found.equal(gradient_of("plain"))


def test_memory_is_what_the_shapes_say() -> None:
    found = {name: block_memory.measure(name, 2, 16, SMALL, 3) for name in ("plain", "max_window", CODES)}
    floats = 3 * 4 * 2 * 16 * (32 + 48)  # of 3 blocks; gate and up have one input
    assert found["plain"]["inputs_bytes"] == found["max_window"]["inputs_bytes"] == floats
    assert found[CODES]["inputs_bytes"] == floats / 4
    assert found["plain"]["kept_bytes"] == found["max_window"]["kept_bytes"]
    assert found["plain"]["kept_bytes"] - found[CODES]["kept_bytes"] == 0.75 * floats
    weights = 3 * 4 * 3 * 32 * 48  # of 3 blocks, 4 bytes, 3 linears
    assert [found[name]["copies_bytes"] for name in ("plain", "max_window", CODES)] == [0, weights, weights]


def test_quantized_copies_and_gradients_are_in_the_peak() -> None:
    """Of a block that is nearly all weights, in a process for each kind."""
    wide = SMALL | {"hidden_size": 64, "intermediate_size": 2**15}
    found = block_time.kept(wide, 1, 8, ("plain", "max_window"))
    copies = block_table.NUM_BLOCKS * 4 * 3 * 64 * 2**15
    assert found["max_window"].copies_bytes == copies and found["plain"].copies_bytes == 0
    assert found["plain"].peak_bytes > copies  # its gradients
    assert found["max_window"].peak_bytes - found["plain"].peak_bytes == pytest.approx(copies, rel=0.1)


def test_the_tables_say_what_was_measured(times: block_table.Rounds) -> None:
    kept = {
        "plain": block_table.Kept(400, 1000, 0, 2000),
        "max_window": block_table.Kept(400, 1000, 50, 2100),
    }
    kept[CODES] = block_table.Kept(100, 700, 2**20, 1800)
    times = dict(times) | {"plain": [1.0, 2.0, 3.0], "max_window": [1.05, 2.2, 3.3]}
    table = block_table.as_csv(times, kept)
    rows = {row["step"]: row for row in csv.DictReader(io.StringIO(table))}
    assert float(rows["max_window"]["ratio"]) == pytest.approx(1.1)
    assert rows["max_window"]["reached"].startswith("yes") and rows["max_window"]["goal"] == "1.1"
    assert rows[EVAL]["than"] == EVAL_PLAIN and rows[WRITTEN_OUT]["num_rounds"] == "2"
    assert rows[CODES]["inputs_bytes"] == "100" and rows["current"]["inputs_bytes"] == ""
    text = block_table.as_markdown(table, ["a machine"])
    assert "times float32's: yes (0.2500)" in text and "| max_window | plain | 2200.0 | 1.100 |" in text
    assert "0.0 (0.25) | 0.0 (0.70) | 1.0 | 0.0 (0.90) |" in text
    assert f"Of {block_table.NUM_BLOCKS} such blocks" in text


def test_codes_are_judged_beside_max_window_and_peers_in_their_own_rounds() -> None:
    times = {"plain": [1.0, 2.0, 4.0], "max_window": [2.0, 4.0, 5.0], CODES: [2.02, 4.04, 5.05]}
    found = block_table.ratio(times | {WRITTEN_OUT: [3.0, None, 12.0]}, CODES)
    assert (found.than, found.goal, found.reached) == ("max_window", 1.03, "yes")
    assert found.median == pytest.approx(1.01)
    peer = block_table.ratio(times | {WRITTEN_OUT: [3.0, None, 12.0]}, WRITTEN_OUT)
    assert (peer.than, peer.median, peer.low, peer.high) == ("plain", 3.0, 3.0, 3.0)


def test_an_interval_on_both_sides_of_the_goal_is_said() -> None:
    noisy: block_table.Rounds = {"max_window": [1.0] * 7, CODES: [0.9, 0.95, 1.0, 1.02, 1.1, 1.2, 1.3]}
    assert block_table.ratio(noisy, CODES).reached == "yes, within noise"


def test_ratios_have_not_got_out_of_hand() -> None:
    """Bounds far above what was measured (block_time.md); one thread's processor time, whatever else runs."""
    shape, num_threads = SMALL | {"hidden_size": 256, "intermediate_size": 1024}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = block_time.measure(shape, 2, 256, 9, time.process_time)
    finally:
        torch.set_num_threads(num_threads)
    found = {name: block_table.ratio(times, name).median for name in times}
    assert found["max_window"] < 1.6 and found["current"] < 1.7
    assert found[CODES] < 1.5 and found[EVAL] < 1.8
    assert found["max_window"] < found[WRITTEN_OUT]
