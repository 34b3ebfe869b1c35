"""What the sections on the scale's two settings say: the window's length, and where amax is mapped to."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pangu_hif8 import beyond_points as bp
from pangu_hif8.beyond_plots import sweep_and_tradeoff, tradeoffs
from pangu_hif8.beyond_points import SECOND, TRAINING_TEXT
from pangu_hif8.beyond_sections import QUALITY, Part, Told, costs_table, intervals_table, paper, told
from pangu_hif8.beyond_words import listed
from pangu_hif8.metrics import Interval

# ---- W ---------------------------------------------------------------------------------------------------


def window(part: Part) -> Told:
    length = paper().train.amax_history_len
    part.facts.value("paper_window", length)
    says = f"The window is {length} steps; the paper varies it nowhere."
    inputs, weights = part.of(bp.saturated), part.of(lambda r, n: bp.saturated(r, n, "weight"))
    slack = part.of(bp.slack)
    apes = part.of(lambda r, n: bp.ape(r, n, part.sweep.baseline))
    octaves = [
        part.facts.value(f"{p.name}_slack_octaves", s.value, ".3f")
        for p, s in zip(part.points, slack, strict=True)
    ]
    spoken = dict(zip(part.points, octaves, strict=True))
    measured = " ".join(
        [
            told(part, "input pairs that saturate", inputs, "1"),
            f"The estimate leaves unused, in octaves, {listed(part.points, lambda p: spoken[p])}.",
            told(part, "APE after the warm-up", apes, "3"),
            part.against_own(TRAINING_TEXT),
            part.against_own(SECOND),
        ]
    )
    series = [
        ("saturated pairs (%)", {"input": inputs, "weight": weights}),
        ("slack (octaves)", {"input": slack}),
        ("APE (%)", {"input": apes}),
    ]
    tradeoff = ("cost: slack (octaves)", QUALITY, [s.value for s in slack])
    figure = sweep_and_tradeoff(
        part.points, series, "window (steps)", (*tradeoff, part.quality()), "Length of the amax window"
    )
    tables = {
        "saturated_pct": inputs,
        "weights_saturated_pct": weights,
        "slack_octaves": slack,
        "ape_pct": apes,
    }
    return says, measured, pd.concat([intervals_table(n, i) for n, i in tables.items()], axis=1), figure


# ---- T ---------------------------------------------------------------------------------------------------


def target(part: Part) -> Told:
    own = bp.target(part.results.of(part.sweep.reference)[0])
    says = (
        f"amax is mapped to {part.facts.value('paper_target', own, 'g')}, up to which HiF8 has its finest "
        "relative steps; the paper tries no other value."
    )
    inputs, sqnr = part.of(bp.saturated), part.of(bp.sqnr_db)
    zeros = [i and i.scaled(100) for i in part.of(bp.flushed)]
    costs = part.of(bp.noise_pct)
    measured = [told(part, "input pairs that saturate", inputs, "1")]
    sampled = all(i is not None for i in zeros) and bool(np.isfinite(sqnr).all())
    if sampled:
        decibel = {
            p: part.facts.value(f"{p.name}_sqnr_db", s, ".2f", " dB")
            for p, s in zip(part.points, sqnr, strict=True)
        }
        measured += [
            told(part, "input elements that become zero", zeros, "4"),
            f"The inputs' median SQNR is {listed(part.points, lambda p: decibel[p])}.",
        ]
    measured += [part.against_own(TRAINING_TEXT), part.against_own(SECOND)]
    figure = _target_figure(part, inputs, zeros, sqnr, costs) if sampled else _unsampled(part, inputs)
    columns = [intervals_table("saturated_pct", inputs), intervals_table("flushed_to_zero_pct", zeros)]
    columns.append(costs_table("noise_power_pct", costs, sqnr_db=sqnr))
    return says, " ".join(measured), pd.concat(columns, axis=1), figure


def _target_figure(
    part: Part, inputs: list[Interval], zeros: list[Interval], sqnr: list[float], costs: list[float]
) -> Figure:
    series = [
        ("saturated input pairs (%)", {"input": inputs}),
        ("elements flushed to zero (%)", {"input": zeros}),
        ("median SQNR (dB)", {"input": [Interval(value, value, value) for value in sqnr]}),
    ]
    xlabel, ylabel = "cost: noise / signal power (%)", QUALITY
    tradeoff = (xlabel, ylabel, costs, part.quality())
    return sweep_and_tradeoff(part.points, series, "amax mapped to", tradeoff, "Where amax is mapped to")


def _unsampled(part: Part, inputs: list[Interval]) -> Figure:
    panels = [("saturated input pairs (%)", inputs), (QUALITY, part.quality())]
    settings = [point.setting for point in part.points]
    return tradeoffs(part.points, settings, panels, "amax mapped to", "Where amax is mapped to")
