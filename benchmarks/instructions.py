"""How many instructions does the compiled kernel of the format execute per element, beside a compiled copy?

A time varies from run to run, a count of instructions does not. torch.compile writes the C++, for one thread
and for vectors of 256 bits, whatever the machine has. With torch.compile's own flags it becomes a small
program, in which valgrind counts each kernel's instructions for 2^16 and for 2^18 elements; the difference
is divided by the difference of sizes. A count is no time: it shows no cache miss, and not that a division
takes longer than an addition. What is compared with the committed table: instructions_table.py.

Not available without an x86-64 processor with AVX2, valgrind and a C++ compiler: then one line says so, and
nothing is written.

    python benchmarks/instructions.py [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from pangu_hif8.siblings import SPINS_ALONE

os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS_ALONE))  # as a run alone has it; read with torch

import torch
from asked import add_out, run_main
from instructions_table import COPY, FORMAT, TWICE, Count, as_csv, as_markdown, counts
from speed_table import machine
from torch import Tensor
from torch._inductor import config, cpu_vec_isa
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions, get_cpp_compiler

from pangu_hif8 import fused
from pangu_hif8.files import write_text

SIZES = (2**16, 2**18)  # elements; no fewer than the table has
AVX2 = cpu_vec_isa.VecAVX2()  # valgrind knows no wider vectors
SETTINGS = {"cpp.simdlen": AVX2.bit_width(), "cpp.march": "haswell", "cpp.vec_isa_ok": True}
Function = Callable[[Tensor, Tensor, Tensor, Tensor], object]  # x, scale or table, limit, x_q


class NotAvailableError(Exception):
    """Why nothing can be counted here."""


@dataclass(frozen=True)
class Kernel:
    """A function to compile, and the type that it is compiled for."""

    name: str
    dtype: torch.dtype
    function: Function

    @property
    def kind(self) -> str:
        """The type's name."""
        return str(self.dtype).removeprefix("torch.")


# ---- what is counted -----------------------------------------------------------------------------------


def _copy(x: Tensor, scale: Tensor, limit: Tensor, x_q: Tensor) -> tuple[()]:
    x_q.copy_(x)
    return ()


def _twice(x: Tensor, scale: Tensor, limit: Tensor, x_q: Tensor) -> tuple[()]:
    once = fused.qdq_bits(fused._scaled_bits(x, scale), scale, limit)
    x_q.copy_(fused.qdq_bits(fused._scaled_bits(once, scale), scale, limit))
    return ()


KERNELS = [
    Kernel(name, dtype, function)
    for dtype in (torch.float32, torch.bfloat16)
    for name, function in {
        COPY: _copy,
        FORMAT: fused._qdq_pass,
        "format with amax": fused._amax_pass,
    }.items()
]
KERNELS += [
    Kernel("format by table", torch.bfloat16, fused._table_pass),  # a 16-bit type's, from 2^18 elements on
    Kernel(TWICE, torch.float32, _twice),  # what `costlier` must find
]


@contextmanager
def for_avx2() -> Iterator[None]:
    """torch.compile writes for AVX2, and doesn't spend seconds on trying what else is there."""
    with config.patch(SETTINGS), mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", return_value=[AVX2]):
        yield


def cpp_source(kernel: Kernel) -> str:
    """The C++ that torch.compile writes. It is caught on its way to the compiler; what runs does nothing."""
    found: list[str] = []

    def catch(_: AsyncCompile, types: Sequence[str], source: str) -> Callable[..., None]:
        found.append(source)
        return lambda *arguments: None

    with mock.patch.object(AsyncCompile, "cpp_pybinding", catch), torch.no_grad():
        torch.compile(kernel.function, dynamic=True)(*_arguments(kernel))
    (source,) = found
    return source


def _arguments(kernel: Kernel) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, limit = torch.ones(SIZES[1], dtype=kernel.dtype), torch.ones((), dtype=torch.int32)
    if kernel.function is fused._table_pass:
        x, table = x.view(torch.int16), torch.ones(2**16, dtype=torch.int16)
        return x, table, limit, torch.empty_like(x)
    return x, torch.ones(()), limit, torch.empty_like(x)


# ---- how it is counted ---------------------------------------------------------------------------------

NOT_INLINED = 'extern "C" __attribute__((noinline))'
MAIN = """
{not_inlined} void kernel_start() {{ asm volatile(""); }}
static float values[{size}];
static float* filled() {{
    auto* memory = static_cast<float*>(std::aligned_alloc(64, sizeof(values)));
    std::memcpy(memory, values, sizeof(values));
    return memory;
}}
int main(int, char** words) {{
    for (int i = 0; i < {size}; i++)  // of both signs and several powers of two; the first is 1
        values[i] = (i % 3 == 2 ? -1.0f : 1.0f) * (1 + i % 1000 / 1000.0f) * (1 << i % 7);
    float* p[{most}];
    for (auto& memory : p) memory = filled();
    const int64_t n = std::atol(words[1]);
    kernel_start();  // the count of all until here ends with it
{calls}
}}
"""


def program(sources: Sequence[str]) -> str:
    """C++ of a program `PROGRAM n` that runs each kernel on n elements, as kernel_0, kernel_1, ..."""
    texts, calls, most = ["#include <cstdlib>", "#include <cstring>"], [], 1
    for index, source in enumerate(sources):
        text, types = _renamed(source, f"kernel_{index}")
        texts.append(text)
        calls.append(f"    kernel_{index}({', '.join(map(_argument, range(len(types)), types))});")
        most = max(most, len(types))
    main = MAIN.format(size=SIZES[1], most=most, not_inlined=NOT_INLINED, calls="\n".join(calls))
    return "\n".join([*texts, main])


def _renamed(source: str, name: str) -> tuple[str, list[str]]:
    """The source with its function under another name, and the types of the function's parameters."""
    head = re.search(r'extern "C"\s+void\s+kernel\((.*?)\)', source, re.DOTALL)
    if head is None:
        raise ValueError("torch.compile's C++ has no function `kernel`")
    types = [parameter.strip().rsplit(maxsplit=1)[0] for parameter in head[1].split(",")]
    return source.replace(head[0], f"{NOT_INLINED} void {name}({head[1]})"), types


def _argument(index: int, kind: str) -> str:
    """Memory for a pointer; for a number the length, which is in no kernel beyond what that memory holds."""
    return f"reinterpret_cast<{kind}>(p[{index}])" if kind.endswith("*") else "n"


def build(text: str, folder: Path) -> Path:
    """The program, compiled with torch.compile's flags, which has run once. It needs nothing of torch."""
    (folder / "kernels.cpp").write_text(text)
    options = CppTorchDeviceOptions(vec_isa=AVX2, device_type="cpu", compile_only=True)
    builder = CppBuilder("kernels", str(folder / "kernels.cpp"), options, str(folder))
    builder.build()
    made = folder / "kernels"
    subprocess.run([get_cpp_compiler(), builder.get_target_file_path(), "-o", str(made)], check=True)
    subprocess.run([str(made), str(SIZES[0])], check=True)  # what fails from here on is valgrind
    return made


def instructions(made: Path, size: int) -> list[int]:
    """How many each kernel and its call execute. NotAvailableError where valgrind can't run them."""
    record = made.with_name(f"counted_{size}")  # a number is added for each kernel
    counting = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={record}", "--dump-after=kernel_*"]
    result = subprocess.run([*counting, str(made), str(size)], capture_output=True, text=True)
    if result.returncode:
        said = [line for line in result.stderr.splitlines() if not line.startswith("==")]
        raise NotAvailableError(f"valgrind ends with {result.returncode}: {(said or [''])[0]}")
    parts = sorted(made.parent.glob(f"{record.name}.*"), key=lambda path: int(path.suffix[1:]))
    return [int(re.findall(r"^totals: (\d+)$", part.read_text(), re.MULTILINE)[0]) for part in parts[1:]]


def per_element(made: Path) -> list[float]:
    """Instructions that each kernel of the program executes for a further element."""
    few, many = (instructions(made, size) for size in SIZES)
    return [(b - a) / (SIZES[1] - SIZES[0]) for a, b in zip(few, many, strict=True)]


def missing() -> str | None:
    """What this machine lacks, or None."""
    if platform.machine() not in ("x86_64", "AMD64") or not _has_avx2():
        return "the processor is not an x86-64 with AVX2"
    needed = ("valgrind", os.environ.get("CXX", "g++"))
    return next((f"{name} is not installed" for name in needed if shutil.which(name) is None), None)


def _has_avx2() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def measure() -> list[Count]:
    """All kernels. NotAvailableError where valgrind can't run them."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, for_avx2():
        folder = Path(name)
        with mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=name):  # no kernel of earlier programs
            made = build(program([cpp_source(kernel) for kernel in KERNELS]), folder)
        found = per_element(made)
    return counts({(k.name, k.kind): value for k, value in zip(KERNELS, found, strict=True)})


# ---- what is said --------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Count the instructions of the format's compiled kernels.")
    add_out(parser)
    options = parser.parse_args(arguments)
    try:
        if reason := missing():
            raise NotAvailableError(reason)
        table = as_csv(measure())
    except NotAvailableError as error:
        print(f"not available: {error}")
        return
    write_text(options.out / "instructions.csv", table)
    text = as_markdown(table, machine())
    write_text(options.out / "instructions.md", text)
    print(text)


if __name__ == "__main__":
    run_main(main)
