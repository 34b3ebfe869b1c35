"""torch.compile under DDP: the losses and estimates of one process that is not compiled."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tiny_runs import Job, execute, on_ranks, prepared_here

FOUR = {"batch_size": 4, "micro_batch_size": 2, "lr_scale": 1.0}


def test_compiled_on_two_ranks_as_plain_on_one(tmp_path: Path) -> None:
    prepared_here()
    execute(Job("E8", settings=FOUR), tmp_path / "plain")
    job = Job("E8", {"compile": True}, FOUR)
    ranks = on_ranks([[job], [job]], [tmp_path / "compiled"], timeout_s=400.0)
    assert [rank.status for rank in ranks] == [0, 0], ranks[0].text[-2000:] + ranks[1].text[-2000:]
    one, two = (pd.read_csv(tmp_path / name / "steps.csv") for name in ("plain", "compiled"))
    assert list(two["quantized"]) == list(one["quantized"]) and one["quantized"].any()
    # float32 sums in another order; a rounding to 8 bits that flips would show from 1e-4 on
    assert two["loss"].to_numpy() == pytest.approx(one["loss"].to_numpy(), rel=1e-5)
    a, b = (pd.read_csv(tmp_path / name / "saturation.csv")["amax"] for name in ("plain", "compiled"))
    assert b.to_numpy() == pytest.approx(a.to_numpy(), rel=1e-5)
