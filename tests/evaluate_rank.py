"""One of two processes that evaluate together: `python evaluate_rank.py OUT SETTINGS.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tiny import tiny_profile

from pangu_hif8 import experiments
from pangu_hif8.config import EvalConfig, QuantConfig
from pangu_hif8.evaluate import Evaluation, evaluate_model
from pangu_hif8.evaluate_stage import evaluate_run
from pangu_hif8.files import write_json
from pangu_hif8.linear import prepare_qat
from pangu_hif8.models import load_base
from pangu_hif8.prepared import Prepared
from pangu_hif8.ranks import Ranks

NUM_POSITIONS = 4096  # room for 25 exemplars


def few_shot_model(prepared: Prepared) -> tuple[Any, Any]:
    """The tiny model with sharp weights, a block quantized with current scaling, and a long context."""
    model, tokenizer = load_base(prepared.model_dir)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    prepare_qat(model, QuantConfig(amax_compute_algo="current"), 1, 1).set_mode("frozen")
    model.config.max_position_embeddings = NUM_POSITIONS
    return model.eval(), tokenizer


def write(found: Evaluation, folder: Path) -> None:
    """Everything but the times."""
    folder.mkdir(parents=True, exist_ok=True)
    found.items.to_csv(folder / "items.csv", index=False)
    found.heldout.to_csv(folder / "heldout.csv", index=False)
    write_json(folder / "summary.json", found.summary)


def main(out: Path, settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    paths = [Path(settings[name]) for name in ("model", "shards", "benchmarks")]
    prepared, ranks = Prepared(*paths, {}), Ranks("ddp")
    assert ranks.world == 2
    evaluation = EvalConfig.model_validate(settings["evaluation"])
    found = evaluate_model(*few_shot_model(prepared), evaluation, prepared, ranks)
    write(found, out / f"rank{ranks.rank}")
    with mock.patch.object(experiments, "load_profile", return_value=tiny_profile()):
        config = experiments.resolve("E0", "tiny")
    (out / "E0").mkdir(exist_ok=True)
    people = Prepared(paths[0], paths[1], Path(settings["people"]), {})
    evaluate_run(config, people, out / "E0", parallel="ddp")
    assert (out / "E0" / "eval.json").is_file()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
