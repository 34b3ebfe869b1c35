"""What the audit's sections share: which runs are there, their words, and the columns of their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pangu_hif8.audit_variants import audit_variants
from pangu_hif8.comparisons import compare_accuracy, compare_answer_nll, compare_heldout
from pangu_hif8.experiments import EXPERIMENTS, resolve
from pangu_hif8.metrics import Interval
from pangu_hif8.plot_style import rate_text
from pangu_hif8.results import ProfileResults
from pangu_hif8.run_files import RunResult
from pangu_hif8.variant_runs import machine_of
from pangu_hif8.variants import Variant

Pair = tuple[str, str]


def with_prefix(results: ProfileResults, prefix: str) -> list[Variant]:
    """The audit's variants of one section, in order."""
    return [v for v in audit_variants(results.settings) if v.id.startswith(prefix)]


def there(results: ProfileResults, pairs: Iterable[Pair]) -> list[Pair]:
    """Those pairs whose two runs are there at a common seed."""
    return [pair for pair in pairs if results.pairs(*pair)]


def reasons(results: ProfileResults, names: Iterable[str]) -> str:
    """Why the named runs can't be used, or compared with those that they are to be compared with."""
    wanted, variants = list(names), {v.id: v for v in audit_variants(results.settings)}
    others = [
        name for own in wanted if own in variants for name in (variants[own].base, variants[own].against)
    ]
    return "; ".join(results.lacks(*dict.fromkeys([*wanted, *others])))


def not_there(results: ProfileResults, names: Iterable[str]) -> str:
    """A last sentence that names the runs that a section does without; empty where it has all."""
    absent = [name for name in names if not results.of(name)]
    return f" Not there yet: {', '.join(absent)}." if absent else ""


def across(results: ProfileResults, pairs: Iterable[Pair]) -> str:
    """A sentence that names the comparisons whose two runs come from different processors; or nothing."""
    mixed = [pair for pair in pairs if any(_differ(*runs) for runs in results.pairs(*pair))]
    named = ", ".join(f"{name} and {other}" for name, other in dict.fromkeys(mixed))
    return f" Compared across processors, whose difference is in it: {named}." if named else ""


def _differ(run: RunResult, other: RunResult) -> bool:
    found = {machine_of(run), machine_of(other)}
    return len(found) == 2 and "" not in found


def rate_of(results: ProfileResults, experiment: str) -> str:
    """The learning rate of an experiment at this profile."""
    lr = resolve(experiment, results.profile).lr
    assert lr is not None
    return rate_text(lr)


def title_of(results: ProfileResults, name: str) -> str:
    """What a run is, in words, with its learning rate at this profile."""
    variants = {variant.id: variant for variant in audit_variants(results.settings)}
    if name in variants:
        return f"{variants[name].title}, {rate_of(results, variants[name].base)}"
    title = EXPERIMENTS[name].title.rsplit(", lr ", 1)[0]
    return title if name == "E0" else f"{title}, {rate_of(results, name)}"


def cells(name: str, interval: Interval | None) -> dict[str, float | None]:
    """An interval as three columns."""
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def outcome_row(results: ProfileResults, name: str, against: str) -> dict[str, Any]:
    """A run against another: held-out losses, accuracy, the true answers' negative log-likelihood."""
    row: dict[str, Any] = {"run": name, "what": title_of(results, name), "minus": against}
    row |= cells("heldout_nats", compare_heldout(results, name, against, "same_domain"))
    row |= cells("second_domain_nats", compare_heldout(results, name, against, "second_domain"))
    row |= cells("accuracy_points", compare_accuracy(results, name, against).difference)
    return row | cells("answer_nll_nats", compare_answer_nll(results, name, against))


def outcome_rows(results: ProfileResults, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """`outcome_row` of each."""
    return [outcome_row(results, *pair) for pair in pairs]
