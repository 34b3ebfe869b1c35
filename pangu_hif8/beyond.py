"""Beyond the paper: its three pieces of future work, and two settings that it fixes without a sweep.

F1 layer-wise learning rates, F2 a warm-up that ends when the amax history has settled, F3 how many blocks
stay in high precision and which, W the window's length, T the value that amax is mapped to. Each setting is
an experiment of the paper with one thing changed (`beyond_variants`), and is compared with that experiment
and with the unquantized run at its rate. `build_beyond` is a pure function of results files; `measure_beyond`
makes what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from pangu_hif8 import beyond_points as bp
from pangu_hif8.beyond_future import adaptive, blocks, layerwise
from pangu_hif8.beyond_points import Sweep
from pangu_hif8.beyond_scales import target, window
from pangu_hif8.beyond_sections import BeyondResults, all_sweeps, build
from pangu_hif8.beyond_variants import beyond_variants, window_title
from pangu_hif8.config import load_profile
from pangu_hif8.run_files import RunResult
from pangu_hif8.sections import Page, write_page
from pangu_hif8.sensitivity import measure_sensitivity, ranking, read_sensitivity
from pangu_hif8.variant_runs import make_runs, variant_results
from pangu_hif8.variants import experiments_for


def measure_beyond(profile: str, seeds: Iterable[int], *, fresh: bool = False) -> None:
    """Make the runs and the sensitivity that are not there. Raises UserError, Preempted.

    The untouched checkpoint comes first: the sensitivity has to be that of its model; and the sensitivity
    before the sweeps, since it names the blocks that one of them keeps.
    """
    seeds = sorted(set(seeds))
    make_runs((), profile, seeds, fresh=fresh)
    measure_sensitivity(profile, fresh=fresh)
    make_runs(beyond_variants(load_profile(profile), ranking(profile)), profile, seeds, fresh=fresh)


def build_beyond(profile: str) -> Page:
    """Write results/<profile>/beyond from what is in results; returns the page. Raises UserError."""
    found = read_sensitivity(profile)
    variants = beyond_variants(load_profile(profile), found.ranking if found else ())
    results = variant_results(variants, profile)
    needed = {"E0", *experiments_for(variants), *(variant.id for variant in variants)}
    results = replace(results, missing=[m for m in results.missing if m.experiment in needed])
    builders = [partial(all_sweeps, SWEEPS), *(partial(build, s, TELL[s.id]) for s in SWEEPS)]
    return write_page(
        "beyond", BeyondResults(**vars(results), variants=variants, sensitivity=found), builders
    )


def _warmup_name(run: RunResult) -> str:
    return f"fixed warm-up of {run.config.train.bf16_warmup_steps} steps"


def _blocks_name(run: RunResult) -> str:
    model = run.config.model
    return f"the first {model.num_first_hp_blocks} and last {model.num_last_hp_blocks} blocks kept"


SWEEPS = (
    Sweep(
        "F1",
        "Layer-wise learning rates",
        "E5",
        "E1",
        bp.lr_decay,
        lambda run: "one rate for every block",
        "learning given up: training text minus E5's, nats",
        bp.learning_given_up,
    ),
    Sweep(
        "F2",
        "A warm-up that ends when the amax history has settled",
        "E8",
        "E6",
        bp.spread_or_fixed,
        _warmup_name,
        "steps trained unquantized, %",
        bp.unquantized_steps_pct,
    ),
    Sweep(
        "F3",
        "How many blocks stay in high precision, and which",
        "E8",
        "E6",
        bp.num_hp_blocks,
        _blocks_name,
        "the linears' weights and FLOPs in high precision, %",
        bp.hp_weights_pct,
    ),
    Sweep(
        "W",
        "The window's length",
        "E8",
        "E6",
        bp.window,
        lambda run: window_title(int(bp.window(run))),
        "slack: octaves between amax and estimate",
        bp.slack_octaves,
    ),
    Sweep(
        "T",
        "The value that amax is mapped to",
        "E8",
        "E6",
        bp.target,
        lambda run: f"amax mapped to {bp.target(run):g}",
        "noise power over signal, %",
        bp.noise_pct,
    ),
)
TELL = {"F1": layerwise, "F2": adaptive, "F3": blocks, "W": window, "T": target}
