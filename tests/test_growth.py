"""The benchmark of how costs grow: points are measured along each axis, memory is what the shapes say."""

from __future__ import annotations

import csv
import io
import sys
from types import SimpleNamespace
from typing import Any

import torch

from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import growth
import growth_table

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
}


def test_memory_of_a_point_is_what_the_shapes_say() -> None:
    setting = growth.Setting(window=8, quantized_blocks=3, sequences=2, length=10)
    found = growth.measure(setting, SMALL, 2)
    floats = 4 * 3 * 2 * 10 * (16 + 24)  # blocks, sequences, length; gate and up have one input
    assert found["kept_bytes"] == floats and found["kept_codes_bytes"] == floats / 4
    assert found["ratio"] > 0 and found["low"] <= found["ratio"] <= found["high"]


def test_both_kinds_of_step_come_first_in_some_rounds() -> None:
    taken: list[str] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name, self.settings = name, SimpleNamespace(batch_size=6)

        def run_step(self, step: int, tokens: torch.Tensor) -> None:
            assert tokens.shape == (6, 3)
            taken.append(self.name)

    two: Any = [Recorder("plain"), Recorder("quantized")]
    found = growth.seconds(two, growth.Setting(sequences=3, length=3), 64, 20)
    rounds = list(zip(taken[::2], taken[1::2], strict=True))
    assert set(rounds) == {("plain", "quantized"), ("quantized", "plain")}
    assert [len(times) for times in found] == [20, 20] and len(rounds) == 21


def test_the_state_s_bytes_are_those_of_all_its_tensors() -> None:
    n, window = 20, 8  # 4 blocks of 5 tensors
    scaling = growth.pair(growth.Setting(window, 4, 2, 10), SMALL)[1].scaling
    assert scaling is not None
    floats = n * 4 * (window + 6)  # history; amax, running, estimate, scale, largest value, room
    assert (
        growth.state_bytes(scaling) == floats + n * (8 + 8 + 1 + 5 * 8) + 8
    )  # skips, slots, current, samples
    saved = sum(value.nbytes for value in scaling.state_dict().values())
    assert growth.state_bytes(scaling) > saved


def test_the_history_alone_grows_with_the_window() -> None:
    sizes = [
        growth.measure(growth.Setting(window, 4, 2, 10), SMALL, 1)["state_bytes"] for window in (1, 101, 201)
    ]
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == 100 * 4 * 4 * 5  # steps, bytes, blocks, tensors


def test_processes_are_measured_by_processes_with_a_batch_each() -> None:
    found = growth.measure_processes(2, 1)
    assert set(found) == {"ratio", "low", "high", "plain_ms"} and found["plain_ms"] > 0


def test_tables_and_figure_hold_the_points() -> None:
    found = [growth_table.Growth("window", w, 1.1, 1.0, 1.2, 50.0, 2048, 4 * 2**20, 2**20) for w in (1, 4)]
    lengths = ((64, 2**26, 2**24), (256, 2**28, 2**26))
    found += [growth_table.Growth("length", n, 1.2, 1.1, 1.3, 9.0, 2048, *sizes) for n, *sizes in lengths]
    found += [growth_table.Growth("processes", 2, 1.3, 1.2, 1.4, 30.0)]
    rows = list(csv.DictReader(io.StringIO(growth_table.as_csv(found))))
    assert [row["ratio"] for row in rows] == ["1.1000"] * 2 + ["1.2000"] * 2 + ["1.3000"]
    text = growth_table.as_markdown(found, ["a machine"])
    assert "| window (steps) | 4 | 1.100 | 1.000 to 1.200 | 50.0 | 2.0 | 4.0 | 1.0 |" in text
    assert f"| {growth_table.AXES['processes']} | 2 | 1.300 | 1.200 to 1.400 | 30.0 |  |  |  |" in text
    figure = growth_table.draw(found)
    assert len(figure.axes) == 6 and all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
