"""Tables and sentences say what the files hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_results import Dial, write_run, write_tree
from scipy import stats

from pangu_hif8 import tables
from pangu_hif8.claims import judge
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import resolve
from pangu_hif8.report_tables import SHOWN, TABLES, for_page
from pangu_hif8.results import load_profile_results

LAPTOP_TASKS = 4


@pytest.fixture
def tree(results: Path) -> Path:
    return write_tree(results, "laptop", dials={"E5": Dial(turned_wrong=0.06)})


def file_accuracy(directory: Path, task: str) -> float:
    """Share of right answers, counted in items.csv by the metric that eval.json names."""
    items = pd.read_csv(directory / "items.csv").query("task == @task")
    metric = json.loads((directory / "eval.json").read_text())["tasks"][task]["metric"]
    return float((items[metric] == 1).sum() / len(items))


def test_benchmark_table_sets_ours_beside_the_papers(tree: Path) -> None:
    table = tables.benchmark_table(load_profile_results("laptop"))
    assert len(table) == 9 * LAPTOP_TASKS
    row = table.query("experiment == 'E5' and task == 'arc_challenge'").iloc[0]
    mine, base = (file_accuracy(tree / name / "seed0", "arc_challenge") for name in ("E5", "E1"))
    assert mine < base
    assert row["accuracy_pct"] == pytest.approx(100 * mine)
    assert row["drop_pct"] == pytest.approx(100 * (base - mine) / base)
    assert row["baseline"] == "E1"
    assert row["paper_accuracy_pct"] == pytest.approx(32.51)
    assert row["paper_drop_pct"] == pytest.approx(3.30, abs=0.01)
    assert row["difference_low"] < row["difference_points"] < row["difference_high"]
    unpublished = table.query("experiment == 'E7'")
    assert unpublished["paper_accuracy_pct"].isna().all()
    assert table.query("experiment == 'E1'")["drop_pct"].isna().all()


def test_seeds_show_a_spread(results: Path) -> None:
    tree = write_tree(results, "smoke", seeds=(0, 1))
    assert (
        tables.benchmark_table(load_profile_results("smoke"))
        .query("experiment == 'E8'")["seed_std_pct"]
        .notna()
        .all()
    )
    assert (
        tables.heldout_table(load_profile_results("smoke"))
        .query("experiment == 'E8'")["seed_std_nats"]
        .gt(0)
        .all()
    )
    for directory in tree.glob("*/seed1"):
        shutil.rmtree(directory)
    assert tables.benchmark_table(load_profile_results("smoke"))["seed_std_pct"].isna().all()


def test_saturation_table_equals_the_files(tree: Path) -> None:
    table = tables.saturation_table(load_profile_results("laptop"))
    rows = pd.read_csv(tree / "E2/seed0/saturation.csv").query("kind == 'input' and layer == 'down_proj'")
    found = table.query("experiment == 'E2' and kind == 'input' and layer == 'down_proj'").iloc[0]
    assert found["saturated_pct"] == pytest.approx(100 * rows["saturated"].mean())
    assert found["num_pairs"] == len(rows)
    over = (rows["amax"] / rows["estimate"])[rows["saturated"] == 1]
    assert found["overshoot_max"] == pytest.approx(over.max())
    assert found["overshoot_median"] == pytest.approx(over.median())
    assert (table.query("experiment == 'E4'")["saturated_pct"] == 0).all()


def test_ape_table_tells_warmup_from_the_rest(tree: Path) -> None:
    table = tables.ape_summary(load_profile_results("laptop")).set_index("experiment")
    assert list(table.index) == ["E2", "E3", "E4", "E5", "E7", "E8"]
    assert table.loc["E8", "ape_all_pct"] < table.loc["E8", "ape_quantized_pct"]
    assert table.loc["E2", "ape_all_pct"] == pytest.approx(table.loc["E2", "ape_quantized_pct"])
    assert table.loc["E8", "paper_ape_all_pct"] == pytest.approx(0.1148, abs=1e-4)
    assert table["paper_ape_all_pct"].notna().sum() == 1


def test_answers_nll_stands_beside_accuracy(tree: Path) -> None:
    table = tables.benchmark_table(load_profile_results("laptop"))
    row = table.query("experiment == 'E5' and task == 'arc_easy'").iloc[0]
    mine, base = (
        pd.read_csv(tree / name / "seed0/items.csv").query("task == 'arc_easy'")["nll_correct"]
        for name in ("E5", "E1")
    )
    assert row["answer_nll_nats"] == pytest.approx(mine.mean())
    assert row["nll_minus_baseline"] == pytest.approx((mine - base).mean())
    assert row["nll_minus_low"] <= row["nll_minus_baseline"] <= row["nll_minus_high"]
    assert table.query("experiment == 'E1'")["nll_minus_baseline"].isna().all()


def test_late_ape_counts_the_steps_that_all_quantize(tree: Path) -> None:
    results = load_profile_results("laptop")
    start = json.loads((tree / "E8/seed0/run.json").read_text())["quantized_from_step"]
    table = tables.ape_summary(results).set_index("experiment")
    assert set(table["late_from_step"]) == {start}
    assert table.loc["E8", "quantized_from_step"] == start
    assert table.loc["E2", "quantized_from_step"] == 1
    series = {}
    for name, base in (("E7", "E6"), ("E8", "E6")):
        a, b = (pd.read_csv(tree / run / "seed0/steps.csv")["loss"][start - 1 :] for run in (name, base))
        series[name] = (a - b).abs() / b * 100
        assert table.loc[name, "ape_late_pct"] == pytest.approx(series[name].mean())
    gap = (series["E7"] - series["E8"]).mean()
    assert table.loc["E7", "minus_max_window"] == pytest.approx(gap)
    assert table["minus_max_window"].notna().sum() == 4
    assert pd.isna(table.loc["E8", "minus_max_window"])


def test_the_seeds_table_holds_each_seeds_value(results: Path) -> None:
    tree = write_tree(results, "smoke", seeds=(0, 1, 2))
    found = load_profile_results("smoke")
    table = tables.seeds_table(found)
    row = table.query("measure.str.startswith('held-out loss, second') and experiment == 'E1'").iloc[0]
    losses = [
        pd.read_csv(tree / name / "heldout.csv").query("domain == 'second_domain'")["loss"]
        for name in ("E0/seed0", "E1/seed0", "E1/seed1", "E1/seed2")
    ]
    each = [(mine - losses[0]).mean() for mine in losses[1:]]
    assert [float(value) for value in row["seeds"].split("; ")] == pytest.approx(each, rel=1e-3)
    low, high = stats.t.interval(0.95, 2, loc=np.mean(each), scale=stats.sem(each))
    assert [row["mean"], row["seed_low"], row["seed_high"]] == pytest.approx([np.mean(each), low, high])
    assert "E0" not in set(table["experiment"])
    for directory in [*tree.glob("*/seed1"), *tree.glob("*/seed2")]:
        shutil.rmtree(directory)
    assert tables.seeds_table(load_profile_results("smoke")).empty


def test_a_page_shows_inputs_and_weights_apart(tree: Path) -> None:
    table = tables.saturation_table(load_profile_results("laptop"))
    shown = for_page("saturation", table)
    assert len(shown) == len(table) / 2
    row = shown.query("run == 'E2' and layer == 'down_proj'").iloc[0]
    for kind in ("input", "weight"):
        found = table.query("experiment == 'E2' and layer == 'down_proj' and kind == @kind").iloc[0]
        share = f"{found['saturated_pct']:.1f} [{found['low_pct']:.1f}, {found['high_pct']:.1f}]"
        assert row[f"{kind}s saturated (%)"] == share


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_every_shown_column_is_there(results: Path, seeds: tuple[int, ...]) -> None:
    write_tree(results, "laptop", seeds=seeds)
    found = load_profile_results("laptop")
    for name, (_, make) in TABLES.items():
        table = make(found)
        if not table.empty:
            assert list(for_page(name, table).columns) == [column.head for column in SHOWN[name]]
    assert set(SHOWN) == set(TABLES)


def test_a_missing_baseline_leaves_its_differences_out(tree: Path) -> None:
    shutil.rmtree(tree / "E1")
    results = load_profile_results("laptop")
    assert [name for name, _ in tables.quantized_pairs(results)] == ["E7", "E8"]
    assert tables.benchmark_table(results).query("experiment == 'E5'")["drop_pct"].isna().all()
    assert tables.heldout_table(results).query("experiment == 'E5'")["minus_E0"].notna().all()


def test_claims_table_has_all_ten(tree: Path) -> None:
    table = tables.claims_table(judge(load_profile_results("laptop")))
    assert list(table["claim"]) == [f"C{i}" for i in range(1, 11)]
    markdown = tables.to_markdown(table)
    assert len(markdown.splitlines()) == 12
    assert {line.count("|") for line in markdown.splitlines()} == {6}


def test_markdown_cells_cannot_break_the_table() -> None:
    table = pd.DataFrame({"a": ["x|y\nz", None], "b": [1.23456789, float("nan")], "c": [1, 2]})
    assert tables.to_markdown(table).splitlines()[2:] == ["| x\\|y z | 1.235 | 1 |", "|  |  | 2 |"]


@pytest.mark.parametrize(
    ("experiment", "said"),
    [
        ("E0", "evaluated and not trained"),
        ("E1", "No layer was converted"),
        ("E4", "0.0% of input and 0.0% of weight"),
        ("E8", "quantized from step {start};"),
    ],
)
def test_describe_run(results: Path, experiment: str, said: str) -> None:
    directory = write_run(results, experiment, "laptop", 0, Dial())
    text = tables.describe_run(str(directory))
    quantization = resolve("E8", "laptop").quantization
    assert quantization is not None
    assert said.format(start=quantization.bf16_warmup_steps + 1) in text
    assert text.startswith(f"**{experiment} (")
    assert f"hellaswag {100 * file_accuracy(directory, 'hellaswag'):.1f}%" in text


def test_describe_run_refuses_half_a_run(results: Path) -> None:
    directory = write_run(results, "E8", "laptop", 0, Dial())
    (directory / "eval.json").write_text("{")
    with pytest.raises(UserError, match=r"eval\.json"):
        tables.describe_run(directory)
