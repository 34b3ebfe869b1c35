"""An exported checkpoint scored: to the bit as the model that was exported, and no other tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tiny import tiny_profile

from pangu_hif8 import evaluate_export, prepare
from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.evaluate import Evaluation, evaluate_model
from pangu_hif8.export import export_hif8
from pangu_hif8.linear import prepare_qat
from pangu_hif8.models import load_base
from pangu_hif8.prepared import Prepared


@pytest.fixture
def exported(
    tiny_parts: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Evaluation]:
    """An export of the tiny model, and the evaluation of what was exported."""
    for module in (prepare, evaluate_export):
        monkeypatch.setattr(module, "load_profile", lambda name: tiny_profile())
    monkeypatch.setattr(evaluate_export, "prepare", lambda name: tiny_parts)
    model, tokenizer = load_base(tiny_parts.model_dir)
    prepare_qat(model, QuantConfig(amax_compute_algo="current"), 1, 1).set_mode("frozen")
    export_hif8(model, tmp_path / "out", tokenizer=tokenizer)
    return tmp_path / "out", evaluate_model(model, tokenizer, tiny_profile().evaluation, tiny_parts)


def test_an_export_scores_as_its_model(exported: tuple[Path, Evaluation]) -> None:
    directory, expected = exported
    found = evaluate_export.evaluate_export(directory, "tiny")
    assert found.summary == expected.summary
    pd.testing.assert_frame_equal(found.items, expected.items, check_exact=True)
    pd.testing.assert_frame_equal(found.heldout, expected.heldout, check_exact=True)


def test_an_export_with_another_tokenizer_is_refused(exported: tuple[Path, Evaluation]) -> None:
    directory, _ = exported
    path = directory / "tokenizer.json"
    values = json.loads(path.read_text())
    vocabulary = values["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(values))
    with pytest.raises(UserError, match="another tokenizer than profile tiny"):
        evaluate_export.evaluate_export(directory, "tiny")
