"""One sentence for each figure of the report, computed from the same data that the figure shows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pangu_hif8.comparisons import (
    accuracy_interval,
    ape_interval,
    compare_accuracy,
    compare_answer_nll,
    compare_heldout,
    expected_share,
    jitter_table,
    loss_pairs,
    mean_loss,
    num_steps_left_out,
    overshoot,
    quantized_pairs,
    saturation_interval,
    saturation_rows,
)
from pangu_hif8.judgement import nats, points
from pangu_hif8.late_ape import MAX_WINDOW, ape_gap, common_start, switches_text
from pangu_hif8.late_ape import late_ape as late_ape_of
from pangu_hif8.metrics import Interval
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import KINDS, each_once
from pangu_hif8.sampled import sampled_experiments, sampled_rows, sqnr_by_block


def _listed(names: list[str], text: Callable[[str], str]) -> str:
    return ", ".join(f"{name} {text(name)}" for name in names)


def _trained(results: ProfileResults) -> list[str]:
    return [name for name in results.experiments() if results.of(name)[0].steps is not None]


def _quantized(results: ProfileResults) -> list[str]:
    return [name for name in results.experiments() if results.of(name)[0].saturation is not None]


def training_loss(results: ProfileResults) -> str:
    """Mean loss of the last quarter."""
    losses = {name: mean_loss(results, name) for name in _trained(results)}
    found = _listed([n for n in losses if np.isfinite(losses[n])], lambda name: f"{losses[name]:.3f}")
    return f"Mean training loss over the last quarter of the steps, in nats: {found}."


def ape(results: ProfileResults) -> str:
    """APE of each quantized run, smallest and largest first."""
    found = {q: ape_interval(results, q, b, quantized=True).value for q, b in loss_pairs(results)}
    low, high = min(found, key=lambda n: found[n]), max(found, key=lambda n: found[n])
    text = (
        f"Over the quantized steps the loss differs from its baseline's by {found[low]:.3f}% ({low}) to "
        f"{found[high]:.3f}% ({high}) on average."
    )
    left_out = {q: num for q, b in loss_pairs(results) if (num := num_steps_left_out(results, q, b))}
    listed = _listed(list(left_out), lambda name: str(left_out[name]))
    text += f" Quantized are: {switches_text(results)}."
    return text + (f" Steps left out because a run skipped them: {listed}." if left_out else "")


def late_ape(results: ProfileResults) -> str:
    """`late_ape_text`, and how to read its figure."""
    return late_ape_text(results) + seeds_note(results)


def late_ape_text(results: ProfileResults) -> str:
    """APE of each run after every warm-up, and how far from max-window's at the same learning rate."""
    found = {q: i for q, b in loss_pairs(results) if (i := late_ape_of(results, q, b))}
    shown = _listed(list(found), lambda n: _pct(found[n]))
    gaps = {name: gap for name in found if (gap := ape_gap(results, name))}
    text = f"APE over the steps from {common_start(results)} on, which all quantized runs quantize: {shown}."
    if gaps:
        paired = _listed(list(gaps), lambda n: f"minus {MAX_WINDOW[n]} {_pct(gaps[n], '+')}")
        text += (
            f" Paired by step: {paired}; {_clear([n for n, d in gaps.items() if d.low > 0 or d.high < 0])}."
        )
    return text


def _pct(interval: Interval, sign: str = "") -> str:
    value, low, high = (f"{v:{sign}.4f}" for v in (interval.value, interval.low, interval.high))
    return f"{value}% [{low}, {high}]"


def seeds_note(results: ProfileResults) -> str:
    """How to read a dot plot of several seeds; empty with one."""
    num = len(results.seeds())
    return f" A small tick is one of the {num} seeds, a bar covers items and seeds." if num > 1 else ""


def saturation_over_steps(results: ProfileResults) -> str:
    """Share of saturated inputs and of saturated weights, by experiment."""
    return f"Saturated (tensor, step) pairs, inputs and weights: {_by_kind(results, None)}."


def _by_kind(results: ProfileResults, layer: str | None) -> str:
    def text(name: str) -> str:
        shares = (saturation_interval(results, name, kind, layer).value for kind in KINDS)
        return " and ".join(f"{100 * share:.1f}%" for share in shares)

    return _listed(_quantized(results), text)


def saturation_by_layer(results: ProfileResults) -> str:
    """Shares of the down_proj inputs and weights; the record law for inputs."""
    expected = {n: e for n in _quantized(results) if (e := expected_share(results, n)) is not None}
    law = _listed(list(expected), lambda name: f"{100 * expected[name]:.1f}%")
    text = f"Saturated pairs of down_proj, inputs and weights: {_by_kind(results, 'down_proj')}"
    return text + (f"; inputs of independent steps would: {law}." if law else ".")


def saturation_by_block(results: ProfileResults) -> str:
    """The block whose down_proj input saturates most, by experiment."""

    def text(name: str) -> str:
        rows = saturation_rows(results, name, "input", "down_proj")
        shares = rows.groupby("block")["saturated"].mean() * 100
        return f"{shares.max():.0f}%" + (f" (block {shares.idxmax()})" if shares.max() > 0 else "")

    return f"Highest share of any block: {_listed(_quantized(results), text)}."


def overshoot_sizes(results: ProfileResults) -> str:
    """Median and largest overshoot among saturated inputs."""

    def text(name: str) -> str:
        found = overshoot(saturation_rows(results, name, "input"))
        return f"{np.median(found):.2f} and {found.max():.2f}" if found.size else "none"

    return f"Median and largest amax/estimate among saturated inputs: {_listed(_quantized(results), text)}."


def scale_jitter(results: ProfileResults) -> str:
    """Median jitter of the input scales."""

    def text(name: str) -> str:
        found = jitter_table(results, name, "input")["jitter"]
        return f"{found.median():.3f}" if len(found) else "too few steps"

    return f"Median jitter of input scales in octaves: {_listed(_quantized(results), text)}."


def sampled_sqnr(results: ProfileResults) -> str:
    """Median SQNR of inputs and weights by experiment, and the place where it is lowest."""

    def text(name: str) -> str:
        medians = each_once(sampled_rows(results, name)).groupby("kind")["sqnr_db"].median()
        return " and ".join(f"{medians[kind]:.1f}" for kind in KINDS)

    low = sqnr_by_block(results).sort_values("sqnr_db", kind="stable").iloc[0]
    return (
        "Median SQNR of inputs and of weights on the sampled steps, in dB: "
        f"{_listed(sampled_experiments(results), text)}; the lowest of any block is {low['sqnr_db']:.1f} "
        f"({low['experiment']}, {low['kind']} of {low['layer']} in block {low['block']})."
    )


def benchmarks(results: ProfileResults) -> str:
    """Smallest and largest accuracy of each task."""
    parts = []
    for task in results.settings.evaluation.tasks:
        found = {n: accuracy_interval(results, n, task.name).value for n in results.experiments()}
        low, high = min(found, key=lambda n: found[n]), max(found, key=lambda n: found[n])
        parts.append(f"{task.name} from {found[low]:.1f}% ({low}) to {found[high]:.1f}% ({high})")
    return f"Accuracy lies between: {'; '.join(parts)}.{seeds_note(results)}"


def drops(results: ProfileResults) -> str:
    """Pooled paired differences, and how many are told from zero."""
    found = {q: compare_accuracy(results, q, b).difference for q, b in quantized_pairs(results)}
    clear = [name for name, d in found.items() if d.low > 0 or d.high < 0]
    listed = ", ".join(f"{name} {points(d)}" for name, d in found.items())
    return f"Over all items, against the matched baseline: {listed}; {_clear(clear)}.{seeds_note(results)}"


def _clear(names: list[str]) -> str:
    return f"told from zero: {', '.join(names)}" if names else "none is told from zero"


def answer_nll(results: ProfileResults) -> str:
    """What training did to the true answers, and what quantization did, pooled over all items."""
    trained = {n: compare_answer_nll(results, n, "E0") for n in _trained(results) if results.pairs(n, "E0")}
    found = {q: compare_answer_nll(results, q, b) for q, b in quantized_pairs(results)}
    parts = []
    if trained:
        worst, best = (
            max(trained, key=lambda n: trained[n].value),
            min(trained, key=lambda n: trained[n].value),
        )
        ends = f"{nats(trained[best])} ({best}) to {nats(trained[worst])} ({worst})"
        parts.append(f"against E0 it moved by {ends}")
    if found:
        listed = ", ".join(f"{name} {nats(d)}" for name, d in found.items())
        clear = [name for name, d in found.items() if d.low > 0 or d.high < 0]
        parts.append(f"against the matched baseline: {listed}; {_clear(clear)}")
    return f"The true answers' negative log-likelihood, per item: {'; '.join(parts)}.{seeds_note(results)}"


def heldout(results: ProfileResults) -> str:
    """The largest rise or smallest fall on the second domain."""
    names = [n for n in _trained(results) if results.pairs(n, "E0")]
    found = {n: compare_heldout(results, n, "E0", "second_domain") for n in names}
    worst, best = max(found, key=lambda n: found[n].value), min(found, key=lambda n: found[n].value)
    ends = f"{nats(found[best])} ({best}) to {nats(found[worst])} ({worst})"
    return f"On the second domain the loss moved by {ends}.{seeds_note(results)}"
