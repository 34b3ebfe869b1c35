"""The committed laptop run: it is what its labels say, and small enough to be read where it lies."""

from __future__ import annotations

import json
import re
import subprocess

import pandas as pd
import pytest

from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.paths import ROOT
from pangu_hif8.telemetry import read_telemetry

LAPTOP = ROOT / "results" / "laptop"
TRAINED = [e for e in EXPERIMENTS.values() if e.lr is not None]
QUANTIZED = [e for e in TRAINED if e.amax_compute_algo]

pytestmark = pytest.mark.skipif(
    not (LAPTOP / "E8" / "seed0" / "run.json").exists(), reason="results/laptop is not in this checkout"
)


def run(name: str) -> dict:
    return json.loads((LAPTOP / name / "seed0" / "run.json").read_text())


def saturated(name: str, **where: str) -> pd.Series:
    table = pd.read_csv(LAPTOP / name / "seed0" / "saturation.csv")
    for column, value in where.items():
        table = table[table[column] == value]
    return table["saturated"].dropna()


def test_baselines_convert_nothing_and_the_others_25_blocks() -> None:
    converted = {e.id: run(e.id)["num_converted_linears"] for e in TRAINED}
    assert converted == {e.id: 75 if e.amax_compute_algo else 0 for e in TRAINED}


def test_all_start_from_the_same_weights_and_tokens() -> None:
    runs = [run(e.id) for e in TRAINED]
    assert len({r["model_digest"] for r in runs}) == len({r["data_digest"] for r in runs}) == 1
    first = {pd.read_csv(LAPTOP / r["experiment"] / "seed0" / "steps.csv")["loss"][0] for r in runs[::5]}
    assert len(first) == 1  # E1 and E6: the first step is before any update


def test_quantization_switched_on_when_it_should() -> None:
    for e in QUANTIZED:
        facts = run(e.id)
        assert facts["quantized_from_step"] == facts["config"]["quantization"]["bf16_warmup_steps"] + 1
    assert run("E1")["quantized_from_step"] is None


def test_telemetry_covers_every_tensor_and_samples_every_twentieth_step() -> None:
    found = read_telemetry(LAPTOP / "E8" / "seed0")
    assert len(found) == 60 * 75 * 2
    sampled = found[["clipped_share", "flushed_share", "sqnr_db"]].notna().all(axis=1)
    assert set(found["step"][sampled]) == {20, 40, 60}
    assert sampled.sum() == 3 * 75 * 2
    assert list(found["saturated"].dropna().astype(int)) == list(saturated("E8"))
    assert found["amax"].notna().all()


def test_saturation_of_down_proj_inputs_is_what_the_estimators_promise() -> None:
    share = {e.id: saturated(e.id, layer="down_proj", kind="input").mean() for e in QUANTIZED}
    assert 0.35 <= share["E2"] <= 0.65
    assert 0.35 <= share["E7"] <= 0.65
    assert share["E5"] < 0.5 * share["E2"]
    assert share["E8"] < 0.5 * share["E7"]
    assert saturated("E4").sum() == 0


def test_readme_shows_files_that_exist_and_has_no_blanks() -> None:
    text = (ROOT / "README.md").read_text()
    assert not re.findall(r"@[A-Z]+@", text)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target


def test_nothing_committed_names_a_folder_of_the_machine_that_made_it() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    kinds = (".ipynb", ".html", ".json", ".csv", ".md", ".yaml", ".py", ".svg")
    files = [ROOT / name for name in listed.stdout.split("\0") if name.endswith(kinds)]
    assert files
    found = re.compile(rf"PosixPath\('/|{re.escape(str(ROOT))}/")
    assert not [path for path in files if path.exists() and found.search(path.read_text())]


def test_committed_results_are_small_and_hold_no_weights() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "results"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert not [f for f in files if f.suffix in (".safetensors", ".bin", ".pt", ".stamp")]
    of_the_eight = [
        f for f in files if "laptop" in f.parts and "audit" not in f.parts and "custom" not in str(f)
    ]
    assert sum(f.stat().st_size for f in of_the_eight if f.exists()) < 15e6
    assert sum(f.stat().st_size for f in files if f.exists()) < 40e6  # with audit, tiny and its sweeps
