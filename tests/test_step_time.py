"""The table of a training step's cost: ratios within rounds, telemetry spread over a cycle, goals judged."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest

from pangu_hif8.paths import ROOT

Rounds = dict[str, list[float]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("step_table")


def rounds(table: ModuleType, **seconds: list[float]) -> Rounds:
    """Three rounds on a machine that is twice as slow in the second, at round ratios."""
    slow = (1.0, 2.0, 1.0)
    relative = {
        "off": 1.0,
        "most_recent": 1.1,
        "exponential_smoothing": 1.12,
        "max_window": 1.25,
        "current": 1.3,
        table.SAMPLED: 1.45,
        table.JOURNAL: 0.005,
        table.CODES: 1.28,
        "off + activation checkpointing": 1.5,
        "max_window + activation checkpointing": 1.8,
    }
    return {name: [ratio * s for s in slow] for name, ratio in relative.items()} | seconds


def by_name(table: ModuleType, found: Rounds) -> dict[tuple[str, str], float]:
    return {(r.what, r.than): r.median for r in table.ratios(found)}


def test_a_slow_round_cancels_and_a_condition_has_a_baseline_of_its_own(table: ModuleType) -> None:
    found = by_name(table, rounds(table))
    assert found["max_window", "off"] == pytest.approx(1.25)
    checkpointed = "max_window + activation checkpointing", "off + activation checkpointing"
    assert found[checkpointed] == pytest.approx(1.2)
    assert found["off + activation checkpointing", "off"] == pytest.approx(1.5)


def test_a_sampled_step_counts_once_in_its_cycle_and_the_journal_always(table: ModuleType) -> None:
    found = by_name(table, rounds(table))
    on = table.with_telemetry("max_window")
    mean_s = 1.25 + (1.45 - 1.25) / 20 + 0.005
    assert found[on, "off"] == pytest.approx(mean_s)
    assert found[on, "max_window"] == pytest.approx(mean_s / 1.25)
    assert found[table.with_telemetry("current"), "off"] == pytest.approx(mean_s + 0.05)


def test_the_cycle_is_the_runs_own(table: ModuleType) -> None:
    from pangu_hif8.config import TrainConfig

    assert TrainConfig.model_fields["telemetry_every"].default == table.CYCLE


def test_goals_are_judged_by_median_and_interval(table: ModuleType) -> None:
    def judged(*three: float) -> str:
        median, low, high = three
        return str(table.Ratio("a", "b", median, low, high, 1.15).reached)

    assert judged(1.15, 1.1, 1.15) == "yes"
    assert judged(1.14, 1.1, 1.16) == "yes, within noise"
    assert judged(1.16, 1.1, 1.17) == "no, within noise"
    assert judged(1.17, 1.16, 1.18) == "no"
    assert table.Ratio("a", "b", 1.0, 1.0, 1.0).reached == ""


def test_the_interval_is_of_the_median_and_repeats(table: ModuleType) -> None:
    values = [1.0 + i / 100 for i in range(101)]
    low, high = table.interval(values)
    assert (low, high) == table.interval(values)
    assert 1.33 < low < 1.45 and 1.55 < high < 1.67  # 1.5 -+ 1.96 * 0.5 / sqrt(101), uniform on [1, 2]
    assert table.interval([3.0]) == (3.0, 3.0)


def test_a_machine_that_was_disturbed_is_told_and_one_slow_step_of_many_is_not(table: ModuleType) -> None:
    assert table.steadiness([5.6, 6.0, 5.7]) == "Plain steps took 5.6 to 6 s."
    assert table.steadiness([5.6, 7.4, 5.7]).startswith("Plain steps took 5.6 to 7.4 s. So far apart, ")
    assert table.steadiness([0.08] * 19 + [0.2]) == "Plain steps took 0.08 to 0.08 s."
    assert "better measure again" in table.steadiness([0.08] * 10 + [0.12] * 10)


def test_both_files_tell_the_same(table: ModuleType) -> None:
    text = table.as_csv({"smoke": (1, rounds(table))})
    markdown = table.as_markdown(text, ["a machine"])
    assert "smoke,most_recent,off,1,1100.000,1100.000,3,1.1000,1.1000,1.1000,," in text.splitlines()
    assert "| smoke | most_recent | off | 1100.000 | 1.100 | 1.100 to 1.100 |" in markdown
    assert "| smoke | max_window | off | 1.250 | 1.250 to 1.250 | 1.1 | no |" in markdown
    assert f"| smoke | {table.CODES} | max_window | 1.024 | 1.024 to 1.024 | 1.03 | yes |" in markdown
    goals = re.findall(r"\| smoke \| (\w+), telemetry on \| (\w+) .* \| (yes|no) \|", markdown)
    assert goals == [
        ("most_recent", "off", "yes"),
        ("exponential_smoothing", "off", "yes"),
        ("max_window", "off", "no"),
        ("current", "off", "no"),
        ("max_window", "max_window", "no"),
    ]


def test_the_committed_table_says_what_its_csv_says(table: ModuleType) -> None:
    written = ROOT / "benchmarks" / "step_time.md"
    if not written.exists():
        pytest.skip("not measured yet")
    expected = table.as_markdown(written.with_suffix(".csv").read_text(), ["HEAD"])
    top, _, rest = expected.partition("HEAD")
    assert written.read_text().startswith(top) and written.read_text().endswith(rest)


def test_there_and_back_gives_every_kind_the_same_mean_place(table: ModuleType) -> None:
    bench = importlib.import_module("step_time")  # found as `table` is
    order = ["a", "b", "c"]
    there_and_back = bench.turns(order, True)
    places = {name: [i for i, turn in enumerate(there_and_back) if turn == name] for name in order}
    assert {name: sum(found) / len(found) for name, found in places.items()} == dict.fromkeys(order, 2.5)
    assert bench.turns(order, True, warms_up=True) == order
    twice = ["a", "a", "b", "b", "c", "c"]
    assert bench.turns(order, False) == bench.turns(order, False, warms_up=True) == twice
    assert bench.seconds_kept([1.0, 3.0], True) == 2.0 and bench.seconds_kept([1.0, 3.0], False) == 3.0


@pytest.mark.usefixtures("torch_settings")
@pytest.mark.parametrize("there_and_back", [(), ("smoke",)])
def test_every_kind_is_measured_in_every_round(
    table: ModuleType, monkeypatch: pytest.MonkeyPatch, there_and_back: tuple[str, ...]
) -> None:
    bench = importlib.import_module("step_time")
    monkeypatch.setattr(bench, "THERE_AND_BACK", there_and_back)
    _, found = bench.measure("smoke", 2)
    assert set(found) == {kind.name for kind in bench.kinds(False, False)} | {table.JOURNAL}
    assert all(len(times) == 2 and min(times) > 0 for times in found.values())
