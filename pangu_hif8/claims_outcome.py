"""Rules for the claims about outcomes: C1, C2, C3, C8, C9. Thresholds and their reasons: judgement.py."""

from __future__ import annotations

from typing import Any

from pangu_hif8 import paper
from pangu_hif8.comparisons import (
    Accuracy,
    ape_interval,
    compare_accuracy,
    compare_answer_nll,
    compare_heldout,
    late_loss_difference,
    num_steps_left_out,
    saturation_interval,
)
from pangu_hif8.judgement import (
    ACCURACY_MARGIN_POINTS,
    EFFECT_SHARE,
    HELDOUT_MARGIN_NATS,
    NOT_RESOLVABLE,
    REPRODUCED,
    SATURATION_FLOOR,
    Part,
    accuracy_numbers,
    ape_limit_pct,
    at_least,
    at_most,
    combine,
    effect_numbers,
    is_lower,
    nats,
    numbers_of,
    percent,
    points,
    shown,
)
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_checks import DOMAINS

DOMAIN_TEXT = {"same_domain": "the same text", "second_domain": "a second domain"}


def near_lossless(results: ProfileResults) -> list[Part]:
    """C1: E8 against E6, by accuracy over all items and by held-out loss on both domains."""
    return [_accuracy_kept(results, "E8", "E6"), heldout_kept(results, "E8", "E6")]


def _accuracy_kept(results: ProfileResults, experiment: str, baseline: str) -> Part:
    found = compare_accuracy(results, experiment, baseline)
    nll = compare_answer_nll(results, experiment, baseline)
    verdict = at_least(found.difference, -ACCURACY_MARGIN_POINTS)
    text = f"{experiment} minus {baseline} is {points(found.difference)} over {found.num_items} items"
    text += shown(verdict, found.difference, ACCURACY_MARGIN_POINTS, "points")
    numbers = accuracy_numbers("accuracy", found, ACCURACY_MARGIN_POINTS)
    return Part(
        "benchmark accuracy", verdict, text, numbers | effect_numbers("answer_nll_difference_nats", nll)
    )


def heldout_kept(results: ProfileResults, experiment: str, baseline: str) -> Part:
    """Is held-out loss within the margin of the baseline's, on both domains?"""
    found = {d: compare_heldout(results, experiment, baseline, d) for d in DOMAINS}
    verdicts = {d: at_most(interval, HELDOUT_MARGIN_NATS) for d, interval in found.items()}
    text = f"held-out loss of {experiment} minus {baseline} is " + " and ".join(
        f"{nats(i)} on {DOMAIN_TEXT[d]}{shown(verdicts[d], i, HELDOUT_MARGIN_NATS)}" for d, i in found.items()
    )
    numbers: dict[str, Any] = {}
    for domain, interval in found.items():
        numbers |= effect_numbers(f"{domain}_difference_nats", interval, HELDOUT_MARGIN_NATS)
    return Part("held-out loss", combine(list(verdicts.values())), text, numbers)


def tracks_loss(results: ProfileResults) -> list[Part]:
    """C2: APE of E8 against E6 over the quantized steps."""
    found = ape_interval(results, "E8", "E6", quantized=True)
    every = ape_interval(results, "E8", "E6", quantized=False)
    verdict = at_most(found, ape_limit_pct())
    text = (
        f"APE is {found.value:.4f}% [{found.low:.4f}, {found.high:.4f}] over the quantized steps"
        f"{shown(verdict, found, ape_limit_pct(), '%')} ({every.value:.4f}% over all), the paper's "
        f"{paper.ape_pct(after_warmup=True):.4f}% ({paper.ape_pct():.4f}%); a step's loss is over "
        f"{results.tokens_per_step:,} tokens here, over {paper.TOKENS_PER_STEP:,} there"
    )
    left_out = num_steps_left_out(results, "E8", "E6")
    text += f"; {left_out} steps that a run skipped are left out" if left_out else ""
    numbers = effect_numbers("ape_quantized_pct", found, ape_limit_pct()) | numbers_of("ape_all_pct", every)
    numbers |= {"num_steps_left_out": left_out}
    return [Part("APE", verdict, text, numbers)]


def hidden_failures(results: ProfileResults) -> list[Part]:
    """C3: each failure must be there downstream, and the training loss must not show it."""
    return [_hidden_saturation(results), _hidden_forgetting(results)]


def _hidden_saturation(results: ProfileResults) -> Part:
    found = [_saturation_hides(results, *pair) for pair in (("E2", "E1"), ("E7", "E6"))]
    verdicts = [part.verdict for part in found]
    verdict = REPRODUCED if REPRODUCED in verdicts else combine(verdicts)
    text = "most-recent against its baseline: " + "; ".join(part.text for part in found)
    numbers = {k: v for part in found for k, v in part.numbers.items()}
    return Part("saturation hides in the training loss", verdict, text, numbers)


def _saturation_hides(results: ProfileResults, experiment: str, baseline: str) -> Part:
    found = compare_accuracy(results, experiment, baseline)
    ape = ape_interval(results, experiment, baseline, quantized=True)
    failure, hidden = is_lower(found.difference, ACCURACY_MARGIN_POINTS), at_most(ape, ape_limit_pct())
    text = f"{experiment} {points(found.difference)}{shown(failure, found.difference, unit='points')}, "
    text += f"APE {ape.value:.3f}%{shown(hidden, ape, ape_limit_pct(), '%') if failure == REPRODUCED else ''}"
    numbers = accuracy_numbers(experiment, found)
    numbers |= effect_numbers(f"{experiment}_ape_pct", ape, ape_limit_pct())
    return Part(experiment, _hidden(failure, hidden), text, numbers)


def _hidden(failure: str, hidden: str) -> str:
    """The verdict on "fails downstream, unseen in training", from the two questions' own verdicts."""
    return hidden if failure == REPRODUCED else failure


def _hidden_forgetting(results: ProfileResults) -> Part:
    forgot = _forgets_items(results)
    late = late_loss_difference(results, "E1", "E6")
    hidden = at_most(late, HELDOUT_MARGIN_NATS)
    text = f"{forgot.text}, while E1's training loss over the last quarter is {nats(late)} from E6's"
    text += shown(hidden, late, HELDOUT_MARGIN_NATS)
    numbers = forgot.numbers | effect_numbers("training_loss_difference_nats", late, HELDOUT_MARGIN_NATS)
    return Part("forgetting hides in the training loss", _hidden(forgot.verdict, hidden), text, numbers)


def forgets(results: ProfileResults) -> list[Part]:
    """C8: E1 against E0 and E6, on the benchmark items and on second-domain text."""
    return [_forgets_items(results), _forgets_text(results)]


def _forgets_items(results: ProfileResults) -> Part:
    smallest = EFFECT_SHARE * paper.forgetting_points()
    found: dict[str, Accuracy] = {b: compare_accuracy(results, "E1", b) for b in ("E0", "E6")}
    verdicts = {b: is_lower(a.difference, smallest) for b, a in found.items()}
    text = "accuracy of E1 is " + " and ".join(
        f"{points(a.difference)} from {b}'s{shown(verdicts[b], a.difference, unit='points')}"
        for b, a in found.items()
    )
    numbers = {k: v for b, a in found.items() for k, v in accuracy_numbers(f"E1_{b}", a).items()}
    numbers |= {"smallest_effect_points": smallest}
    return Part("benchmark accuracy", combine(list(verdicts.values())), text, numbers)


def _forgets_text(results: ProfileResults) -> Part:
    found = {b: compare_heldout(results, "E1", b, "second_domain") for b in ("E0", "E6")}
    verdicts = {b: at_least(i, HELDOUT_MARGIN_NATS) for b, i in found.items()}
    text = "its second-domain loss is " + " and ".join(
        f"{nats(i)} from {b}'s{shown(verdicts[b], i, HELDOUT_MARGIN_NATS)}" for b, i in found.items()
    )
    numbers: dict[str, Any] = {}
    for b, interval in found.items():
        numbers |= effect_numbers(f"E1_{b}_second_domain_nats", interval, HELDOUT_MARGIN_NATS)
    return Part("second-domain loss", combine(list(verdicts.values())), text, numbers)


def neither_alone(results: ProfileResults) -> list[Part]:
    """C9: E5 still loses on ARC, and E7 still saturates."""
    return [_still_loses(results), _still_saturates(results)]


def _still_loses(results: ProfileResults) -> Part:
    arc = [task.name for task in results.settings.evaluation.tasks if task.name.startswith("arc")]
    found = compare_accuracy(results, "E5", "E1", arc or None)
    published = paper.drop_pct("E5", "E1", "arc_challenge") or 0.0
    smallest = EFFECT_SHARE * published / 100 * found.baseline
    where = "ARC" if arc else "all items (no ARC in this profile)"
    drop = "undefined" if found.drop_pct is None else f"{found.drop_pct:.1f}%"
    verdict = is_lower(found.difference, smallest) if smallest > 0 else NOT_RESOLVABLE
    text = f"E5 minus E1 on {where} is {points(found.difference)}, a relative drop of {drop}"
    text += shown(verdict, found.difference, unit="points")
    numbers = accuracy_numbers("arc", found) | {"published_drop_pct": round(published, 4)}
    return Part("max-window alone still loses", verdict, text, numbers)


def _still_saturates(results: ProfileResults) -> Part:
    share = saturation_interval(results, "E7")
    verdict = at_least(share, SATURATION_FLOOR)
    text = f"E7 saturates in {percent(share)} of input (tensor, step) pairs"
    text += shown(verdict, share, SATURATION_FLOOR, "share")
    numbers = effect_numbers("share", share, SATURATION_FLOOR)
    return Part("low rate alone still saturates", verdict, text, numbers)
