"""README's tables: the claims of one profile, and the verdicts of two beside each other.

Each stands between markers and is rewritten from results/ by `report --readme`; a test keeps them equal.
"""

from __future__ import annotations

import re
from pathlib import Path

from pangu_hif8 import captions, tables
from pangu_hif8 import report_text as text
from pangu_hif8.claims import Claim, judge
from pangu_hif8.comparisons import loss_pairs
from pangu_hif8.errors import UserError
from pangu_hif8.files import write_text
from pangu_hif8.paths import ROOT
from pangu_hif8.report_folders import check_beside
from pangu_hif8.results import ProfileResults, load_profile_results

README = ROOT / "README.md"
CLAIMS, BESIDE = "claims", "beside"  # the two blocks


def markers(block: str) -> tuple[str, str]:
    """The lines that a block stands between."""
    return f"<!-- {block}:begin -->", f"<!-- {block}:end -->"


def readme_table(profile: str) -> str:
    """The claims table for README.md, computed from results/<profile>; Markdown, ends with a line end."""
    results = load_profile_results(profile)
    claims = judge(results)
    note = "" if not results.missing else f"\n{text.missing_markdown(results)}\n"
    table = text.claims_markdown(claims)
    return f"{text.headline(claims)}\n\n{table}\n**Scale.** {text.scale(results)}\n{note}"


def beside_table(profile: str, beside: str) -> str:
    """The verdicts of two profiles beside each other, with their scales; Markdown, ends with a line end."""
    check_beside(profile, beside)
    results = [load_profile_results(name) for name in (profile, beside)]
    claims = {found.profile: judge(found) for found in results}
    scales = "\n".join(f"- {text.profile_scale(found)} {_seconds(found)}" for found in results)
    table = tables.to_markdown(text.verdicts_table(claims))
    return f"{table}\n{text.differ_text(claims)}\n\n{_shown(results[1], claims[beside])}\n\n{scales}\n"


def _shown(results: ProfileResults, claims: list[Claim]) -> str:
    """What the second profile measured of near-lossless quantization and of forgetting, and its APE."""
    found = [f"{claim.id}: {claim.sentence}" for claim in claims if claim.id in ("C1", "C8") and claim.parts]
    found += [captions.late_ape_text(results)] if loss_pairs(results) else []
    return "\n".join(f"- `{results.profile}`, {line}" for line in found or ["no run is usable."])


def _seconds(results: ProfileResults) -> str:
    """What the runs spent in training and in evaluation, summed."""
    timings = [run.timing for run in results.runs.values()]
    train, evaluation = (sum(t.get(f"{part}_seconds") or 0 for t in timings) for part in ("train", "eval"))
    return f"{len(timings)} runs, together {train:.0f} s in training and {evaluation:.0f} s in evaluation."


def update_readme(profile: str = "laptop", beside: str = "", readme: Path = README) -> None:
    """Rewrite a block: that of two profiles where `beside` is given. Raises UserError without its markers."""
    content = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    begin, end = markers(BESIDE if beside else CLAIMS)
    if content.count(begin) != 1 or content.count(end) != 1 or content.index(begin) > content.index(end):
        raise UserError(f"{readme} needs one {begin} and, after it, one {end}")
    block = f"{begin}\n{beside_table(profile, beside) if beside else readme_table(profile)}{end}"
    write_text(readme, re.sub(f"{begin}.*{end}", lambda _: block, content, flags=re.DOTALL))


def table_in_readme(block: str = CLAIMS, readme: Path = README) -> str | None:
    """What stands between README's markers, or None without them."""
    content = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    begin, end = markers(block)
    found = re.search(f"{begin}\n(.*){end}", content, flags=re.DOTALL)
    return found.group(1) if found else None
