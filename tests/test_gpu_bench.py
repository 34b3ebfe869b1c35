"""The GPU benchmark: a small run measures every row, failures are said, tables tell numbers, time ends it."""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pangu_hif8.errors import UserError
from pangu_hif8.paths import ROOT, cache_dir

sys.path.insert(0, str(ROOT / "benchmarks"))
import gpu
import gpu_kernel
import gpu_rounds
import gpu_table as table
from gpu_block import KINDS, Setting

SCRIPT = ROOT / "benchmarks" / "gpu.py"
SMALL = Setting(torch.device("cpu"), gpu.SMALL, 2, 16, (2**12,), 3, 1)
PEERS = {table.TORCHAO: "torchao", table.ENGINE: "transformer_engine"}
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler"
)
Row = dict[str, str]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()  # a graph of another test would be taken for this one's


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def turn(self, seconds: float) -> float:
        self.now += seconds
        return seconds


def out_of_memory() -> float:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")


def rows_of(text: str, part: str) -> list[Row]:
    return [row for row in csv.DictReader(io.StringIO(text)) if row["part"] == part]


def empty_report() -> table.Report:
    return table.Report(["a machine"], {(2**24, "bfloat16"): table.timings(table.CALLS)})


# ---- the script ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu")
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--small", "--rounds", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return out


@needs_compiler
def test_a_small_run_measures_every_row(small_run: Path) -> None:
    text = (small_run / "gpu.csv").read_text()
    kernel, block, memory = (rows_of(text, part) for part in ("kernel", "block", "memory"))
    assert [row["what"] for row in kernel] == 2 * list(table.CALLS)
    assert all(float(row["gb_per_s"]) > 0 and row["note"] == "" for row in kernel)
    assert [(row["what"], row["than"]) for row in block] == [each[:2] for each in table.COMPARISONS]
    measured = [row for row in block if row["what"] not in PEERS]
    assert all(row["num_rounds"] == "2" and float(row["ratio"]) > 0 and not row["note"] for row in measured)
    assert [row["what"] for row in memory] == list(table.KINDS) == sorted(KINDS, key=table.KINDS.index)
    assert {row["note"] for row in memory} == {"not measured on a CPU"}


@needs_compiler
def test_a_peer_that_is_absent_says_so(small_run: Path) -> None:
    for row in rows_of((small_run / "gpu.csv").read_text(), "block"):
        if row["what"] in PEERS:
            assert row["ratio"] or row["note"] == f"not run: No module named '{PEERS[row['what']]}'"


@needs_compiler
def test_both_files_of_a_small_run_tell_the_same(small_run: Path) -> None:
    check_committed(small_run / "gpu.md")
    assert "says nothing about the speed" in (small_run / "gpu.md").read_text()


def test_the_committed_table_says_what_its_csv_says() -> None:
    if not (ROOT / "benchmarks" / "gpu.md").exists():
        pytest.skip("not measured yet")
    check_committed(ROOT / "benchmarks" / "gpu.md")


def check_committed(written: Path) -> None:
    top, _, rest = table.as_markdown(written.with_suffix(".csv").read_text(), ["HEAD"]).partition("HEAD")
    assert written.read_text().startswith(top) and written.read_text().endswith(rest)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "finds no CUDA device; run this on a machine with an NVIDIA GPU"),
        (["--device", "cpu"], "add --small"),
        (["--rounds", "0"], "--rounds must be 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_line(
    more: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([*more, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert says in said.err and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert said.out == "" and not (tmp_path / "out").exists()


def test_without_a_gpu_the_process_ends_with_status_1(tmp_path: Path) -> None:
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=hidden, timeout=120)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_trial_does_not_write_beside_the_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.main(["--device", "cpu", "--small", "--minutes", "0"]) == 0
    assert (cache_dir() / "gpu_trial" / "gpu.csv").exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_small_run_on_a_gpu_counts_memory(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--small", "--rounds", "2", "--out", str(tmp_path)]
    assert subprocess.run(command, timeout=600).returncode == 0
    text = (tmp_path / "gpu.csv").read_text()
    assert {row["dtype"] for row in rows_of(text, "kernel")} == {"float32", "bfloat16"}
    for row in rows_of(text, "memory"):
        assert row["note"] if row["what"] in PEERS and not row["peak_bytes"] else int(row["peak_bytes"]) > 0


# ---- how it measures -------------------------------------------------------------------------------------


def test_rounds_end_when_the_next_would_not_fit() -> None:
    clock, found = Clock(), table.timings(("a", "b"))
    turns: dict[str, gpu_rounds.Turn] = {"a": partial(clock.turn, 1.0), "b": partial(clock.turn, 2.0)}
    gpu_rounds.run_rounds(found, turns, 5, gpu_rounds.Budget(7.5, clock))
    assert found["a"].times_s == [1.0, 1.0] and found["b"].times_s == [2.0, 2.0]
    assert {timing.note for timing in found.values()} == {"2 of 5 rounds: the time was used up"}
    found = table.timings(("a",))
    gpu_rounds.run_rounds(found, {"a": turns["a"]}, 5, gpu_rounds.Budget(clock.now, clock))
    assert found["a"] == table.Timing([], gpu_rounds.TIME_IS_UP)


def test_a_part_gets_its_share_of_the_time_that_is_left() -> None:
    clock = Clock()
    clock.now = 100.0
    part = gpu_rounds.Budget(200.0, clock).part(0.25)
    assert part.ends == 125.0 and part.allows(24.0) and not part.allows(25.0)


def test_nothing_is_prepared_that_would_not_fit() -> None:
    clock, found = Clock(), table.timings(("a", "b", "c"))

    def make(seconds: float) -> gpu_rounds.Turn:
        return partial(float, clock.turn(seconds))

    makers = {"a": partial(make, 3.0), "b": partial(make, 1.0), "c": partial(make, 1.0)}
    assert list(gpu_rounds.ready(found, makers, gpu_rounds.Budget(6.5, clock))) == ["a", "b"]
    assert [timing.note for timing in found.values()] == ["", "", gpu_rounds.TIME_IS_UP]


def test_out_of_memory_is_said_and_the_others_go_on() -> None:
    found, budget = table.timings(("a", "b", "c")), gpu_rounds.Budget(float("inf"))
    later = iter((1.0, 1.0))
    makers: dict[str, Any] = {
        "a": out_of_memory,
        "b": lambda: lambda: next(later, 0.0) or out_of_memory(),
        "c": lambda: lambda: 2.0,
    }
    gpu_rounds.run_rounds(found, gpu_rounds.ready(found, makers, budget), 4, budget)
    assert found["a"] == table.Timing([], "not run: out of memory")
    assert found["b"] == table.Timing([1.0, 1.0], "stopped after 2 of 4 rounds: out of memory")
    assert found["c"] == table.Timing([2.0] * 4, "")


def test_without_time_every_row_says_so(tmp_path: Path) -> None:
    assert gpu.main(["--device", "cpu", "--small", "--minutes", "0", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "gpu.csv").read_text()
    rows = rows_of(text, "kernel") + rows_of(text, "block")
    assert len(rows) == 2 * len(table.CALLS) + len(table.COMPARISONS)
    assert {(row["note"], row["ratio"]) for row in rows} == {(gpu_rounds.TIME_IS_UP, "")}
    assert (tmp_path / "gpu.md").read_text().count(gpu_rounds.TIME_IS_UP) == len(rows)


def test_what_was_measured_is_kept_when_the_run_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(report: table.Report, *_: Any) -> None:
        report.block[table.PLAIN] = table.Timing([0.5], "")
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "PARTS", ((part, 1.0),))
    assert gpu.main(["--device", "cpu", "--small", "--out", str(tmp_path)]) == 130
    plain, window, *_ = rows_of((tmp_path / "gpu.csv").read_text(), "block")
    assert plain["median_ms"] == "500.0000" and window["note"] == table.NOT_YET


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_kernel.CALLS, table.EAGER, lambda x, scale, out: out.copy_(x))
    x, one = torch.full((8,), 1.1), torch.ones(())
    with pytest.raises(UserError, match="differs from the reference"):
        gpu_kernel.kernel_turn(table.EAGER, x, one, torch.empty(8), torch.empty(0))
    assert gpu_kernel.kernel_turn(table.COPY, x, one, torch.empty(8), torch.empty(0))() > 0


def test_a_call_on_a_gpu_is_timed_between_events_with_its_launch_queued_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []

    class Event(SimpleNamespace):
        record, synchronize = (lambda self: order.append("event")), (lambda self: order.append("wait"))

        def elapsed_time(self, other: Event) -> float:
            return 250.0  # ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: order.append("sleep"))
    emptied: Any = SimpleNamespace(zero_=lambda: order.append("empty"))
    assert gpu_kernel.gpu_seconds(lambda: order.append("call"), emptied) == 0.25
    assert order == ["empty", "sleep", "event", "call", "event", "wait"]


# ---- the tables ------------------------------------------------------------------------------------------


def test_the_tables_say_what_was_measured() -> None:
    report = empty_report()
    kernel = report.kernel[2**24, "bfloat16"]
    kernel[table.COPY] = table.Timing([1e-4, 2e-4, 1e-4], "")
    kernel[table.FUSED] = table.Timing([2e-4, 4e-4, 2e-4], "")
    for name, times in {
        table.PLAIN: [1.0, 2.0, 1.0],
        table.WINDOW: [1.05, 2.1, 1.05],
        table.CODES: [1.1, 2.2],
        table.CURRENT: [1.2, 2.4, 1.2],
    }.items():
        report.block[name] = table.Timing(times, "")
    report.block[table.CODES].note = "stopped after 2 of 3 rounds: out of memory"
    report.memory[table.PLAIN] = table.Memory(0, 2**21, "")
    report.memory[table.CODES] = table.Memory(2**19, 2**20, "")
    text = table.as_csv(report)
    fused = next(row for row in rows_of(text, "kernel") if row["what"] == table.FUSED)
    assert fused["gb_per_s"] == f"{2 * 2 * 2**24 / 2e-4 / 1e9:.1f}" and fused["ratio"] == "0.5000"
    block = {(row["what"], row["than"]): row for row in rows_of(text, "block")}
    goals = [(what, than, row["goal"]) for (what, than), row in block.items() if row["goal"]]
    assert goals[:2] == [(table.WINDOW, table.PLAIN, "1.1"), (table.CURRENT, table.PLAIN, "1.15")]
    assert goals[2:] == [(table.CODES, table.WINDOW, "1.03"), (table.EVAL, table.EVAL_PLAIN, "1.05")]
    judged = {what: (row["ratio"], row["reached"]) for (what, _), row in block.items() if row["goal"]}
    assert judged[table.WINDOW] == ("1.0500", "yes") and judged[table.CURRENT] == ("1.2000", "no")
    assert judged[table.CODES] == (f"{1.1 / 1.05:.4f}", "no") and judged[table.EVAL] == ("", "")
    assert block[table.CODES, table.PLAIN]["ratio"] == "1.1000"
    written = table.as_markdown(text, ["a machine"])
    assert "| max_window | plain | 1050.0000 | 1.050 | 1.050 to 1.050 | 1.1 | yes |  |" in written
    assert (
        f"| {table.EVAL} | {table.EVAL_PLAIN} |  |  |  | 1.05 | not measured | {table.NOT_YET} |" in written
    )
    assert f"| {table.CODES} | 0.5 | 1.0 | 0.500 |  |" in written
    assert (
        "| 16,777,216 | bfloat16 | HiF8, compiled | 0.2000 | 335.5 | 0.500 | 0.500 to 0.500 |  |" in written
    )
