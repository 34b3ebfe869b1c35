"""What the sections of the paper's future work say: layer-wise rates, adaptive warm-up, blocks kept."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pangu_hif8 import beyond_points as bp
from pangu_hif8.beyond_plots import blocks_figure, tradeoffs, warmup_figure
from pangu_hif8.beyond_points import SECOND, TRAINING_TEXT
from pangu_hif8.beyond_sections import QUALITY, Part, Told, costs_table, intervals_table, paper, told
from pangu_hif8.beyond_spread import spread_trace
from pangu_hif8.beyond_words import compared, listed
from pangu_hif8.sensitivity import table_of

# ---- F1 --------------------------------------------------------------------------------------------------


def layerwise(part: Part) -> Told:
    says = (
        "Future work: learning rates by layer. The paper trains every block at one rate, and finds that the "
        "high rate forgets."
    )
    facts, own = part.facts, part.sweep.reference
    measured = " ".join(
        [
            part.against_own(SECOND),
            part.against_own(TRAINING_TEXT),
            part.sentence("accuracy", part.accuracy, "points"),
            part.sentence("the true answers' negative log-likelihood", part.nll),
            _against_baseline(part, SECOND, "loss on the second domain"),
        ]
    )
    panels = [
        ("second domain (nats)", [part.heldout(p.name, SECOND, own) for p in part.points]),
        ("answers' neg. log-likelihood (nats)", [part.nll(p.name, own) for p in part.points]),
    ]
    costs = part.of(bp.learning_given_up)
    for point, cost in zip(part.points, costs, strict=True):
        facts.value(f"{point.name}_cost_nats", cost)
    xlabel = "cost: training text\nminus E5 (nats)"
    title = "Layer-wise learning rates: forgetting against learning given up, minus E5"
    figure = tradeoffs(part.points, costs, panels, xlabel, title)
    return says, measured, costs_table("cost_nats", costs), figure


# ---- F2 --------------------------------------------------------------------------------------------------


def adaptive(part: Part) -> Told:
    steps = paper().train.bf16_warmup_steps
    part.facts.value("paper_warmup_steps", steps)
    says = (
        "Future work: a warm-up that ends when the amax history has settled. "
        f"The paper's is fixed at {steps} steps."
    )
    switch = {p: float(np.mean([bp.switch_step(r) for r in part.results.of(p.name)])) for p in part.points}
    values = {p: part.facts.value(f"{p.name}_switch_step", step, "g") for p, step in switch.items()}
    costs, share = part.of(bp.unquantized_steps_pct), part.of(bp.saturated)
    for point, cost in zip(part.points, costs, strict=True):
        part.facts.value(f"{point.name}_cost_pct", cost)
    measured = " ".join(
        [
            _settled_text(part),
            f"Quantized from step {listed(part.points, lambda point: values[point])}.",
            told(part, "input pairs that saturate", share, "1"),
            part.against_own(TRAINING_TEXT),
            part.against_own(SECOND),
        ]
    )
    panels = [("saturated input pairs (%)", share), (QUALITY, part.quality())]
    trace = spread_trace(part.results.of(part.sweep.reference)[0])
    figure = warmup_figure(trace, part.points, costs, panels)
    columns = costs_table("cost_pct", costs, quantized_from_step=list(switch.values()))
    return says, measured, pd.concat([columns, intervals_table("saturated_pct", share)], axis=1), figure


def _settled_text(part: Part) -> str:
    """How far E8's amaxes have settled, over the tensors that the rule looks at and by kind."""
    trace, facts = spread_trace(part.results.of(part.sweep.reference)[0]), part.facts
    if trace.empty:
        return "No window of the fixed warm-up's run was ever full."
    found = trace.iloc[0].to_dict() | {"least": trace["input"].min()}
    words = {name: facts.value(f"spread_{name}", float(value), ".2g") for name, value in found.items()}
    step = facts.value("full", int(trace.index[0]), "d")
    return (
        f"When {part.sweep.reference}'s window is first full, at step {step}, its relative spread is "
        f"{words['all']} in the median tensor, by which the warm-up ends, but {words['input']} in the median "
        f"input and {words['weight']} in the median weight; the median input's is {words['least']} or more "
        "in the whole run."
    )


# ---- F3 --------------------------------------------------------------------------------------------------


def blocks(part: Part) -> Told:
    model, found = paper().model, part.results.sensitivity
    first, last = model.num_first_hp_blocks, model.num_last_hp_blocks
    part.facts.numbers["paper"] = [first, last]
    says = (
        f"Future work: more blocks in high precision. The paper keeps the first {first} and the last {last}, "
        "without a measurement of which."
    )
    costs = part.of(bp.hp_weights_pct)
    words = {
        p: part.facts.value(f"{p.name}_cost_pct", cost, ".1f", "%")
        for p, cost in zip(part.points, costs, strict=True)
    }
    measured = [
        _sensitivity_text(part),
        "High precision keeps, of the linears' weights and FLOPs, "
        f"{listed(part.points, lambda p: words[p])}.",
        part.against_own(TRAINING_TEXT),
        part.against_own(SECOND),
    ]
    labels = ("cost: share of the linears' FLOPs and weights in high precision (%)", QUALITY)
    figure = blocks_figure(part.points, costs, part.quality(), labels, found)
    return says, " ".join(filter(None, measured)), costs_table("cost_pct", costs), figure


def _sensitivity_text(part: Part) -> str:
    found = part.results.sensitivity
    if found is None:
        return "The sensitivity of the blocks is not measured."
    top, least, facts = found.ranking[0], found.ranking[-1], part.facts
    table = table_of(found)
    facts.numbers["ranking"] = found.ranking
    facts.numbers["sensitivity_nats"] = dict(zip(map(str, table["block"]), table["rise_nats"], strict=True))
    above = facts.value("num_blocks_above_zero", int((table["rise_nats_low"] > 0).sum()), "d")
    facts.numbers["named_blocks"] = [top, least]
    return (
        f"Quantized alone in the untrained model, block {top} raises the held-out loss most, by "
        f"{facts.nats('most_sensitive', found.increase(top))}, block {least} least, by "
        f"{facts.nats('least_sensitive', found.increase(least))}; the rise is above zero for "
        f"{above} of {facts.value('num_blocks', len(table), 'd')} blocks."
    )


def _against_baseline(part: Part, domain: str, what: str) -> str:
    base = part.sweep.baseline
    return compared(part.facts, part.points, what, base, lambda name: part.heldout(name, domain, base))
