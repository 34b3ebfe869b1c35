"""What the rehearsal's steps look at in the files that were written. Each raises UserError with one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.experiments import EXPERIMENTS
from pangu_hif8.files import read_json
from rehearsal.profile import NUM_ITEMS, SIZES


def must(holds: bool, otherwise: str) -> None:
    """Raise UserError unless it holds."""
    if not holds:
        raise UserError(otherwise)


def same_bytes(one: Path, other: Path, names: tuple[str, ...]) -> None:
    """Files of two directories are equal."""
    for name in names:
        must((one / name).read_bytes() == (other / name).read_bytes(), f"{name} of {one} and {other} differ")


def prepared(base: Path, num_embeddings: int) -> str:
    """The prepared parts against the profile; returns what was found."""
    manifest, items = (
        read_json(base / "shards" / "manifest.json"),
        read_json(base / "benchmarks" / "manifest.json"),
    )
    for split, name in (("train", "train"), ("heldout", "heldout"), ("second_domain", "second_domain")):
        asked = SIZES[f"data.num_{name}_sequences"]
        found = manifest["splits"][split]["num_sequences"]
        must(found == asked, f"{found} sequences of {split} were made, {asked} asked for")
    must(read_json(base / "model" / "config.json")["vocab_size"] == num_embeddings, "another vocabulary")
    for name, entry in items["tasks"].items():
        must(entry["num_items"] == NUM_ITEMS, f"{name} has {entry['num_items']} items, not {NUM_ITEMS}")
    odd = {name: manifest["splits"]["train"][name] for name in ("num_empty", "num_invalid_utf8")}
    must(odd == {"num_empty": 2, "num_invalid_utf8": 1}, f"odd documents are counted as {odd}")
    tokens = SIZES["data.num_train_sequences"] * SIZES["data.sequence_length"]
    return f"{tokens:,} tokens to train on, {len(items['tasks'])} benchmarks; odd documents counted"


def trained(directory: Path, processes: int, steps: int, warmup: int) -> None:
    """A run was trained as its experiment says, by all processes, to the end."""
    info, table = read_json(directory / "run.json"), pd.read_csv(directory / "steps.csv")
    experiment = EXPERIMENTS[directory.parent.name]
    where = f"{experiment.id}:"
    must(
        (info["world_size"], info["parallel"]) == (processes, "ddp"),
        f"{where} was not trained by {processes}",
    )
    must(len(table) == steps and bool(table["loss"].notna().all()), f"{where} steps.csv is not whole")
    first = warmup if experiment.bf16_warmup else 0
    quantized = [experiment.amax_compute_algo is not None and step >= first for step in range(steps)]
    must(
        table["quantized"].astype(bool).tolist() == quantized,
        f"{where} quantized in other steps than it should",
    )


def scores(directory: Path) -> str:
    """Every benchmark of the profile has its items, none cut short; returns how many."""
    found: dict[str, Any] = read_json(directory / "eval.json")["tasks"]
    wanted = load_profile("paper").evaluation.tasks
    for task in (task for task in wanted if task.name in found):
        entry = found[task.name]
        facts = (entry["num_items"], entry["num_fewshot"], entry["metric"], entry["num_truncated"])
        must(facts == (NUM_ITEMS, task.num_fewshot, task.metric, 0), f"{directory}: {task.name} has {facts}")
    must(len(found) >= len(wanted) - 1, f"{directory}: only {', '.join(found)} scored")
    return f"{len(found)} of {len(wanted)} benchmarks scored, {NUM_ITEMS} items each"


def report(results: Path) -> str:
    """The report is there and judges each of the paper's claims; returns how many."""
    page = results / "report" / "report.html"
    must(page.is_file(), f"{page} is missing")
    claims = read_json(results / "report" / "claims.json")
    judged = [claim["id"] for claim in claims]
    must(judged == [f"C{number}" for number in range(1, 11)], f"the report judges {', '.join(judged)}")
    return f"report with {len(judged)} claims"
