"""Everything under results/<profile>: which runs may be used, and why the others may not.

Pure reading, no torch: the report rebuilds on any machine from what is committed. A run is current when its
configuration hashes equal those of the present profile. Code is judged among the runs: if they were made by
different versions, those that differ from the present source are stale; if all agree with each other but
not with the present source, they are comparable and a notice says so. Runs that started from another model,
saw other data or other items than most are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from pangu_hif8.config import Profile, load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS, resolve
from pangu_hif8.files import digest
from pangu_hif8.freshness import source_digest
from pangu_hif8.paths import results_dir, run_dir
from pangu_hif8.run_checks import Unusable
from pangu_hif8.run_files import IDENTITY, RunResult, read_run

Key = tuple[str, int]
SEED_DIR = re.compile(r"seed(0|[1-9]\d*)")
CUSTOM_DIR = re.compile(r"E\d-custom-[0-9a-f]+")
NOT_HERE = "not part of this report"
PAGES = ("report", "audit", "beyond")  # made from the runs


@dataclass(frozen=True)
class Missing:
    """A run that the report does without, and the reason."""

    experiment: str
    seed: int
    reason: str

    def __str__(self) -> str:
        return f"{self.experiment} (seed {self.seed}): {self.reason}"


@dataclass(frozen=True)
class ProfileResults:
    """The usable runs of one profile, by (experiment, seed)."""

    profile: str
    settings: Profile
    runs: dict[Key, RunResult]
    missing: list[Missing]
    notices: list[str] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step."""
        return self.settings.train.batch_size * self.settings.data.sequence_length

    def of(self, experiment: str) -> list[RunResult]:
        """Runs of an experiment, by seed."""
        return [self.runs[key] for key in sorted(self.runs) if key[0] == experiment]

    def experiments(self) -> list[str]:
        """Experiments that have at least one usable run, in the registry's order."""
        return [name for name in EXPERIMENTS if self.of(name)]

    def seeds(self) -> list[int]:
        """Seeds of the trained runs."""
        return sorted({seed for name, seed in self.runs if name != "E0"})

    def pairs(self, experiment: str, baseline: str) -> list[tuple[RunResult, RunResult]]:
        """Runs of both at the same seed; E0 has one run, which pairs with every seed."""
        found = []
        for run in self.of(experiment):
            other = self.runs.get((baseline, 0 if baseline == "E0" else run.seed))
            if other is not None:
                found.append((run, other))
        return found

    def lacks(self, *experiments: str) -> list[str]:
        """Reasons why the named experiments cannot be used; empty when each has a run."""
        reasons = []
        for name in experiments:
            if not self.of(name):
                why = [m.reason for m in self.missing if m.experiment == name]
                reasons.append(f"{name} missing ({why[0] if why else 'not run'})")
        return reasons

    def input_hashes(self) -> dict[str, str]:
        """sha256 of every file that the report's figures come from, by path under results/<profile>."""
        return {f"{run.name}/{n}": h for _, run in sorted(self.runs.items()) for n, h in run.files.items()}

    def frame(self, part: Callable[[RunResult], pd.DataFrame | None]) -> pd.DataFrame:
        """Tidy frame over all runs of one part, with columns experiment and seed in front."""
        parts = []
        for key in sorted(self.runs):
            table = part(self.runs[key])
            if table is not None:
                parts.append(table.assign(experiment=key[0], seed=key[1]))
        if not parts:
            return pd.DataFrame(columns=["experiment", "seed"])
        joined = pd.concat(parts, ignore_index=True)
        return joined[["experiment", "seed", *[c for c in joined if c not in ("experiment", "seed")]]]

    @property
    def steps(self) -> pd.DataFrame:
        return self.frame(lambda run: run.steps)

    @property
    def saturation(self) -> pd.DataFrame:
        """Quantized (tensor, step) pairs only."""
        return self.frame(quantized_rows)


def quantized_rows(run: RunResult) -> pd.DataFrame | None:
    """A run's saturation table from the switch on, skipped steps left out; None for an unquantized run."""
    return None if run.saturation is None else run.saturation[run.saturation["saturated"].notna()]


def recorded_rows(run: RunResult) -> pd.DataFrame:
    """A run's saturation table, the warm-up included, without skipped steps and amaxes that were not finite.

    What entered the amax history, in the order in which it did.

    Raises UserError for an unquantized run.
    """
    if run.saturation is None:
        raise UserError(f"{run.name} does not quantize")
    return run.saturation[run.saturation["amax"].notna()]


def load_profile_results(profile: str) -> ProfileResults:
    """Read all runs of a profile. Raises UserError for an unknown profile or one without any results."""
    settings = load_profile(profile)
    base = results_dir() / profile
    if not base.is_dir():
        raise UserError(f"no results in {base}; run: make reproduce PROFILE={profile}")
    runs: dict[Key, RunResult] = {}
    missing: list[Missing] = []
    for experiment, seed in _wanted(base):
        try:
            runs[experiment, seed] = _read(profile, experiment, seed)
        except Unusable as reason:
            missing.append(Missing(experiment, seed, str(reason)))
    notices = _foreign(base)
    for check in (_check_train_code, _check_eval_code, _check_identity):
        check(runs, missing, notices)
    _check_versions(runs, notices)
    _note_skipped(runs, notices)
    return ProfileResults(
        profile, settings, runs, sorted(missing, key=lambda m: (m.experiment, m.seed)), notices
    )


def _wanted(base: Path) -> Iterator[Key]:
    """Every experiment at every seed that any of them has been run with (0 when none)."""
    seeds = {seed for name in EXPERIMENTS if name != "E0" for seed in _seeds(base / name)} or {0}
    for name in EXPERIMENTS:
        for seed in [0] if name == "E0" else sorted(seeds):
            yield name, seed


def _seeds(directory: Path) -> set[int]:
    if not directory.is_dir():
        return set()
    found = (SEED_DIR.fullmatch(path.name) for path in directory.iterdir() if path.is_dir())
    return {int(match.group(1)) for match in found if match}


def _read(profile: str, experiment: str, seed: int) -> RunResult:
    directory = run_dir(profile, experiment, seed)
    if not directory.is_dir():
        raise Unusable("not run")
    return read_run(directory, resolve(experiment, profile, seed))


def _foreign(base: Path) -> list[str]:
    """Directories of nobody here. Runs with changed settings are counted: pages of their own show them."""
    names = sorted(p.name for p in base.iterdir() if p.is_dir() and p.name not in {*EXPERIMENTS, *PAGES})
    changed = [name for name in names if CUSTOM_DIR.fullmatch(name)]
    others = [name for name in names if name not in changed]
    if changed:
        num = "1 run" if len(changed) == 1 else f"{len(changed)} runs"
        others.append(f"{num} with changed settings")
    return [f"{NOT_HERE}: {', '.join(others)}"] if others else []


def _drop(runs: dict[Key, RunResult], missing: list[Missing], keys: list[Key], reason: str) -> None:
    for key in keys:
        del runs[key]
        missing.append(Missing(*key, reason))


def _check_train_code(runs: dict[Key, RunResult], missing: list[Missing], notices: list[str]) -> None:
    codes = {key: str(run.info.get("train_code")) for key, run in runs.items() if key[0] != "E0"}
    _check_code("train_stage", codes, runs, missing, notices)


def _check_eval_code(runs: dict[Key, RunResult], missing: list[Missing], notices: list[str]) -> None:
    codes = {key: str(run.summary.get("eval_code")) for key, run in runs.items()}
    _check_code("evaluate_stage", codes, runs, missing, notices)


def _check_code(
    module: str, codes: dict[Key, str], runs: dict[Key, RunResult], missing: list[Missing], notices: list[str]
) -> None:
    try:
        current = source_digest(module)
    except OSError:
        current = "unknown"
    if len(set(codes.values())) > 1:
        stale = [key for key, code in codes.items() if code != current]
        _drop(runs, missing, stale, f"made by another version of the {module} code than the present one")
    elif codes and set(codes.values()) != {current}:
        notices.append(f"all runs come from one earlier version of the {module} code")


def _check_identity(runs: dict[Key, RunResult], missing: list[Missing], notices: list[str]) -> None:
    """Leave out the runs that cannot be compared with most; with no majority, none can."""
    found = {key: run.identity() for key, run in runs.items()}
    groups = Counter(digest(value) for value in found.values()).most_common()
    if len(groups) < 2:
        return
    tied = groups[0][1] == groups[1][1]
    main = None if tied else next(v for v in found.values() if digest(v) == groups[0][0])
    for key, value in found.items():
        names = IDENTITY if main is None else [n for n in IDENTITY if value[n] != main[n]]
        if names:
            _drop(runs, missing, [key], f"not comparable with the other runs ({', '.join(names)} differ)")


def _check_versions(runs: dict[Key, RunResult], notices: list[str]) -> None:
    versions = {digest(run.info.get("versions")) for run in runs.values()}
    machines = {str(run.timing["machine"]) for run in runs.values() if "machine" in run.timing}
    if len(versions) > 1:
        notices.append("the runs were made with different library versions")
    if len(machines) > 1:
        notices.append("the runs were made on different machines; their times are not compared")


def _note_skipped(runs: dict[Key, RunResult], notices: list[str]) -> None:
    counts = {run.name: run.num_skipped for _, run in sorted(runs.items()) if run.num_skipped}
    if counts:
        listed = ", ".join(f"{name} {num}" for name, num in counts.items())
        notices.append(
            f"steps skipped because a loss or gradient was not finite: {listed}; comparisons step by step "
            "leave out the steps that either side skipped"
        )
