"""What the prepare step hands on. On its own, so that training and evaluation do not depend on its code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Prepared:
    """Where a profile's prepared parts lie. `digests` has the keys model, shards, benchmarks."""

    model_dir: Path  # config.json, model.safetensors (float32), tokenizer: the hub's layout
    shards_dir: Path
    benchmarks_dir: Path
    digests: dict[str, str]
