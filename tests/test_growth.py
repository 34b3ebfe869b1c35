"""The benchmark of how costs grow: points are measured along each axis, memory is what the shapes say."""

from __future__ import annotations

import csv
import io
import sys
from typing import Any

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


def test_the_history_alone_grows_with_the_window() -> None:
    sizes = [
        growth.measure(growth.Setting(window, 4, 2, 10), SMALL, 1)["state_bytes"] for window in (1, 101, 201)
    ]
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == 100 * 4 * 4 * 5  # steps, bytes, blocks, tensors


def test_processes_are_measured_by_processes() -> None:
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
    assert "| processes | 2 | 1.300 | 1.200 to 1.400 | 30.0 |  |  |  |" in text
    figure = growth_table.draw(found)
    assert len(figure.axes) == 6 and all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
