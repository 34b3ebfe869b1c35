"""The profile of a step: parts are exclusive and add up, agree with torch's profiler, and leave no trace."""

from __future__ import annotations

import csv
import io
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, record_function

from pangu_hif8 import quantized_linear
from pangu_hif8.fake_quantize import straight_through
from pangu_hif8.paths import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import profile_step
import profile_table as table

SMALL: dict[str, Any] = profile_step.TINY | {"hidden_size": 192, "intermediate_size": 768}
LARGE: dict[str, Any] = SMALL | {"intermediate_size": 6144}  # a weight beyond one piece, as the paper's are
MEASURED_PARTS = (*table.COMMON, *table.ADDED)


pytestmark = pytest.mark.usefixtures("torch_settings")


def block(shape: dict[str, Any]) -> list[profile_step.Subject]:
    """Warm subjects on one thread."""
    subjects = profile_step.blocks(shape, 2, 128, 1)
    for subject in subjects:
        subject.first()
    return subjects


def quantized_step(shape: dict[str, Any]) -> dict[str, float]:
    """Seconds by part of one warm step."""
    plain, quantized = block(shape)
    timer = profile_step.Timer()
    with profile_step.instruments(timer, plain.model, quantized.model):
        return timer.step(quantized.run)


def test_a_part_does_not_count_what_it_calls() -> None:
    marks: list[table.Mark] = [("rest", 0.0), (table.LAYER, 1.0), (table.QDQ, 2.0), (table.AMAX, 4.0)]
    marks += [(None, 5.0), (None, 7.0), (table.WEIGHT, 8.0), (table.QDQ, 8.5), (None, 11.5), (None, 12.0)]
    marks += [(None, 13.0), (None, 20.0)]
    found = {"rest": 1.0 + 7.0, table.LAYER: 1.0 + 1.0 + 0.5 + 0.5 + 1.0}
    found |= {table.QDQ["input"]: 2.0 + 2.0, table.AMAX["input"]: 1.0, table.QDQ["weight"]: 3.0}
    assert table.exclusive(marks) == found


def test_parts_add_up_to_the_step_as_a_clock_outside_has_it() -> None:
    plain, quantized = block(SMALL)
    timer, outside = profile_step.Timer(), []
    with profile_step.instruments(timer, plain.model, quantized.model):
        for subject in (quantized, plain) * 5:
            started = time.perf_counter()
            seconds = timer.step(subject.run)
            outside.append((time.perf_counter() - started) / sum(seconds.values()))
            assert min(seconds.values()) >= 0 and set(seconds) <= {*MEASURED_PARTS, table.HOOKS}
    assert min(outside) >= 1 and sorted(outside)[5] < 1.03


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_every_part_of_a_quantized_step_is_met(shape: dict[str, Any]) -> None:
    """Below one piece the amax is quantized_linear's, beyond it `fused`'s."""
    found = quantized_step(shape)
    assert all(found[part] > 0 for part in MEASURED_PARTS)
    assert found[table.REST] < 0.1 * sum(found.values())


def test_a_plain_step_has_the_common_parts_alone() -> None:
    plain, quantized = block(SMALL)
    timer = profile_step.Timer()
    with profile_step.instruments(timer, plain.model, quantized.model):
        found = timer.step(plain.run)
    assert {part for part, seconds in found.items() if seconds > 0} == set(table.COMMON)


def test_every_step_runs_each_part_as_often_as_the_layers_say() -> None:
    plain, quantized = block(SMALL)
    timer = profile_step.Timer()
    with profile_step.instruments(timer, plain.model, quantized.model):
        timer.step(quantized.run)
    begun = [part for part, _ in timer.marks if part is not None]
    assert begun.count(table.PRODUCTS) == begun.count(table.LAYER) == begun.count(table.WEIGHT) == 3
    assert begun.count(table.STRAIGHT) == begun.count(table.STRAIGHT_BACK) == begun.count(table.HOOKS) == 6
    assert begun.count(table.QDQ) == begun.count(table.AMAX) == 3 + 2  # gate_proj and up_proj have one input
    assert begun.count(table.UPDATE) == begun.count(table.BACKWARD) == 1


def test_torchs_profiler_sees_the_same_time_in_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = F.linear

    def recorded(*args: Any) -> torch.Tensor:
        with record_function("products"):
            return linear(*args)

    plain, quantized = block(LARGE)
    timer = profile_step.Timer()
    monkeypatch.setattr(F, "linear", recorded)  # until it is wrapped: attention's stay as they are
    with profile_step.instruments(timer, plain.model, quantized.model):
        monkeypatch.undo()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            found = timer.step(quantized.run)
    theirs = next(event for event in seen.key_averages() if event.key == "products")
    assert theirs.count == 3
    assert found[table.PRODUCTS] == pytest.approx(1e-6 * theirs.cpu_time_total, rel=0.1)


def parts_now() -> list[Any]:
    return [getattr(place, name) for place, name, _ in profile_step.PLACES]


def break_off(subjects: list[profile_step.Subject], before: list[Any]) -> None:
    """An error while everything is wrapped."""
    with profile_step.instruments(profile_step.Timer(), subjects[0].model, subjects[1].model):
        assert not any(now is then for now, then in zip(parts_now(), before, strict=True))
        raise ZeroDivisionError


def test_what_was_wrapped_is_as_it_was_even_after_an_error() -> None:
    subjects, before = block(SMALL), parts_now()
    with pytest.raises(ZeroDivisionError):
        break_off(subjects, before)
    assert parts_now() == before and vars(quantized_linear)["F"] is F
    assert vars(quantized_linear)["straight_through"] is straight_through
    assert not any("forward" in vars(module) for module in subjects[0].model.modules())


def test_a_wrapped_step_trains_as_a_bare_one() -> None:
    def gradient(with_timer: bool) -> torch.Tensor:
        plain, quantized = block(SMALL)
        if with_timer:
            timer = profile_step.Timer()
            with profile_step.instruments(timer, plain.model, quantized.model):
                timer.step(quantized.run)
        else:
            quantized.run()
        return torch.cat([p.detach().flatten() for p in quantized.model.parameters()])

    assert gradient(True).equal(gradient(False))


def rounds(scale: float, parts: tuple[str, ...]) -> list[dict[str, float]]:
    """Three rounds, the second twice as slow; part number n takes n + 1 ms."""
    ms = [(1 + number) * scale for number in range(len(parts))]
    return [dict(zip(parts, [1e-3 * slow * one for one in ms], strict=True)) for slow in (1.0, 2.0, 1.0)]


def made_up() -> str:
    """The table of a step of 105 ms, of which 90 are added, beside a plain one of 7.5 ms."""
    one = table.Profiled(rounds(0.5, table.COMMON), rounds(1.0, MEASURED_PARTS), 2, 1000)
    return table.as_csv({"block": one, "smoke": one}, 2e-6)


def test_the_table_adds_up_and_says_what_is_most() -> None:
    rows = {row["part"]: row for row in csv.DictReader(io.StringIO(made_up())) if row["size"] == "smoke"}
    assert float(rows[table.STEP]["ms"]) == pytest.approx(105) and rows[table.STEP]["plain_ms"] == "7.5000"
    assert float(rows[table.SUM]["ms"]) == pytest.approx(90)
    assert float(rows[table.DIFFERENCE]["ms"]) == pytest.approx(97.5)
    assert float(rows[table.ELSEWHERE]["ms"]) == pytest.approx(7.5)
    assert float(rows[table.MARKS]["ms"]) == pytest.approx(2)
    shares = [float(rows[part]["share_percent"]) for part in MEASURED_PARTS]
    assert sum(shares) == pytest.approx(100, abs=0.1)
    text = table.as_markdown(made_up(), ["a machine"])
    assert f"What adds most: {table.ADDED[-1]}, 14 ms, 16% of all added parts." in text
    assert f"| + {table.ADDED[0]} | 6 | 6 to 12 | 5.71 |  |" in text


def test_the_figure_shows_each_size_and_part() -> None:
    whole, between, added = table.draw(made_up()).axes
    assert [label.get_text() for label in whole.get_yticklabels()] == ["block", "smoke"]
    bars = [bar.get_window_extent().transformed(whole.transData.inverted()) for bar in whole.patches]
    assert max(bar.x1 for bar in bars) == pytest.approx(100, abs=0.1)
    assert [label.get_text() for label in added.get_yticklabels()] == list(table.ADDED)
    assert all(panel.get_title() and "%" in panel.get_xlabel() for panel in (whole, added))
    assert between.get_legend() is not None and added.get_legend() is not None


def test_the_command_profiles_run_step_and_writes_every_file(tmp_path: Path) -> None:
    profile_step.main(["--size", "smoke", "--rounds", "2", "--out", str(tmp_path)])
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {"profile.csv", "profile.md", "profile.png", "profile.svg"}
    rows = {row["part"]: row for row in csv.DictReader((tmp_path / "profile.csv").open())}
    assert all(float(rows[part]["ms"]) > 0 for part in (*MEASURED_PARTS, table.MARKS))
    total = sum(float(rows[part]["ms"]) for part in MEASURED_PARTS)
    assert total == pytest.approx(float(rows[table.STEP]["ms"]), rel=0.03)
    assert float(rows[table.MARKS]["ms"]) < 0.1 * float(rows[table.STEP]["ms"])


def test_the_committed_page_says_what_its_csv_says() -> None:
    written = ROOT / "benchmarks" / "profile.md"
    if not written.exists():
        pytest.skip("not measured yet")
    expected = table.as_markdown(written.with_suffix(".csv").read_text(), ["HEAD"])
    top, _, rest = expected.partition("HEAD")
    assert written.read_text().startswith(top) and written.read_text().endswith(rest)
