"""Which of the paper's own differences exceed the noise of its benchmarks?

The authors published one score a run and benchmark, and no answers. So only bounds can be had. As if the two
runs had answered other questions: Fisher's exact test of two independent shares, which is too strict,
because both answered the same ones. And the best case for a difference: every question whose answer changed
went the same way, so that the exact McNemar test sees no change in the other direction; a difference that
is not significant even then can't be told from chance by any test of these scores. Between the two: the
most answers that may have changed, in both directions together, with the difference still significant. All
p-values are two-sided and scipy's; they are about these questions and say nothing of other seeds.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from pangu_hif8 import paper
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.metrics import LEVEL

SIGNIFICANCE = 1 - LEVEL
MATCHED, RATE, OTHER = "quantized against its baseline", "learning rate", "other"
NAMES = {
    "mmlu": "MMLU",
    "gsm8k": "GSM8K",
    "minerva_math": "MATH",
    "hellaswag": "HellaSwag",
    "arc_easy": "ARC-Easy",
    "arc_challenge": "ARC-Challenge",
}


@cache
def _table() -> pd.DataFrame:
    rows = [_row(*pair, task) for pair in _pairs() for task in NAMES]
    return pd.DataFrame([row for row in rows if row is not None])


def published_noise_table() -> pd.DataFrame:
    """One row per pair of published runs and benchmark that both have, matched pairs first.

    Columns: experiment, other, kind, benchmark, num_items; accuracy_pct, other_accuracy_pct,
    difference_points (the run minus the other), difference_questions (points times items, as printed),
    num_questions (the same between the whole counts nearest to the scores); stderr_points (of the other's
    accuracy alone) and difference_in_stderr; p_unpaired (Fisher), p_best_case (exact McNemar with every
    change in one direction), most_changed_questions and most_changed_pct (of the items; more changed
    answers than that, and McNemar is not significant; 0 where it can't be), and the two answers
    significant_at_best and below_one_stderr.
    """
    return _table().copy()


def _pairs() -> list[tuple[str, str]]:
    """(run, compared with): matched pairs, the two baselines, then every other pair."""
    published = list(paper.RUN_OF_EXPERIMENT)
    matched = [(n, b) for n in reversed(published) if (b := EXPERIMENTS[n].baseline) in published and b]
    first = [*matched, ("E1", "E6")]
    rest = [(b, a) for a, b in combinations(published, 2)]
    return first + [pair for pair in rest if not {pair, pair[::-1]} & set(first)]


def _kind(experiment: str, other: str) -> str:
    if EXPERIMENTS[experiment].baseline == other:
        return MATCHED
    return RATE if (experiment, other) == ("E1", "E6") else OTHER


def _row(experiment: str, other: str, task: str) -> dict[str, Any] | None:
    value, base = paper.accuracy(experiment, task), paper.accuracy(other, task)
    if value is None or base is None:
        return None
    num, points = paper.num_items(task), value - base
    stderr = 100 * float(np.sqrt(base / 100 * (1 - base / 100) / num))
    changed = num_right(experiment, task) - num_right(other, task)
    best, most = best_case_p(abs(changed)), most_changed(abs(changed), num)
    return {
        "experiment": experiment,
        "other": other,
        "kind": _kind(experiment, other),
        "benchmark": task,
        "num_items": num,
        "accuracy_pct": value,
        "other_accuracy_pct": base,
        "difference_points": round(points, 2),
        "difference_questions": round(points / 100 * num, 2),
        "num_questions": changed,
        "stderr_points": stderr,
        "difference_in_stderr": abs(points) / stderr,
        "p_unpaired": _unpaired_p(num_right(experiment, task), num_right(other, task), num),
        "p_best_case": best,
        "most_changed_questions": most,
        "most_changed_pct": 100 * most / num,
        "significant_at_best": best < SIGNIFICANCE,
        "below_one_stderr": abs(points) < stderr,
    }


def num_right(experiment: str, task: str) -> int:
    """The whole number of right answers nearest to a published score; at MMLU's size it is one of two."""
    score = paper.accuracy(experiment, task)
    assert score is not None
    return round(score / 100 * paper.num_items(task))


def best_case_p(num_changed: int) -> float:
    """Exact two-sided McNemar p-value of `num_changed` changed questions that all went one way."""
    return float(stats.binomtest(num_changed, num_changed).pvalue) if num_changed else 1.0


def _unpaired_p(right: int, other_right: int, num: int) -> float:
    table = [[right, num - right], [other_right, num - other_right]]
    return float(stats.fisher_exact(table).pvalue)


def most_changed(difference: int, num_items: int) -> int:
    """The most changed answers, both ways together, that leave a difference significant; 0 for none.

    `difference` (0 or more) of `num_items` questions is what is left of the changes after those that cancel.
    """
    cancelled = np.arange((num_items - difference) // 2 + 1)
    p_values = 2 * stats.binom.cdf(cancelled, difference + 2 * cancelled, 0.5)  # binomtest's, by symmetry
    found = np.flatnonzero(p_values < SIGNIFICANCE)
    return int(difference + 2 * found[-1]) if found.size else 0


def fewest_questions() -> int:
    """How many questions must change, all in one direction, before McNemar's exact test is significant."""
    return next(num for num in range(1, 100) if best_case_p(num) < SIGNIFICANCE)


def published_noise_text() -> str:
    """What the published scores can tell, computed from the table."""
    table = published_noise_table()
    matched, rate = (table[table["kind"] == kind] for kind in (MATCHED, RATE))
    small, level = matched[matched["below_one_stderr"]], f"{SIGNIFICANCE:.0%}"
    return (
        f"Of the {len(matched)} published differences between a quantized run and its baseline, "
        f"{int((~matched['significant_at_best']).sum())} could not have been significant at {level} even if "
        f"every changed answer had gone one way (that takes {fewest_questions()} questions), and "
        f"{_num_significant(matched)} are significant as two independent samples; {len(small)} are below one "
        f"standard error of the baseline's accuracy: {_by_run(small)}. Of the {len(rate)} differences by "
        f"learning rate (E1 against E6), {_num_significant(rate)} are significant as independent samples."
    )


def final_run_text(experiment: str = "E8") -> str:
    """A run against its baseline, benchmark by benchmark, in questions."""
    table = published_noise_table()
    rows = table[(table["kind"] == MATCHED) & (table["experiment"] == experiment)].to_dict("records")
    return f"{experiment} against {rows[0]['other']}: " + "; ".join(_in_questions(row) for row in rows) + "."


def _num_significant(table: pd.DataFrame) -> int:
    return int((table["p_unpaired"] < SIGNIFICANCE).sum())


def _by_run(table: pd.DataFrame) -> str:
    groups = table.groupby("experiment", sort=False)["benchmark"]
    return "; ".join(f"{name} on {', '.join(NAMES[task] for task in tasks)}" for name, tasks in groups)


def _in_questions(row: dict[Any, Any]) -> str:
    most = f"significant if no more than {row['most_changed_questions']:,} answers changed at all"
    return (
        f"{NAMES[row['benchmark']]} {row['num_questions']:+d} of {row['num_items']:,} questions, "
        f"{row['difference_in_stderr']:.2f} standard errors, "
        + (most if row["significant_at_best"] else "not significant in any case")
    )
