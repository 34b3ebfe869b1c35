"""The dose response on a tiny model: measured once, resumed after a kill, refused when it does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tiny import tiny_profile

from pangu_hif8 import dose, dose_files, experiments, prepare
from pangu_hif8.dose import measure_dose
from pangu_hif8.dose_files import (
    DOMAINS,
    EXACT,
    FACTORS,
    Dose,
    Point,
    dose_fault,
    dose_file,
    dose_task,
    points,
    read_dose,
)
from pangu_hif8.probing import probe_config
from pangu_hif8.results import ProfileResults

FEW = (EXACT, Point(0.5, "saturate", "all"), Point(0.5, "taper", "all"), Point(0.5, "saturate", "down"))


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, results: Path) -> Any:
    """The tiny model with one quantized block, and four points."""
    base = tiny_profile()
    blocks = base.model.model_copy(update={"num_first_hp_blocks": 1, "num_last_hp_blocks": 1})
    chosen = base.model_copy(update={"model": blocks})
    for module in (experiments, prepare, dose, dose_files):
        monkeypatch.setattr(module, "load_profile", lambda name: chosen)
    for module in (dose, dose_files):
        monkeypatch.setattr(module, "points", lambda: FEW)
    return chosen


def read(settings: Any) -> Dose:
    return read_dose(ProfileResults("tiny", settings, {}, []))


def test_every_point_stands_once() -> None:
    found = points()
    assert len(set(found)) == len(found) == 1 + 2 * 3 * (len(FACTORS) - 1)
    assert [point for point in found if point.factor == 1] == [EXACT]
    assert len({point.name for point in found}) == len(found)


def test_the_benchmark_with_the_most_items_is_asked() -> None:
    from pangu_hif8.config import load_profile

    assert [dose_task(load_profile(n)).name for n in ("smoke", "laptop", "paper")] == [
        "people",
        "arc_easy",
        "mmlu",
    ]


def test_an_underestimate_is_a_margin_of_the_inputs_alone() -> None:
    settings = probe_config("smoke", **dose._changes(Point(0.25, "taper", "down"))).quantization
    assert settings is not None and settings.weights is not None
    assert (settings.margin, settings.margin_layers, settings.overflow) == (-2.0, "down", "taper")
    assert settings.weights.margin == 0 and settings.weights.amax_compute_algo == "current"


def test_measured_once_and_read(profile: Any, capsys: pytest.CaptureFixture[str]) -> None:
    measure_dose("tiny")
    assert capsys.readouterr().out.count("dose: ") == len(FEW)
    measure_dose("tiny")
    assert "dose: " not in capsys.readouterr().out
    found = read(profile)
    assert len(found.rows) == len(FEW) * (5 + 3 + 10)
    assert [found.values(EXACT, domain).size for domain in DOMAINS] == [5, 3]
    assert found.accuracy(EXACT).value == 0 and found.loss(EXACT, "same_domain").value == 0
    clipped, tapered, down = (found.values(point, "same_domain") for point in FEW[1:])
    assert abs(clipped - found.values(EXACT, "same_domain")).max() > 0
    assert abs(clipped - tapered).max() > 0 and abs(clipped - down).max() > 0
    measure_dose("tiny", fresh=True)
    assert "dose: " not in capsys.readouterr().out  # this machine has made it


def test_a_killed_measurement_goes_on_and_ends_the_same(
    profile: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure_dose("tiny")
    file = dose_file("tiny")
    whole = file.csv.read_bytes()
    for path in (file.csv, file.record, file.stamp):
        path.unlink()
    capsys.readouterr()
    real, left = dose._measure, iter(range(2))

    def killed(*given: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(dose, "_measure", killed)
    with pytest.raises(KeyboardInterrupt):
        measure_dose("tiny")
    assert not file.csv.exists() and file.partial.is_file()
    file.partial.write_text(file.partial.read_text() + '{"key": "0.5 tap')
    monkeypatch.setattr(dose, "_measure", real)
    capsys.readouterr()
    measure_dose("tiny")
    assert capsys.readouterr().out.count("dose: ") == 2
    assert file.csv.read_bytes() == whole and not file.partial.exists()


def test_what_came_with_the_repository_is_taken_unless_fresh(
    profile: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    measure_dose("tiny")
    dose_file("tiny").stamp.unlink()
    capsys.readouterr()
    measure_dose("tiny")
    assert "dose: " not in capsys.readouterr().out
    measure_dose("tiny", fresh=True)
    assert capsys.readouterr().out.count("dose: ") == len(FEW)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: f.csv.write_text(f.csv.read_text()[:-9]), "dose.csv is missing or damaged"),
        (lambda f: f.record.write_text("[]"), "dose.json is damaged"),
        (lambda f: other(f.record, "settings"), "settings changed"),
        (lambda f: other(f.record, "code"), "code changed"),
    ],
)
def test_what_does_not_fit_is_refused_and_made_again(
    profile: Any, damage: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    measure_dose("tiny")
    damage(dose_file("tiny"))
    assert dose_fault("tiny") == words
    capsys.readouterr()
    measure_dose("tiny")
    assert capsys.readouterr().out.count("dose: ") == len(FEW)
    assert dose_fault("tiny") is None


def other(record: Path, name: str) -> None:
    values = json.loads(record.read_text())
    values["inputs"][name] = "another"
    record.write_text(json.dumps(values))


def test_another_base_model_than_the_runs_is_a_reason(profile: Any, results: Path) -> None:
    measure_dose("tiny")
    known = json.loads(dose_file("tiny").record.read_text())["inputs"]
    directory = results / "tiny" / "E0" / "seed0"
    directory.mkdir(parents=True)
    info = {"model_digest": known["model"], "data_digest": known["data"]}
    (directory / "run.json").write_text(json.dumps(info))
    (directory / "eval.json").write_text(json.dumps({"items_digest": known["items"]}))
    assert dose_fault("tiny") is None
    (directory / "eval.json").write_text(json.dumps({"items_digest": "others"}))
    assert dose_fault("tiny") == "items changed"


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[rows["point"] != FEW[2].name],
        lambda rows: rows.drop(index=rows.index[0]),
        lambda rows: rows.assign(value=float("nan")),
        lambda rows: rows[rows["part"] != "second_domain"],
        lambda rows: rows.drop(columns="nll"),
    ],
)
def test_rows_that_are_no_dose_response_are_refused(profile: Any, change: Any) -> None:
    measure_dose("tiny")
    rows = pd.read_csv(dose_file("tiny").csv, dtype={"name": str})
    with pytest.raises(dose_files.Unusable, match=r"dose\.csv"):
        dose_files._checked(change(rows))
