"""`make audit` as a whole, on a model so small that it takes a minute: runs, measurements, notebook, page."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
import yaml
from numerals import untraced
from tiny import ARCHITECTURE, DATA, MODEL

from pangu_hif8 import cli
from pangu_hif8.files import read_json

TRAIN = {
    "steps": 4, "batch_size": 4, "micro_batch_size": 2, "bf16_warmup_steps": 1, "amax_history_len": 2,
    "telemetry_every": 2, "lr_scale": 10.0, "optimizer": {"lr_warmup_steps": 1},
}  # fmt: skip
PROFILE = {
    "name": "atom",
    "title": "atom",
    "description": "tests",
    "model": MODEL | {"num_first_hp_blocks": 1, "num_last_hp_blocks": 1, "architecture": ARCHITECTURE},
    "data": DATA | {"num_train_sequences": 24},
    "train": TRAIN,
    "evaluation": {"batch_size": 4, "tasks": [{"name": "people", "num_items": 10, "metric": "acc"}]},
}


def test_one_command_makes_all_and_a_second_nothing(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "atom.yaml").write_text(yaml.safe_dump(PROFILE))
    monkeypatch.setenv("PANGU_HIF8_PROFILES", str(tmp_path / "profiles"))
    assert cli.main(["audit", "--profile", "atom"]) == 0
    shown = capsys.readouterr()
    assert "24 runs to make, E0 seed 0 first" in shown.out
    assert "audit | A6-E8-gradients seed 0 (24 of 24; " in shown.err
    assert "audit | dose: 0.25 taper down (31 of 31)" in shown.err
    page = results / "atom" / "audit"
    summary = read_json(page / "summary.json")
    found = {section["id"]: section for section in summary["sections"]}
    assert [name for name, section in found.items() if section["missing"]] == ["A8"]  # too few steps
    assert summary["missing"] == []
    for section in found.values():
        assert untraced(section["measured"], section["numbers"]) == [], section["id"]
    assert "with the same losses and answers to the last bit" in found["A2"]["measured"]
    assert "data:image/png;base64" in (page / "audit.html").read_text()
    texts = [o for c in nbformat.read(page / "executed.ipynb", 4).cells for o in c.get("outputs", ())]
    assert sum("image/png" in o.get("data", {}) for o in texts) == 7
    assert cli.main(["audit", "--profile", "atom"]) == 0
    assert capsys.readouterr().out == f"audit: up to date; page: {page / 'audit.html'}\n"
