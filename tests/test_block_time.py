"""The benchmark of a block: every kind of step runs, memory follows from shapes, tables say the numbers."""

from __future__ import annotations

import csv
import io
import sys
import time
from typing import Any

import pytest
import torch

from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import block_memory
import block_table
import block_time

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_bias": True,
}


@pytest.fixture(scope="module")
def times() -> dict[str, list[float]]:
    return block_time.measure(SMALL, 2, 16, 3)


def test_every_kind_of_step_is_timed_in_every_round(times: dict[str, list[float]]) -> None:
    assert list(times) == list(block_time.kinds_here())
    assert all(len(found) == 3 and min(found) > 0 for found in times.values())


def gradient_of(kind: str) -> torch.Tensor:
    """The input's gradient in a first step."""
    torch.manual_seed(0)
    base = block_time.Blocks(SMALL)
    runner = block_time.Runner(block_time.KINDS[kind], base, torch.optim.AdamW(base.parameters(), lr=0.0))
    x, gradient = block_time.batch(2, 32, 16)
    runner.step(x, gradient)
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize(
    "name", ["current", "max_window, inputs kept as codes", "max_window, format written out in torch ops"]
)
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


CODES = block_table.CODES


def test_the_tables_say_what_was_measured(times: dict[str, list[float]]) -> None:
    kept = {"plain": block_table.Kept(400, 1000, 2000), "max_window": block_table.Kept(400, 1000, 2100)}
    kept[CODES] = block_table.Kept(100, 700, 1800)
    times = times | {"plain": [1.0, 2.0, 3.0], "max_window": [1.05, 2.2, 3.3]}
    rows = {row["step"]: row for row in csv.DictReader(io.StringIO(block_table.as_csv(times, kept)))}
    assert float(rows["max_window"]["ratio"]) == pytest.approx(1.1)
    assert rows["max_window"]["reached"].startswith("yes") and rows["max_window"]["goal"] == "1.1"
    assert rows[block_table.EVAL]["than"] == block_table.EVAL_PLAIN
    assert rows[CODES]["inputs_bytes"] == "100" and rows["current"]["inputs_bytes"] == ""
    text = block_table.as_markdown(block_table.as_csv(times, kept), ["a machine"])
    assert "times float32's: yes (0.2500)" in text and "| max_window | plain | 2200.0 | 1.100 |" in text
    assert "0.0 (0.25) | 0.0 (0.70) | 0.0 (0.90) |" in text


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
    assert found[CODES] < 1.9 and found[block_table.EVAL] < 2.0
    assert found["max_window"] < found["max_window, format written out in torch ops"]
