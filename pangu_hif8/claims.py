"""The paper's claims C1 to C10, each with a verdict computed from the results.

The registry below says what a claim needs and by which rule it is judged; `judgement.py` holds the
thresholds, `claims_outcome.py` and `claims_scaling.py` the computations. Every sentence is made from data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from pangu_hif8 import judgement as rule
from pangu_hif8.claims_outcome import forgets, hidden_failures, near_lossless, neither_alone, tracks_loss
from pangu_hif8.claims_scaling import (
    current_jitters,
    most_recent_saturates,
    smoothing_fails,
    warmup_fills,
    window_holds,
)
from pangu_hif8.errors import UserError
from pangu_hif8.judgement import NOT_AVAILABLE, Part, combine
from pangu_hif8.paper import forgetting_points
from pangu_hif8.results import ProfileResults


@dataclass(frozen=True)
class ClaimRule:
    """A claim, the paper's figure, the runs it needs, and how it is judged (`statement` says it in words)."""

    id: str
    claim: str
    paper: str
    needs: tuple[str, ...]
    judge: Callable[[ProfileResults], list[Part]]
    statement: str


@dataclass(frozen=True)
class Claim:
    """A judged claim: its verdict, one sentence, and the numbers behind both, by part."""

    id: str
    claim: str
    paper: str
    verdict: str
    sentence: str
    rule: str
    parts: list[Part]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


MARGIN = f"{rule.ACCURACY_MARGIN_POINTS:g} point"
NATS = f"{rule.HELDOUT_MARGIN_NATS:g} nats"
SMALL_FORGETTING = rule.EFFECT_SHARE * forgetting_points()
FLOOR = f"{100 * rule.SATURATION_FLOOR:g}%"

CLAIMS: dict[str, ClaimRule] = {
    row.id: row
    for row in (
        ClaimRule(
            "C1",
            "max-window with warm-up at lr 1e-5 is near-lossless",
            "MMLU -0.43%, HellaSwag -0.58%, ARC-Challenge -0.22% (relative)",
            ("E8", "E6"),
            near_lossless,
            f"E8 - E6 loses less than {MARGIN} over all items, and less than {NATS} of held-out loss on both "
            "domains",
        ),
        ClaimRule(
            "C2",
            "its training loss tracks the baseline's",
            "APE 0.11%",
            ("E8", "E6"),
            tracks_loss,
            f"APE over the quantized steps is at most {rule.ape_limit_pct():.2f}%, {rule.APE_FACTOR:g} times "
            "the paper's",
        ),
        ClaimRule(
            "C3",
            "neither failure shows in the training loss, only downstream",
            "-",
            ("E0", "E1", "E2", "E6", "E7"),
            hidden_failures,
            "accuracy falls (E2 or E7 against its baseline; E1 against E0 and E6) while that run's APE stays "
            f"under C2's limit, and E1's last training losses are not more than {NATS} above E6's; no fall, "
            "nothing hidden",
        ),
        ClaimRule(
            "C4",
            "most-recent saturates, one step late",
            "-",
            ("E2", "E7"),
            most_recent_saturates,
            f"at least {FLOOR} of input (tensor, step) pairs saturate in E2 and in E7, each scaled by the "
            "step before",
        ),
        ClaimRule(
            "C5",
            "exponential smoothing fails when amax is not monotonic",
            "ARC-Challenge 33.62 to 33.02",
            ("E3", "E1"),
            smoothing_fails,
            f"at least {FLOOR} of upward turns saturate in E3, and E3 is worse than E1 in accuracy or, by "
            f"{NATS}, in held-out loss",
        ),
        ClaimRule(
            "C6",
            "max-window does not saturate inside its window; its slack does no harm",
            "-",
            ("E5", "E8", "E2", "E7", "E1", "E6"),
            window_holds,
            f"no pair inside its window saturates, at most {rule.WINDOW_RATIO:g} times as many pairs do as "
            f"with most-recent, and held-out loss is within {NATS} of the baseline's",
        ),
        ClaimRule(
            "C7",
            "current scaling never saturates but jitters, and costs a second pass",
            "-",
            ("E4", "E5"),
            current_jitters,
            "no pair of E4 saturates, and its input scales vary more from step to step than E5's; the cost "
            "is not judged: fake quantization reads every tensor anyway",
        ),
        ClaimRule(
            "C8",
            "lr 1e-4 forgets even without quantization",
            "MMLU 26.66 against 43.36",
            ("E0", "E1", "E6"),
            forgets,
            f"E1 is below E0 and E6 in accuracy (not so if a drop of {SMALL_FORGETTING:.1f} points, half the "
            f"paper's, is ruled out), and above both by {NATS} in second-domain loss",
        ),
        ClaimRule(
            "C9",
            "neither fix is enough alone",
            "E5 loses 3% on ARC-Challenge (33.62 to 32.51); E7 saturates",
            ("E5", "E1", "E7"),
            neither_alone,
            f"E5 is below E1 on ARC (not so if half of the paper's 3.3% is ruled out), and at least {FLOOR} "
            "of E7's input pairs saturate",
        ),
        ClaimRule(
            "C10",
            "the warm-up fills the history and steadies the weights",
            "-",
            ("E8", "E5"),
            warmup_fills,
            "at the switch every input scale comes from the recorded history; the second half needs a run "
            "without warm-up, which is not among the eight",
        ),
    )
}  # fmt: skip


def judge(results: ProfileResults) -> list[Claim]:
    """Judge all ten claims. A claim whose runs are missing is "not available" and says which and why."""
    return [judge_one(results, row) for row in CLAIMS.values()]


def judge_one(results: ProfileResults, row: ClaimRule) -> Claim:
    """Judge one claim by its rule."""
    absent = results.lacks(*row.needs)
    parts: list[Part] = []
    if not absent:
        try:
            parts = row.judge(results)
        except UserError as error:
            absent = [str(error)]
    if absent:
        verdict = f"{NOT_AVAILABLE}: {', '.join(reason.split(' (')[0] for reason in absent)}"
        return Claim(row.id, row.claim, row.paper, verdict, f"Needs: {'; '.join(absent)}.", row.statement, [])
    sentence = "; ".join(part.text for part in parts)
    verdict = combine([part.verdict for part in parts])
    return Claim(row.id, row.claim, row.paper, verdict, _sentence(sentence), row.statement, parts)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."
