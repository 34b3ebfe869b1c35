"""Export of a trained run, by its id or its directory: what `python -m pangu_hif8 export` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pangu_hif8.config import load_profile, validated
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS, RunConfig
from pangu_hif8.files import read_json
from pangu_hif8.freshness import stale_reason
from pangu_hif8.new_directory import refuse_existing
from pangu_hif8.paths import run_dir
from pangu_hif8.prepare import prepare
from pangu_hif8.run_checks import Unusable, check_info

DEFAULT_PROFILE = "laptop"


def find_run(run: str, profile: str | None, seed: int | None) -> Path:
    """The directory of a run, named by an experiment's id (with profile and seed) or by its path."""
    if run in EXPERIMENTS:
        directory = run_dir(load_profile(profile or DEFAULT_PROFILE).name, run, seed or 0)
    elif profile is not None or seed is not None:
        raise UserError(f"{run!r} is no experiment's id, so --profile and --seed would have no effect")
    else:
        directory = Path(run)
    if not (directory / "run.json").is_file():
        raise UserError(f"no run in {directory}; run the experiment first, or name E2 to E8 or a directory")
    return directory


def export_run(run: str, out: Path, *, profile: str | None = None, seed: int | None = None) -> str:
    """Export a finished quantized run to a new directory; returns what to tell: layers and sizes.

    Raises UserError for a run that does not quantize, is damaged, or started from another base model.
    """
    directory = find_run(run, profile, seed)
    refuse_existing(out)
    info, config = _read(directory)
    prepared = prepare(config.profile)
    if info.get("model_digest") != prepared.digests["model"]:
        raise UserError(f"{directory} started from another base model than the prepared one; run it again")
    from pangu_hif8.evaluate_stage import load_trained
    from pangu_hif8.export import export_hif8
    from pangu_hif8.export_files import TENSORS_FILE

    model, tokenizer = load_trained(config, prepared, directory)
    sizes = export_hif8(model, out, tokenizer=tokenizer)
    trained = directory / "checkpoint" / "model.safetensors"
    lines = (
        f"{config.run_name} seed {config.seed}: {sizes.num_layers} linears as 8-bit HiF8 codes in {out}",
        _row("quantized weights", sizes.weights_before, sizes.weights_after),
        _row("whole model file", trained.stat().st_size, (out / TENSORS_FILE).stat().st_size),
    )
    return "\n".join(lines)


def _read(directory: Path) -> tuple[dict[str, Any], RunConfig]:
    """The run's own record, checked: finished, quantized, its checkpoint unchanged since it was written."""
    info = read_json(directory / "run.json")
    try:
        config = validated(RunConfig, info["config"], f"{directory / 'run.json'}")
        if config.quantization is None:
            raise UserError(f"{config.run_name} does not quantize; there is nothing to export as HiF8")
        check_info(info, config)
    except (Unusable, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{directory / 'run.json'} is no record of a run: {error}; run it again") from error
    _check_outputs(directory / "train.stamp")
    _check_weights(directory, config)
    return info, config


def _check_weights(directory: Path, config: RunConfig) -> None:
    """Results come with a repository, trained weights don't."""
    weights = directory / "checkpoint" / "model.safetensors"
    if not weights.is_file():
        name = f"{config.run_name}, profile {config.profile}, seed {config.seed}"
        raise UserError(f"{weights} is missing: results come without the weights; train here first ({name})")


def _check_outputs(stamp: Path) -> None:
    """Compare the trained files with the sha256 that training noted (a copied run may come without)."""
    if not stamp.is_file():
        return
    inputs = read_json(stamp).get("inputs", {})
    reason = stale_reason(stamp, inputs)
    if reason:
        raise UserError(f"{stamp.parent}: {reason}; run the experiment again")


def _row(what: str, before: int, after: int) -> str:
    return f"{what + ':':<19}{before:>13,} bytes before, {after:>13,} after, ratio {before / after:.2f}"
