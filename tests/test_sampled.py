"""The sampled errors in the report: a table and a figure that equal the files, neither without samples."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pandas as pd
import pytest
from fake_results import Dial, write_run, write_tree

from pangu_hif8 import captions, comparisons, plots, report, tables
from pangu_hif8.plots_sampled import plot_sampled_sqnr
from pangu_hif8.results import ProfileResults, load_profile_results
from pangu_hif8.run_files import open_run
from pangu_hif8.sampled import sampled_experiments, sqnr_by_block

Samples = dict[tuple[str, str], list[dict[str, str]]]


def samples(directory: Path) -> Samples:
    """The sampled rows of a file by (kind, layer), read without the package."""
    found: Samples = defaultdict(list)
    with (directory / "saturation.csv").open(newline="") as handle:
        for row in csv.DictReader(handle):
            if row["clipped_share"]:
                found[row["kind"], row["layer"]].append(row)
    return found


def test_the_table_equals_the_files(results: Path) -> None:
    tree = write_tree(results, seeds=(0, 1))
    table = tables.sampled_table(load_profile_results("smoke"))
    assert len(table) == 6 * 2 * 3
    for name in ("E2", "E8"):
        first, second = (samples(tree / name / f"seed{seed}") for seed in (0, 1))
        for (kind, layer), rows in first.items():
            both = rows + second[kind, layer]
            row = table.query("experiment == @name and kind == @kind and layer == @layer").iloc[0]
            assert row["num_samples"] == len(both)
            assert row["sqnr_db_median"] == pytest.approx(median(float(r["sqnr_db"]) for r in both))
            for share in ("clipped", "flushed"):
                mean = fmean(float(r[f"{share}_share"]) for r in both)
                assert row[f"{share}_pct_mean"] == pytest.approx(100 * mean)


def test_the_figure_equals_the_files(results: Path) -> None:
    tree = write_tree(results)
    found = load_profile_results("smoke")
    figure = plot_sampled_sqnr(found)
    assert figure is not None
    assert len(figure.axes) == 2 * 3
    assert [axes.get_title() for axes in figure.axes[:3]] == ["gate_proj", "up_proj", "down_proj"]
    expected = defaultdict(list)
    for row in samples(tree / "E5" / "seed0")["input", "down_proj"]:
        expected[int(row["block"])].append(float(row["sqnr_db"]))
    line = next(line for line in figure.axes[2].lines if line.get_label() == "E5 max-window")
    drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
    assert drawn == pytest.approx({block: median(values) for block, values in expected.items()})


def test_the_caption_names_the_worst_place(results: Path) -> None:
    tree = write_tree(results)
    path = tree / "E3" / "seed0" / "saturation.csv"
    table = pd.read_csv(path)
    place = (table["block"] == 4) & (table["layer"] == "up_proj") & (table["kind"] == "weight")
    table.loc[place & table["sqnr_db"].notna(), "sqnr_db"] = 12.34
    table.to_csv(path, index=False)
    sentence = captions.sampled_sqnr(load_profile_results("smoke"))
    assert sentence.endswith("the lowest of any block is 12.3 (E3, weight of up_proj in block 4).")
    by_tensor = samples(tree / "E2" / "seed0").items()
    inputs = {("input", "gate_proj"), ("input", "down_proj")}  # up_proj's is gate_proj's
    values = [float(row["sqnr_db"]) for tensor, rows in by_tensor if tensor in inputs for row in rows]
    assert f"E2 {median(values):.1f} and " in sentence


def test_earlier_runs_have_neither(results: Path) -> None:
    tree = write_tree(results, default=Dial(schema=1))
    built = report.build_report("smoke")
    assert built.results.missing == []
    assert sampled_experiments(built.results) == []
    assert "sampled" not in [table.name for table in built.tables]
    assert "sampled_sqnr" not in [figure.name for figure in built.figures]
    assert not (tree / "report" / "tables" / "sampled.csv").exists()
    assert len(built.figures) == len(plots.FIGURES) - 1


def test_earlier_and_present_runs_stand_in_one_report(results: Path) -> None:
    write_tree(results, dials={"E5": Dial(schema=1)})
    found = load_profile_results("smoke")
    assert sampled_experiments(found) == ["E2", "E3", "E4", "E7", "E8"]
    assert set(tables.sampled_table(found)["experiment"]) == {"E2", "E3", "E4", "E7", "E8"}


def test_samples_without_a_finite_sqnr_are_not_drawn(results: Path) -> None:
    path = write_run(results, "E5", "smoke", 0, Dial()) / "saturation.csv"
    table = pd.read_csv(path)
    filled = table["sqnr_db"].notna()
    table.loc[filled & (table["layer"] == "up_proj"), "sqnr_db"] = np.inf
    table.loc[filled & (table["layer"] == "gate_proj"), "sqnr_db"] = np.nan
    table.to_csv(path, index=False)
    found = load_profile_results("smoke")
    assert set(sqnr_by_block(found)["layer"]) == {"down_proj"}
    figure = plot_sampled_sqnr(found)
    assert figure is not None
    assert [axes.get_visible() for axes in figure.axes] == [False, False, True] * 2
    table.loc[filled, "sqnr_db"] = np.nan
    table.to_csv(path, index=False)
    assert plot_sampled_sqnr(load_profile_results("smoke")) is None


@pytest.fixture
def with_gradients(results: Path) -> ProfileResults:
    write_tree(results)
    found = load_profile_results("smoke")
    full = write_run(results / "full", "E5", "smoke", 0, Dial(overrides=(("gradients", True),)))
    found.runs["E5", 0] = open_run(full)
    return found


def test_gradients_stand_apart(with_gradients: ProfileResults) -> None:
    plain = load_profile_results("smoke")
    for kind in ("input", "weight"):
        rows = comparisons.saturation_rows(with_gradients, "E5", kind)
        assert set(rows["kind"]) == {kind}
        pd.testing.assert_frame_equal(
            rows.reset_index(drop=True),
            comparisons.saturation_rows(plain, "E5", kind).reset_index(drop=True),
        )
    table = tables.saturation_table(with_gradients).query("experiment == 'E5'")
    assert list(table["kind"].unique()) == ["input", "weight", "gradient"]
    assert table.query("kind != 'input'")["record_law_pct"].isna().all()
    assert set(tables.sampled_table(with_gradients).query("kind == 'gradient'")["experiment"]) == {"E5"}


def test_gradients_get_their_own_panels(with_gradients: ProfileResults, results: Path) -> None:
    figure = plot_sampled_sqnr(with_gradients)
    assert figure is not None
    assert [axes.get_ylabel().split("\n")[0] for axes in figure.axes[::3]] == [
        "inputs",
        "weights",
        "gradients",
    ]
    directory = results / "full" / "smoke" / "E5" / "seed0"
    lines = {line.get_label() for line in plots.plot_run_saturation(directory).axes[0].lines}
    assert lines == {"inputs", "weights", "gradients"}
    assert "Gradients were quantized as well" in tables.describe_run(directory)
