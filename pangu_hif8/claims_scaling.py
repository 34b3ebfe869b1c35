"""Rules for the claims about scales: C4, C5, C6, C7, C10. Thresholds and their reasons: judgement.py.

They are judged on the inputs of the quantized layers. Weights drift by less than the step of the format;
their shares stand in the tables.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pangu_hif8.claims_outcome import heldout_kept
from pangu_hif8.comparisons import (
    compare_accuracy,
    expected_share,
    jitter_gap,
    overshoot,
    saturation_interval,
    saturation_rows,
    share_interval,
)
from pangu_hif8.errors import UserError
from pangu_hif8.judgement import (
    ACCURACY_MARGIN_POINTS,
    EXACT_SHARE,
    NOT_REPRODUCED,
    NOT_RESOLVABLE,
    REPRODUCED,
    SATURATION_FLOOR,
    WINDOW_RATIO,
    Part,
    accuracy_numbers,
    at_least,
    at_most_times,
    effect_numbers,
    exactly,
    is_lower,
    numbers_of,
    percent,
    points,
    shown,
)
from pangu_hif8.results import ProfileResults, recorded_rows
from pangu_hif8.run_checks import each_once

TENSOR = ["seed", "block", "layer", "kind"]
RELATIVE_TOLERANCE = 1e-6  # the CSV keeps nine digits of a float32


def most_recent_saturates(results: ProfileResults) -> list[Part]:
    """C4: E2 and E7 saturate about as the record law says, and the estimate is the step before's amax."""
    return [_saturates(results, "E2"), _saturates(results, "E7"), _one_late(results, ("E2", "E7"))]


def _saturates(results: ProfileResults, experiment: str) -> Part:
    share = saturation_interval(results, experiment)
    expected = expected_share(results, experiment)
    over = overshoot(saturation_rows(results, experiment, "input"))
    text = f"{experiment} saturates in {percent(share)} of input (tensor, step) pairs"
    text += f", by a factor of {np.median(over):.2f} (median)" if over.size else ""
    verdict = at_least(share, SATURATION_FLOOR)
    text += shown(verdict, share, SATURATION_FLOOR, "share")
    numbers = effect_numbers("share", share, SATURATION_FLOOR)
    numbers |= {"record_law_share": expected, "num_saturated": int(over.size)}
    return Part(f"{experiment} saturates", verdict, text, numbers)


def _one_late(results: ProfileResults, experiments: tuple[str, ...]) -> Part:
    shares = []
    for experiment in experiments:
        rows = _with_past(saturation_rows(results, experiment, "input"))
        shares.append(_equal(rows, "amax_1"))
    text = f"the estimate is the step before's amax in {100 * min(shares):.1f}% of pairs or more"
    return Part("one step late", exactly(min(shares) >= EXACT_SHARE), text, {"smallest_share": min(shares)})


def _with_past(rows: pd.DataFrame) -> pd.DataFrame:
    """Add amax_1 and amax_2, the tensor's amax one and two steps earlier; keep rows that have both."""
    rows = rows.sort_values([*TENSOR, "step"])
    groups = rows.groupby(TENSOR)["amax"]
    return rows.assign(amax_1=groups.shift(1), amax_2=groups.shift(2)).dropna(
        subset=["amax", "amax_1", "amax_2"]
    )


def _equal(rows: pd.DataFrame, column: str) -> float:
    """Share of rows whose estimate equals a column, in the seed where it is smallest."""
    if not len(rows):
        raise UserError("too few steps to compare estimates with the amax before")
    equal = np.isclose(rows["estimate"], rows[column], rtol=RELATIVE_TOLERANCE, atol=0)
    return float(pd.Series(equal).groupby(rows["seed"].to_numpy()).mean().min())


def smoothing_fails(results: ProfileResults) -> list[Part]:
    """C5: E3 saturates where an input's amax turns upward, and is worse for it than E1."""
    return [_saturates_at_turns(results), _harmed(results)]


def _saturates_at_turns(results: ProfileResults) -> Part:
    rows = _with_past(saturation_rows(results, "E3", "input"))
    turns = rows[(rows["amax"] > rows["amax_1"]) & (rows["amax_1"] < rows["amax_2"])]
    if turns.empty:
        return Part("saturates at upward turns", NOT_RESOLVABLE, "no input's amax turned upward", {})
    share, every = share_interval(turns), saturation_interval(results, "E3")
    verdict = at_least(share, SATURATION_FLOOR)
    text = (
        f"E3 saturates in {percent(share)} of upward turns of an input's amax ({percent(every)} of all pairs)"
        f"{shown(verdict, share, SATURATION_FLOOR, 'share')}"
    )
    numbers = effect_numbers("turn_share", share, SATURATION_FLOOR) | numbers_of("share", every)
    return Part("saturates at upward turns", verdict, text, numbers | {"num_turns": len(turns)})


def _harmed(results: ProfileResults) -> Part:
    accuracy, heldout = compare_accuracy(results, "E3", "E1"), heldout_kept(results, "E3", "E1")
    by_items = is_lower(accuracy.difference, ACCURACY_MARGIN_POINTS)
    by_text = {REPRODUCED: NOT_REPRODUCED, NOT_REPRODUCED: REPRODUCED}.get(heldout.verdict, NOT_RESOLVABLE)
    both_absent = by_items == by_text == NOT_REPRODUCED
    harmed = REPRODUCED in (by_items, by_text)
    verdict = REPRODUCED if harmed else NOT_REPRODUCED if both_absent else NOT_RESOLVABLE
    text = f"E3 minus E1 is {points(accuracy.difference)}"
    text += f"{shown(by_items, accuracy.difference, unit='points')}; {heldout.text}"
    return Part("does harm", verdict, text, accuracy_numbers("accuracy", accuracy) | heldout.numbers)


def window_holds(results: ProfileResults) -> list[Part]:
    """C6: nothing inside the window saturates, far less saturates than with most-recent, no harm done."""
    parts = [_inside_window(results, name) for name in ("E5", "E8")]
    parts += [_saturates_less(results, *pair) for pair in (("E5", "E2"), ("E8", "E7"))]
    return [*parts, *[heldout_kept(results, *pair) for pair in (("E5", "E1"), ("E8", "E6"))]]


def _inside_window(results: ProfileResults, experiment: str) -> Part:
    rows = _with_window_max(results, experiment)
    inside = rows[rows["amax"] <= rows["window_max"]]
    broken = int(inside["saturated"].sum())
    text = f"of {len(inside)} {experiment} pairs that stay inside their window, {broken} saturate"
    numbers = {"num_inside": len(inside), "num_broken": broken}
    return Part(f"{experiment} inside its window", exactly(broken == 0 and len(inside) > 0), text, numbers)


def _with_window_max(results: ProfileResults, experiment: str) -> pd.DataFrame:
    """Quantized input rows with the maximum of the last w amaxes, those of the warm-up included."""
    kept = []
    for run in results.of(experiment):
        assert run.config.quantization is not None
        window = run.config.quantization.amax_history_len
        recorded = recorded_rows(run)
        rows = each_once(recorded[recorded["kind"] == "input"]).sort_values("step").assign(seed=run.seed)
        past = rows.groupby(TENSOR)["amax"].transform(lambda x, w=window: x.shift(1).rolling(w, 1).max())
        kept.append(rows.assign(window_max=past)[rows["step"] >= run.info["quantized_from_step"]])
    return pd.concat(kept, ignore_index=True).dropna(subset=["window_max"])


def _saturates_less(results: ProfileResults, experiment: str, other: str) -> Part:
    share, reference = saturation_interval(results, experiment), saturation_interval(results, other)
    verdict = at_most_times(share, WINDOW_RATIO, reference) if reference.value > 0 else NOT_RESOLVABLE
    limit = WINDOW_RATIO * reference.high
    text = f"{experiment} saturates in {percent(share)} of pairs"
    text += f"{shown(verdict, share, limit, 'share')}, {other} in {percent(reference)}"
    numbers = effect_numbers("share", share, limit) | numbers_of("most_recent_share", reference)
    numbers |= {"record_law_share": expected_share(results, experiment)}
    return Part(f"{experiment} saturates less than {other}", verdict, text, numbers)


def current_jitters(results: ProfileResults) -> list[Part]:
    """C7: E4 never saturates, and its scales move more from step to step than max-window's."""
    return [_never_saturates(results), _jitters(results)]


def _never_saturates(results: ProfileResults) -> Part:
    tables = [saturation_rows(results, "E4", kind) for kind in ("input", "weight")]
    num, hits = sum(map(len, tables)), int(sum(table["saturated"].sum() for table in tables))
    text = f"E4 saturates in {hits} of {num} (tensor, step) pairs"
    return Part("never saturates", exactly(hits == 0), text, {"num_saturated": hits, "num_pairs": num})


def _jitters(results: ProfileResults) -> Part:
    found = jitter_gap(results, "E4", "E5")
    if found is None:
        return Part("its scale jitters", NOT_RESOLVABLE, "too few steps for a jitter", {})
    gap = found.difference
    verdict = REPRODUCED if gap.low > 0 else NOT_REPRODUCED if gap.high < 0 else NOT_RESOLVABLE
    text = (
        f"its input scales move by {found.first:.3f} octaves (std) from step to step, max-window's by "
        f"{found.second:.3f}{shown(verdict, gap, unit='octaves')}; the cost of a second pass is not judged, "
        f"as fake quantization makes one for every estimator{_cost(results)}"
    )
    numbers = {"jitter_current": round(found.first, 6), "jitter_window": round(found.second, 6)}
    return Part("its scale jitters", verdict, text, numbers | effect_numbers("jitter_gap", gap))


def _cost(results: ProfileResults) -> str:
    current, window = (_step_seconds(results, name) for name in ("E4", "E5"))
    return f" (E4's step took {current / window:.2f} times E5's)" if current and window else ""


def _step_seconds(results: ProfileResults, experiment: str) -> float | None:
    found = [run.timing.get("seconds_per_step_median") for run in results.of(experiment)]
    numeric = [float(value) for value in found if isinstance(value, (int, float))]
    return float(np.mean(numeric)) if numeric else None


def warmup_fills(results: ProfileResults) -> list[Part]:
    """C10: the history is filled at the switch; that it steadies the weights no run isolates."""
    return [_filled(results), _steadies(results)]


def _filled(results: ProfileResults) -> Part:
    rows = _with_window_max(results, "E8")
    first = rows[rows["step"] == rows["step"].min()]
    share = _equal(first, "window_max")
    text = (
        f"at E8's switch (step {int(first['step'].iloc[0])}) {100 * share:.1f}% of input scales come from "
        "the recorded history"
    )
    return Part("fills the history", exactly(share >= EXACT_SHARE), text, {"share_from_history": share})


def _steadies(results: ProfileResults) -> Part:
    shares = []
    for name in ("E8", "E5"):
        rows = saturation_rows(results, name, "input")
        window = rows["step"] < rows["step"].min() + results.settings.train.amax_history_len
        shares.append(float(rows.loc[window, "saturated"].mean()))
    text = (
        f"in the first window after the switch {100 * shares[0]:.1f}% of E8's pairs saturate, against "
        f"{100 * shares[1]:.1f}% of E5's, which differs in learning rate too: no run of the eight isolates "
        "the warm-up"
    )
    numbers = {"E8_first_window_share": shares[0], "E5_first_window_share": shares[1]}
    return Part("steadies the weights", NOT_RESOLVABLE, text, numbers)
