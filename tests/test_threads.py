"""The benchmark of threads and of runs at once: processes really run side by side, the table divides."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import threads


def test_two_processes_are_timed_together() -> None:
    found = threads.measure(threads.Way(2, 1), "smoke", 3)
    assert (found.processes, found.threads) == (2, 1)
    assert 0 < found.fastest_seconds <= found.step_seconds <= found.slowest_seconds
    # Two side by side make at most twice the steps that the fastest step would allow one.
    assert 0 < found.steps_per_hour < 2 * 3600 / found.fastest_seconds


def test_threads_wait_as_those_of_runs_do() -> None:
    assert threads.waiting(threads.Way(1, 2))["GOMP_SPINCOUNT"] == str(threads.SPINS_ALONE)
    assert threads.waiting(threads.Way(2, 2))["GOMP_SPINCOUNT"] == str(threads.SPINS_BESIDE)


def test_a_process_that_ends_early_is_an_error() -> None:
    job = subprocess.Popen([sys.executable, "-c", "print('hm')"], stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.CalledProcessError):
        threads._line(job, "ready")


def test_the_table_compares_throughput_with_the_first_way() -> None:
    found = [threads.Measured(1, 1, 6.0, 5.5, 6.5, 600.0), threads.Measured(2, 1, 6.2, 5.8, 6.9, 1140.0)]
    lines = threads.table_lines(threads.as_csv(found))
    assert lines[2:] == [
        "| 1 | 1 | 6.00 | 5.50 to 6.50 | 600 | 1.00 |",
        "| 2 | 1 | 6.20 | 5.80 to 6.90 | 1,140 | 1.90 |",
    ]


def test_the_committed_table_says_what_its_csv_says() -> None:
    written = ROOT / "benchmarks" / "threads.md"
    if not written.exists():
        pytest.skip("not measured yet")
    assert written.read_text().endswith(
        "\n".join(threads.table_lines(written.with_suffix(".csv").read_text())) + "\n"
    )
