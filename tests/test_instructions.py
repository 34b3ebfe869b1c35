"""The count of instructions: what is counted, what is compared, the kernels beside the committed counts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import instructions
import instructions_table
from instructions_table import COPY, FORMAT, TWICE, Count

COMMITTED = instructions_table.read_csv((ROOT / "benchmarks" / "instructions.csv").read_text())
NOPS = """
#include <cstdint>
extern "C"  void  kernel(const float* in_ptr0,
                         float* out_ptr0,
                         const int64_t ks0)
{
    for (int64_t i = 0; i < ks0; i++) asm volatile(".rept %d; nop; .endr");
}
"""


def some_counts(form: float = 5.0, copy: float = 1.0) -> list[Count]:
    return instructions_table.counts({(COPY, "float32"): copy, (FORMAT, "float32"): form})


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[Count]:
    """Counted in a process of its own, as `python benchmarks/instructions.py` does."""
    out = tmp_path_factory.mktemp("instructions")
    command = [sys.executable, str(ROOT / "benchmarks" / "instructions.py"), "--out", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    if result.stdout.startswith("not available"):
        pytest.skip(result.stdout.strip())
    return instructions_table.read_csv((out / "instructions.csv").read_text())


def test_no_kernel_executes_many_more_instructions_than_the_committed_one(measured: list[Count]) -> None:
    assert [(c.kernel, c.dtype) for c in measured] == [(c.kernel, c.dtype) for c in COMMITTED]
    assert instructions_table.costlier(measured, COMMITTED) == []


def test_a_kernel_that_computes_the_format_twice_is_found(measured: list[Count]) -> None:
    (twice,) = (c for c in measured if c.kernel == TWICE)
    (line,) = instructions_table.costlier([replace(twice, kernel=FORMAT)], COMMITTED)
    assert line.startswith(f"{FORMAT}, float32: {twice.instructions:.2f} instructions per element")


@pytest.mark.parametrize(("form", "is_costlier"), [(2.0, False), (7.5, False), (7.6, True), (10.0, True)])
def test_costlier_is_what_is_above_one_and_a_half_times_the_count(form: float, is_costlier: bool) -> None:
    lines = instructions_table.costlier(some_counts(form), some_counts())
    expected = f"{FORMAT}, float32: {form:.2f} instructions per element, 5.00 before"
    assert lines == ([expected] if is_costlier else [])


def test_the_copy_is_no_kernel_of_ours() -> None:
    assert instructions_table.costlier(some_counts(copy=3.0), some_counts()) == []


def test_a_kernel_without_a_committed_count_is_an_error() -> None:
    with pytest.raises(KeyError):
        instructions_table.costlier(some_counts(), some_counts()[:1])


def test_ratios_are_to_the_copy_of_the_same_type() -> None:
    per_element = {(COPY, "a"): 2.0, (COPY, "b"): 4.0, (FORMAT, "a"): 10.0, (FORMAT, "b"): 10.0}
    assert [c.ratio for c in instructions_table.counts(per_element)] == [1.0, 1.0, 5.0, 2.5]


def test_the_table_is_read_as_it_was_written() -> None:
    assert instructions_table.read_csv(instructions_table.as_csv(some_counts(2.5))) == some_counts(2.5)


def test_the_committed_tables_belong_together() -> None:
    folder = ROOT / "benchmarks"
    text = instructions_table.as_markdown((folder / "instructions.csv").read_text(), [])
    assert (folder / "instructions.md").read_text().endswith(text[text.index("| kernel") :])
    assert {(k.name, k.kind) for k in instructions.KERNELS} == {(c.kernel, c.dtype) for c in COMMITTED}


def test_every_further_instruction_of_a_loop_is_counted_once_an_element(tmp_path: Path) -> None:
    if reason := instructions.missing():
        pytest.skip(f"not available: {reason}")
    with instructions.for_avx2():
        made = instructions.build(instructions.program([NOPS % 10, NOPS % 10, NOPS % 25]), tmp_path)
    try:
        first, again, longer = instructions.per_element(made)
    except instructions.NotAvailableError as error:
        pytest.skip(f"not available: {error}")
    assert first == again > 10
    assert longer - first == pytest.approx(15, abs=0.1)


def test_code_without_the_kernel_s_function_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no function `kernel`"):
        instructions.program([NOPS.replace("kernel(", "core(")])


def fake_tool(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


@pytest.mark.skipif(instructions.missing() is not None, reason="another reason comes first")
@pytest.mark.parametrize("has_compiler", [False, True])
def test_what_is_missing_is_said_in_a_line(
    has_compiler: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_tool(tmp_path, "g++" if has_compiler else "valgrind")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    instructions.main(["--out", str(tmp_path / "out")])
    absent = "valgrind" if has_compiler else "g++"
    assert capsys.readouterr().out == f"not available: {absent} is not installed\n"
    assert not (tmp_path / "out").exists()


def test_what_valgrind_cannot_run_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(tmp_path, "valgrind", "echo ==1== head >&2", "echo unhandled instruction >&2", "exit 132")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(
        instructions.NotAvailableError, match=r"^valgrind ends with 132: unhandled instruction$"
    ):
        instructions.instructions(tmp_path / "made", 1)
