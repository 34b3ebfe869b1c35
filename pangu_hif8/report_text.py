"""The words of the report's front page, in the reader's order, each computed from the results."""

from __future__ import annotations

import pandas as pd

from pangu_hif8 import paper, tables
from pangu_hif8.claims import Claim
from pangu_hif8.judgement import NOT_AVAILABLE
from pangu_hif8.results import ProfileResults

CLAIMED = (
    "The paper (arXiv 2605.26189) trains a 1-billion-parameter model with 8-bit HiF8 weights and inputs in "
    "its MLP layers. It claims that a scale taken from the maximum of the last 64 steps, a warm-up without "
    "quantization and a low learning rate together lose almost nothing, and that each part is needed."
)

HOW_SURE = (
    "Every comparison is paired: same starting weights, same tokens in the same order, same items. Brackets "
    "are 95% intervals. Of one seed they cover other rows only: other items for an accuracy difference "
    "(Agresti-Min), a single accuracy (Wilson) and the true answers' negative log-likelihood, other "
    "sequences for held-out loss, other steps, taken as independent, for saturation and APE, other tensors "
    "for the jitter of scales (Student's t where no name is given). With several seeds, items, sequences, "
    "steps and tensors are first averaged over the seeds (shares of saturation are taken over all steps of "
    "all seeds), and the bracket is the hull of that interval and of Student's t interval over the seeds' "
    "own values: it covers other rows and other seeds, and is as wide as so few seeds make it. A verdict is "
    "given only when the whole bracket lies on one side of its threshold; what can be counted exactly (an "
    "estimate that equals the step before's amax, a tensor that saturates inside its window) is judged by "
    "the count."
)


def how_sure(*results: ProfileResults) -> str:
    """`HOW_SURE`, and what it means for the seeds that were run."""
    return f"{HOW_SURE} {' '.join(_seeds(found) for found in results)}"


def _seeds(results: ProfileResults) -> str:
    seeds, name = results.seeds(), results.profile
    if not seeds:
        return f"{name}: no trained run is usable."
    if len(seeds) == 1:
        return f"{name}: one seed ({seeds[0]}), so nothing here says how much another seed would differ."
    return f"{name}: {len(seeds)} seeds ({', '.join(map(str, seeds))}), so brackets cover seeds."


def headline(claims: list[Claim]) -> str:
    """How many claims have which verdict."""
    kinds: dict[str, list[str]] = {}
    for claim in claims:
        kinds.setdefault(_kind(claim), []).append(claim.id)
    found = "; ".join(f"{kind}: {', '.join(ids)}" for kind, ids in kinds.items())
    return f"**Of the paper's {len(claims)} claims** {found}."


def _kind(claim: Claim) -> str:
    return claim.verdict.split(":")[0]


def scale(results: ProfileResults) -> str:
    """The profile's scale, and the paper's."""
    return f"{profile_scale(results)} {paper_scale()}"


def profile_scale(results: ProfileResults) -> str:
    """Model, steps, window, warm-up, seeds and items of a profile."""
    train, profile = results.settings.train, results.settings
    items = ", ".join(f"{task.num_items or 'all'} {task.name}" for task in profile.evaluation.tasks)
    return (
        f"{profile.title}: {train.steps} steps of {results.tokens_per_step} tokens, window "
        f"{train.amax_history_len}, warm-up {train.bf16_warmup_steps} steps, seeds "
        f"{', '.join(map(str, results.seeds())) or 'none'}; items: {items}."
    )


def paper_scale() -> str:
    """The paper's scale."""
    return (
        f"The paper: 1 billion parameters, 10,000 steps of {paper.TOKENS_PER_STEP:,} tokens, window 64, "
        f"warm-up {paper.WARMUP_STEPS} steps."
    )


def claims_markdown(claims: list[Claim]) -> str:
    """The claims table in Markdown, with the sentence behind each verdict."""
    return tables.to_markdown(tables.claims_table(claims))


def verdicts_table(claims: dict[str, list[Claim]]) -> pd.DataFrame:
    """One row per claim: what the paper says, its figure, and a column of verdicts for each profile."""
    first = next(iter(claims.values()))
    alone = len(claims) == 1
    rows = []
    for index, claim in enumerate(first):
        row = {"claim": claim.id, "says": claim.claim, "the paper": claim.paper}
        verdicts = {name: found[index].verdict for name, found in claims.items()}
        rows.append(row | ({"verdict": claim.verdict} if alone else verdicts))
    return pd.DataFrame(rows)


def findings_markdown(claims: dict[str, list[Claim]]) -> str:
    """What was measured for each claim: a paragraph a claim and profile."""
    alone = len(claims) == 1
    first = next(iter(claims.values()))
    lines = []
    for index, claim in enumerate(first):
        lines.append(f"**{claim.id}** {claim.claim}.")
        for name, found in claims.items():
            where = "" if alone else f"*{name}*: "
            lines.append(f"{where}*{found[index].verdict}.* {found[index].sentence}")
    return "\n\n".join(lines)


def rules_markdown(claims: list[Claim]) -> str:
    """By which rule each claim was judged."""
    rows = [{"claim": c.id, "reproduced when": c.rule} for c in claims]
    return tables.to_markdown(pd.DataFrame(rows))


def missing_markdown(results: ProfileResults) -> str:
    """Missing runs and notices as a list; says so when nothing is missing."""
    lines = [f"- missing: {missing}" for missing in results.missing]
    lines += [f"- note: {notice}" for notice in results.notices]
    return "\n".join(lines) or "All runs of this profile are complete and current."


def differ_text(claims: dict[str, list[Claim]]) -> str:
    """On which claims two profiles come to different verdicts, and on which one of them can't tell."""
    (one, first), (two, second) = claims.items()
    pairs = [(a.id, _kind(a), _kind(b)) for a, b in zip(first, second, strict=True)]
    settled = ("reproduced", "not reproduced")
    against = [name for name, a, b in pairs if a != b and a in settled and b in settled]
    only_one = [name for name, a, b in pairs if a in settled and b not in settled]
    only_two = [name for name, a, b in pairs if b in settled and a not in settled]
    same = [name for name, a, b in pairs if a == b and a != NOT_AVAILABLE]
    parts = [("same verdict", same), ("opposite verdicts", against)]
    parts += [(f"settled by {one} alone", only_one), (f"settled by {two} alone", only_two)]
    found = "; ".join(f"{text}: {', '.join(names)}" for text, names in parts if names)
    return f"{found[:1].upper()}{found[1:]}."


def front_page(found: str, sure: str, at: str) -> str:
    """The four parts under their headings."""
    parts = [
        ("What was claimed", CLAIMED),
        ("What was found", found),
        ("How sure", sure),
        ("At which scale", at),
    ]
    return "\n\n".join(f"## {heading}\n\n{body}" for heading, body in parts)
