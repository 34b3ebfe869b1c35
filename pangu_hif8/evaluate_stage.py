"""Evaluate one run as it was trained: its weights, its quantizers with their scales frozen.

In a job of several processes each has the whole model and computes its share of the batches; the first one
writes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pangu_hif8.errors import UserError
from pangu_hif8.evaluate import Evaluation, evaluate_model
from pangu_hif8.experiments import RunConfig
from pangu_hif8.files import atomic_path, write_json
from pangu_hif8.freshness import source_digest
from pangu_hif8.launch import Parallel, accelerate_state
from pangu_hif8.machine import peak_rss_mb
from pangu_hif8.models import load_base
from pangu_hif8.prepared import Prepared
from pangu_hif8.ranks import Ranks
from pangu_hif8.train_stage import convert, make_deterministic
from pangu_hif8.training_state import load_parameters

OUTPUTS = ("eval.json", "items.csv", "heldout.csv", "eval_timing.json")


def load_trained(config: RunConfig, prepared: Prepared, directory: Path) -> tuple[nn.Module, Any]:
    """The run's model ready to evaluate (E0: the base model), and the tokenizer.

    Raises UserError when a tensor is missing, unexpected or of another shape, or a file is damaged.
    """
    model, tokenizer = load_base(prepared.model_dir)
    model = model.to(accelerate_state().device)
    if config.lr is not None:
        load_parameters(model, _read(directory / "checkpoint" / "model.safetensors"))
    if config.quantization is not None:
        state = convert(model, config)
        state.load_state_dict(_of_first_rank(_read(directory / "checkpoint" / "scaling.safetensors")))
        state.set_mode("frozen")
    return model.eval(), tokenizer


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} can't be read ({error}); delete it and run the experiment again") from error


def _of_first_rank(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Where ranks kept amaxes of their own (reduce_amax off), the first rank's are used."""
    own = {name.removeprefix("rank0."): t for name, t in state.items() if name.startswith("rank0.")}
    return own or state


def evaluate_run(
    config: RunConfig, prepared: Prepared, directory: Path, *, parallel: Parallel = "none"
) -> list[Path]:
    """Score the run and write eval.json, items.csv, heldout.csv, eval_timing.json; returns their paths.

    With `parallel` other than "none" every process of the job has to call this; the first one writes.
    """
    started = time.perf_counter()
    make_deterministic(config.seed, config.train.num_threads)
    ranks = Ranks(parallel)
    model, tokenizer = load_trained(config, prepared, directory)
    result = evaluate_model(model, tokenizer, config.evaluation, prepared, ranks)
    if ranks.is_main:
        _write(config, directory, result, time.perf_counter() - started)
    ranks.wait()
    return [directory / name for name in OUTPUTS]


def _write(config: RunConfig, directory: Path, result: Evaluation, seconds: float) -> None:
    _write_frame(directory / "items.csv", result.items)
    _write_frame(directory / "heldout.csv", result.heldout)
    write_json(directory / "eval_timing.json", _timing(result, seconds))
    write_json(directory / "eval.json", _summary(config, result))


def _write_frame(path: Path, frame: Any) -> None:
    with atomic_path(path) as temporary:
        frame.to_csv(temporary, index=False, lineterminator="\n")


def _timing(result: Evaluation, seconds: float) -> dict[str, Any]:
    return {"eval_seconds": round(seconds, 2), "peak_rss_mb": peak_rss_mb(), "task_seconds": result.seconds}


def _summary(config: RunConfig, result: Evaluation) -> dict[str, Any]:
    return result.summary | {
        "experiment": config.experiment,
        "seed": config.seed,
        "profile": config.profile,
        "train_hash": config.train_hash(),
        "eval_hash": config.eval_hash(),
        "eval_code": source_digest("evaluate_stage"),
        "quantized": config.quantization is not None,
    }
