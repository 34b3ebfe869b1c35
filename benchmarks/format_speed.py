"""How fast is HiF8 beside a copy of the tensor, and beside what else can round to 8 bits here?

Everything runs on the same 16 million values, in one process, in rounds: each round calls each candidate
once, so that a slow minute of the machine meets all of them. The median over the rounds is kept, and given
as a ratio to two copies: into a tensor that is already there, and into a new one (clone), as all others here
return a new tensor too. Slow candidates take part in the first rounds only. Before it is timed, a HiF8
candidate must equal the reference on these values.

torchao is no dependency of this project. Its row is filled where it can be imported, for instance by
`pip install --no-deps --target DIRECTORY torchao` and `PYTHONPATH=DIRECTORY make bench`.

    python benchmarks/format_speed.py [--num-values N] [--rounds N] [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from asked import add_out, count, run_main
from speed_table import Measurement, busy_cores, write_tables
from torch import Tensor

from pangu_hif8 import hif8
from pangu_hif8.amax import amax_to_scale, tensor_to_amax
from pangu_hif8.fake_quantize import scaled_quantize_dequantize
from pangu_hif8.fused import scaled_qdq, scaled_qdq_amax

Call = Callable[[], object]
HIF8_MAX = 15.0
QUIET = 0.2  # cores busy with something else
SLOW_S, NUM_SLOW_ROUNDS = 1.0, 3  # a candidate that takes longer than a second is called this often


@dataclass(frozen=True)
class Candidate:
    """Something to time: `prepare` gets the values and a scale and returns the call; it may refuse."""

    name: str
    prepare: Callable[[Tensor, Tensor], Call]
    checks: str = ""  # what the call's result must equal: "scaled", "format" or nothing


class SkipCandidate(Exception):
    """Why a candidate cannot run here."""


# ---- what is timed -------------------------------------------------------------------------------------


def copy_into(x: Tensor, scale: Tensor) -> Call:
    """Read x and write it to memory that is already there."""
    target = torch.empty_like(x)
    return lambda: target.copy_(x)


def compiled_into(x: Tensor, scale: Tensor) -> Call:
    """Ours, without the cost of a new tensor."""
    out = torch.empty_like(x)
    return lambda: scaled_qdq(x, scale, HIF8_MAX, out=out)


def compiled_amax_into(x: Tensor, scale: Tensor) -> Call:
    """Ours with amax, without the cost of a new tensor."""
    out = torch.empty_like(x)
    return lambda: scaled_qdq_amax(x, scale, HIF8_MAX, out=out)[0]


def eager_into(x: Tensor, scale: Tensor) -> Call:
    """Ours in eager ops, without the cost of a new tensor."""
    out = torch.empty_like(x)
    return lambda: scaled_qdq(x, scale, HIF8_MAX, out=out, compiled=False)


def written_out(x: Tensor) -> Tensor:
    """HiF8 as its definition reads, in eager torch ops without a table: exponent bits, step, limits."""
    wide = x.float()
    magnitude = wide.abs()
    exponent = ((wide.view(torch.int32) >> 23) & 0xFF) - 127
    distance = exponent.abs()
    num_bits = (distance <= 3).int() + (distance <= 7).int() + (distance <= 15).int()
    step = torch.exp2((exponent - num_bits).float())
    rounded = torch.floor(magnitude / step + 0.5) * step
    rounded = torch.where(magnitude < 2.0**-23, 0.0, rounded.clamp(min=2.0**-22))
    rounded = torch.where(magnitude >= hif8.OVERFLOW_THRESHOLD, torch.inf, rounded)
    rounded = torch.where(wide.isnan(), torch.nan, rounded)
    return torch.where(rounded == 0, 0.0, torch.copysign(rounded, wide)).to(x.dtype)


def by_table(x: Tensor, scale: Tensor) -> Call:
    """What `fused.scaled_qdq` would be with the table of 8,192 values instead of integer arithmetic."""
    table = hif8.round_float32((torch.arange(8192, dtype=torch.int32) << 19).view(torch.float32))

    def one_pass(x: Tensor, scale: Tensor, table: Tensor) -> Tensor:
        scaled = (x.to(torch.float32) * scale).clamp(-HIF8_MAX, HIF8_MAX)
        return (table[(scaled.view(torch.int32) >> 19) & 8191] / scale).to(x.dtype)

    compiled = torch.compile(one_pass, dynamic=True)
    return lambda: compiled(x, scale, table)


def by_numpy(x: Tensor, scale: Tensor) -> Call:
    """en_dtypes' NumPy type, there and back (float32 only inside NumPy: bfloat16 is widened and narrowed)."""
    hifloat8 = importlib.import_module("en_dtypes").hifloat8

    def cast() -> Tensor:
        with np.errstate(all="ignore"):
            values = x.float().numpy().astype(hifloat8).astype(np.float32)
        return torch.from_numpy(values).to(x.dtype)

    return cast


def by_torchao(x: Tensor, scale: Tensor) -> Call:
    """torchao's float8 e4m3 fake quantization with a scale for the tensor, which it takes from the amax."""
    try:
        qat = importlib.import_module("torchao.quantization.qat")
        granularity = importlib.import_module("torchao.quantization.granularity").PerTensor()
        quantizer = qat.Float8FakeQuantizer(qat.Float8FakeQuantizeConfig(granularity=granularity))
        quantizer(x[:4096])
    except Exception as error:
        raise SkipCandidate(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    return lambda: quantizer(x)


def e4m3(x: Tensor, scale: Tensor) -> Call:
    """torch's own float8, there and back."""
    return lambda: x.to(torch.float8_e4m3fn).to(x.dtype)


CANDIDATES = (
    Candidate("copy into a tensor that is there", copy_into),
    Candidate("clone", lambda x, s: x.clone),
    Candidate("x * s", lambda x, s: lambda: x * s),
    Candidate("HiF8, compiled, into a tensor that is there", compiled_into, "scaled"),
    Candidate("HiF8, compiled, with amax, into a tensor that is there", compiled_amax_into, "scaled"),
    Candidate("HiF8, compiled", lambda x, s: lambda: scaled_qdq(x, s, HIF8_MAX), "scaled"),
    Candidate("HiF8, compiled, with amax", lambda x, s: lambda: scaled_qdq_amax(x, s, HIF8_MAX)[0], "scaled"),
    Candidate(
        "HiF8, compiled, with amax and count",
        lambda x, s: lambda: scaled_qdq_amax(x, s, HIF8_MAX, count_clipped=True)[0],
        "scaled",
    ),
    Candidate("HiF8, compiled from the table of 8,192", by_table, "scaled"),
    Candidate("HiF8, eager, into a tensor that is there", eager_into, "scaled"),
    Candidate("HiF8, eager", lambda x, s: lambda: scaled_qdq(x, s, HIF8_MAX, compiled=False), "scaled"),
    Candidate(
        "HiF8, eager, with amax",
        lambda x, s: lambda: scaled_qdq_amax(x, s, HIF8_MAX, compiled=False)[0],
        "scaled",
    ),
    Candidate("HiF8, eager, the format alone", lambda x, s: lambda: hif8.quantize_dequantize(x), "format"),
    Candidate("other HiF8: written out in torch ops", lambda x, s: lambda: written_out(x), "format"),
    Candidate("other HiF8: en_dtypes in NumPy", by_numpy, "format"),
    Candidate("float8_e4m3fn of torch, there and back", e4m3),
    Candidate("float8 fake quantization of torchao", by_torchao),
)


# ---- how it is timed -----------------------------------------------------------------------------------


def seconds(call: Call) -> float:
    """One call's wall time; what it returns is freed after the clock has stopped."""
    started = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - started
    del result
    return elapsed


def prepared(x: Tensor, scale: Tensor) -> tuple[dict[str, Call], dict[str, str]]:
    """Calls by name, warmed up and checked, and the reasons of those that cannot run."""
    expected = {
        "scaled": scaled_quantize_dequantize(x, scale, HIF8_MAX),
        "format": hif8.quantize_dequantize(x),
    }
    calls: dict[str, Call] = {}
    skipped: dict[str, str] = {}
    for candidate in CANDIDATES:
        try:
            call = candidate.prepare(x, scale)
        except SkipCandidate as error:
            skipped[candidate.name] = str(error)
            continue
        result = call()
        if candidate.checks and not torch.equal(result, expected[candidate.checks]):  # type: ignore[arg-type]
            raise SystemExit(f"error: {candidate.name} differs from the reference; nothing was measured")
        calls[candidate.name] = call
    return calls, skipped


def measure(dtype: torch.dtype, num_threads: int, num_values: int, num_rounds: int) -> list[Measurement]:
    """All candidates at one dtype and number of threads, in interleaved rounds."""
    torch.set_num_threads(num_threads)
    x = torch.randn(num_values, generator=torch.Generator().manual_seed(0)).to(dtype)
    calls, skipped = prepared(x, amax_to_scale(tensor_to_amax(x), HIF8_MAX))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(num_rounds):
        for name, call in calls.items():
            if index < NUM_SLOW_ROUNDS or statistics.median(times[name]) < SLOW_S:
                times[name].append(seconds(call))
    kind = str(dtype).removeprefix("torch.")
    return [
        Measurement(
            candidate.name, kind, num_threads, times.get(candidate.name, []), skipped.get(candidate.name)
        )
        for candidate in CANDIDATES
    ]


def run(num_values: int, num_rounds: int) -> list[Measurement]:
    """Every dtype and number of threads, with a line of progress for each."""
    found: list[Measurement] = []
    for num_threads in (1, 2):
        for dtype in (torch.float32, torch.bfloat16):
            print(f"{num_values:,} values of {dtype}, {num_threads} thread(s) ...", flush=True)
            found += measure(dtype, num_threads, num_values, num_rounds)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Time HiF8 beside a copy and its peers.")
    parser.add_argument("--num-values", type=count, default=16 * 2**20)
    parser.add_argument("--rounds", type=count, default=11)
    add_out(parser)
    options = parser.parse_args(arguments)
    busy = [busy_cores()]
    if busy[0] > QUIET:
        print(f"warning: {busy[0]:.1f} cores are busy with something else; the times will be too long")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as compiled:  # no kernel of earlier programs
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = compiled
        found = run(options.num_values, options.rounds)
    busy.append(busy_cores())
    print(write_tables(found, options.num_values, options.rounds, options.out, busy))


if __name__ == "__main__":
    run_main(main)
