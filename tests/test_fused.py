"""The fused pass gives the bits of the plain functions, compiled and eager."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pangu_hif8 import fused
from pangu_hif8.amax import tensor_to_amax
from pangu_hif8.fake_quantize import ScaledOverflow, scaled_quantize_dequantize
from pangu_hif8.fused import scaled_qdq, scaled_qdq_amax
from pangu_hif8.hif8_tables import PIECE, every_value
from pangu_hif8.paths import ROOT

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CPU = torch.device("cpu")


def bits(x: Tensor) -> Tensor:
    """Bit patterns, every NaN counted as one (so signs of zero count, NaN payloads do not)."""
    kind = torch.int32 if x.dtype == torch.float32 else torch.int16
    return x.masked_fill(x.isnan(), math.nan).view(kind)


def patterns(num: int = 10_000) -> Tensor:
    """float32 of every kind: random bit patterns, the ends of each 2^18 patterns, and special values."""
    drawn = torch.randint(-(2**31), 2**31, (num,), generator=torch.Generator().manual_seed(0))
    tops = torch.arange(2**14, dtype=torch.int64) << 18
    special = [0x7F800001, 0xFF800001, 0x7FC00000, 0x7F800000, 0xFF800000, 0, 0x80000000, 1, 0x80000001]
    every = torch.cat([drawn, tops, tops | 0x3FFFF, torch.tensor(special * 20)])
    return every.to(torch.int32).view(torch.float32)


def check(x: Tensor, scale: Tensor, hif8_max: float = 15.0, overflow: ScaledOverflow = "saturate") -> None:
    expected = scaled_quantize_dequantize(x, scale, hif8_max, overflow)
    limit = min(hif8_max, 32768.0) if overflow == "saturate" else 32768.0
    num_beyond = ((x.float() * scale).abs() > torch.tensor(limit, device=x.device)).sum()
    for compiled, count in itertools.product((True, False), (False, True)):
        x_q, amax, num_clipped = scaled_qdq_amax(x, scale, hif8_max, overflow, count, compiled=compiled)
        assert x_q.shape == x.shape and x_q.dtype == x.dtype and x_q.device == x.device
        assert torch.equal(bits(x_q), bits(expected))
        assert amax.shape == () and amax.dtype == torch.float32
        assert torch.equal(amax.isnan(), tensor_to_amax(x).isnan())
        assert amax.isnan() or (amax == tensor_to_amax(x) and not torch.signbit(amax))
        assert (num_clipped is None) if not count else (num_clipped == num_beyond)
        assert torch.equal(bits(scaled_qdq(x, scale, hif8_max, overflow, compiled=compiled)), bits(expected))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    assert scaled_qdq_amax(x, scale, hif8_max, overflow, out=out)[0] is out
    assert torch.equal(bits(out), bits(expected))


@pytest.fixture(params=["eager", "compiled"])
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the kernels that this machine can make, and without them."""
    if request.param == "eager":
        monkeypatch.setattr(fused, "_without_compiler", {CPU})
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if fused._kernel_for(fused._qdq_pass, torch.ones(2)) is None:
                pytest.skip(f"no C++ compiler: {caught[0].message if caught else 'seen before'}")
    return str(request.param)


def test_every_kind_of_pattern(how: str) -> None:
    for dtype, overflow in itertools.product(DTYPES, ("saturate", "taper")):
        for scale in (1.0, 0.37, 2.0**100, 2.0**-100):
            check(patterns().to(dtype), torch.tensor(scale), overflow=overflow)


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_large_16_bit_tensors_take_the_table(how: str, dtype: torch.dtype) -> None:
    every = every_value(dtype, CPU).repeat(5)
    assert fused._fits_table(every) and not fused._fits_table(every.float())
    for overflow in ("saturate", "taper"):
        check(every, torch.tensor(0.37), overflow=overflow)
    check(every.view(5, -1).t(), torch.tensor(2.0**100))
    check(every.nan_to_num(), torch.tensor(1.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_of_several_pieces(how: str, dtype: torch.dtype) -> None:
    x = torch.randn(2 * PIECE + 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    check(x, torch.tensor(3.7))


@pytest.mark.parametrize("hif8_max", [0.1, 8.0, 224.0, 32768.0, 1e6])
def test_other_targets(how: str, hif8_max: float) -> None:
    check(patterns(), torch.tensor(1.7), hif8_max=hif8_max)


def test_odd_scales(how: str) -> None:
    for scale in (0.0, 1e-45, 3.4e38, math.inf, math.nan):
        check(patterns(), torch.tensor(scale))


def test_finite_tensors_have_a_finite_amax_and_one_nan_shows(how: str) -> None:
    x = torch.randn(10_007, generator=torch.Generator().manual_seed(0))
    for place in (0, 5000, 10_006):
        check(x, torch.tensor(3.0))
        for value in (math.nan, math.inf, -math.inf, -77.0):
            y = x.clone()
            y[place] = value
            check(y, torch.tensor(3.0))


def test_zeros_of_both_signs(how: str) -> None:
    for x in (torch.zeros(100), -torch.zeros(100), torch.tensor([0.0, -0.0] * 50), torch.full((99,), 1e-45)):
        check(x, torch.tensor(2.0))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2,), (5, 7), (2, 3, 4), (1, 17)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(how: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    check(x, torch.tensor(4.0))


def test_strided_views_and_inputs_stay_as_they_are(how: str) -> None:
    x = torch.randn(64, 48)
    before = x.clone()
    for view in (x.t(), x[::2, 1::3], x.expand(2, 64, 48), x[:, 5:6], x[1:].flatten()[3:]):
        check(view, torch.tensor(7.0))
    assert torch.equal(x, before)


def test_no_gradient_flows_and_modes_do_not_matter(how: str) -> None:
    x = torch.randn(300, requires_grad=True)
    x_q, amax, _ = scaled_qdq_amax(x, torch.tensor(2.0, requires_grad=True))
    assert not x_q.requires_grad and not amax.requires_grad
    with torch.no_grad():
        check(x, torch.tensor(2.0))


def test_denormals_survive_compilation(how: str) -> None:
    """Some compilers' start-up code makes the processor flush denormals to zero from then on."""
    x = torch.tensor([1e-40, -3e-42] * 40)
    assert (x * 1.0 != 0).all() and (x * 2.0**120 != 0).all()
    check(x, torch.tensor(2.0**120))


def test_a_kernel_is_not_compiled_again_for_a_shape_a_scale_or_a_target() -> None:
    if fused._kernel_for(fused._amax_pass, torch.ones(2)) is None:
        pytest.skip("no C++ compiler")
    scaled_qdq_amax(torch.randn(50), torch.tensor(1.0))
    with torch.compiler.set_stance("fail_on_recompile"):
        for size, scale, hif8_max in (
            (2, 1.0, 15.0),
            (33, 0.5, 8.0),
            (4096, 3.0, 224.0),
            (100_001, 1.0, 15.0),
        ):
            scaled_qdq_amax(torch.randn(size), torch.tensor(scale), hif8_max)


SMALL_FIRST = """
import torch
from pangu_hif8 import fused
torch.set_num_threads(2)
fused.scaled_qdq(torch.ones(10), torch.tensor(1.0))
"""


def test_a_kernel_first_used_on_a_small_tensor_has_several_threads(tmp_path: Path) -> None:
    if fused._kernel_for(fused._qdq_pass, torch.ones(2)) is None:
        pytest.skip("no C++ compiler")
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", SMALL_FIRST], cwd=ROOT, env=environment, check=True)
    written = [path.read_text() for path in tmp_path.rglob("*.cpp")]
    kernels = [text for text in written if "kernel(const float" in text]
    assert len(kernels) == 1 and "omp parallel" in kernels[0]


def test_importing_it_brings_no_compiler() -> None:
    code = "import sys, pangu_hif8.fused; sys.exit(any(m.startswith('torch._inductor') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """torch.compile gives functions that fail; the list has what it was asked to compile."""
    asked: list[object] = []

    def compile_(function: object, **options: object) -> object:
        asked.append(function)

        def fails(*arguments: object) -> object:
            raise RuntimeError("no working compiler\nsecond line")

        return fails

    monkeypatch.setattr(fused, "_compiled", cache(fused._compiled.__wrapped__))
    monkeypatch.setattr(fused, "_without_compiler", set())
    monkeypatch.setattr(torch, "compile", compile_)
    return asked


def test_where_nothing_can_be_compiled_it_tries_and_says_so_once(broken: list[object]) -> None:
    x, one = torch.randn(2**18), torch.tensor(1.0)
    with pytest.warns(UserWarning, match="without a compiled kernel on cpu: no working compiler$"):
        first, _, _ = scaled_qdq_amax(x, one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(scaled_qdq_amax(x, one)[0], first)
        for y, count in itertools.product((x, x.bfloat16(), x.half()), (False, True)):
            check(y, one)
            scaled_qdq_amax(y, one, count_clipped=count)
    assert broken == [fused._amax_pass]


def test_eager_on_request_asks_no_compiler(broken: list[object]) -> None:
    for dtype, size in itertools.product(DTYPES, (0, 1, 50, 2**18)):
        x = torch.randn(size).to(dtype)
        x_q, _, _ = scaled_qdq_amax(x, torch.tensor(0.3), count_clipped=True, compiled=False)
        assert torch.equal(scaled_qdq(x, torch.tensor(0.3), compiled=False), x_q)
        assert torch.equal(x_q, scaled_quantize_dequantize(x, torch.tensor(0.3)))
    assert not broken


def test_bad_arguments_are_refused() -> None:
    one = torch.tensor(1.0)
    with pytest.raises(ValueError, match="float32"):
        scaled_qdq(torch.ones(3, dtype=torch.float64), one)
    with pytest.raises(ValueError, match="overflow is 'saturate' or 'taper', not 'inf'"):
        scaled_qdq_amax(torch.ones(3), one, overflow="inf")  # type: ignore[arg-type]
    x = torch.ones(4, 4)
    for out in (torch.ones(4), torch.ones(4, 4).t()[:, ::2], torch.ones(4, 4).bfloat16(), x):
        with pytest.raises(ValueError, match="out is contiguous"):
            scaled_qdq(x, one, out=out)
    for hif8_max in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="hif8_max"):
            scaled_qdq_amax(torch.ones(3), one, hif8_max)


def test_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    x, scale = patterns().cuda(), torch.tensor(0.37).cuda()
    scaled_qdq_amax(x, scale, count_clipped=True)  # compiles
    torch.cuda.set_sync_debug_mode("error")  # a host synchronization raises
    try:
        x_q, amax, num_clipped = scaled_qdq_amax(x, scale, count_clipped=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = scaled_qdq_amax(x.cpu(), scale.cpu(), count_clipped=True, compiled=False)
    assert torch.equal(bits(x_q.cpu()), bits(expected[0]))
    assert num_clipped is not None and expected[2] is not None
    assert amax.isnan() and int(num_clipped) == int(expected[2])
