"""The rehearsal's profile: `paper` with other sizes and places, and nothing else.

`SIZES` and `places` are all that may differ; the six benchmarks keep their shots and metrics, the experiments
their learning rates, the model its blocks in high precision. MATH alone is left out, where the packages that
lm-eval scores it with are not installed: there the paper's own profile would not start either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from pangu_hif8.config import TaskConfig, load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.files import write_text
from pangu_hif8.hub_tasks import check_hub_task

PAPER, NAME = "paper", "rehearsal"
NUM_ITEMS = 3  # of each benchmark
SIZES: dict[str, int] = {
    "data.sequence_length": 64,
    "data.num_train_sequences": 160,  # steps x batch_size, as there
    "data.num_heldout_sequences": 8,
    "data.num_second_domain_sequences": 8,
    "train.steps": 20,
    "train.batch_size": 8,
    "train.micro_batch_size": 2,
    "train.amax_history_len": 4,
    "train.bf16_warmup_steps": 6,
    "train.num_threads": 1,
    "train.checkpoint_every": 5,
    "train.telemetry_every": 5,
    "train.optimizer.lr_warmup_steps": 2,
    "evaluation.batch_size": 8,
    "evaluation.max_generated_tokens": 8,
}
TEXTS = ("name", "title", "description")


def places(hub: Path) -> dict[str, str]:
    """Settings that name a place: folders below `hub`, which has the hub's layout."""
    paper = load_profile(PAPER)
    assert paper.model.name and paper.data.text and paper.data.second_domain_text
    return {
        "model.name": str(hub / paper.model.name),
        "data.text.dataset": str(hub / paper.data.text.dataset),
        "data.second_domain_text.dataset": str(hub / paper.data.second_domain_text.dataset),
        "evaluation.items_dir": str(hub),
    }


def derived(hub: Path, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The profile's values; `without` names benchmarks that are left out."""
    values = load_profile(PAPER).model_dump(mode="json", exclude_none=True)
    for name, value in {**SIZES, **places(hub)}.items():
        *path, last = name.split(".")
        part = values
        for key in path:
            part = part[key]
        part[last] = value
    tasks = [task | {"num_items": NUM_ITEMS} for task in values["evaluation"]["tasks"]]
    values["evaluation"]["tasks"] = [task for task in tasks if task["name"] not in without]
    return values | {"name": NAME, "title": "rehearsal of the paper's profile", "description": __doc__}


def unscorable() -> dict[str, str]:
    """Benchmarks of the paper's profile that can't be scored here, with the reason."""
    found = {}
    for task in load_profile(PAPER).evaluation.tasks:
        try:
            check_hub_task(TaskConfig.model_validate(task.model_dump()))
        except UserError as error:
            found[task.name] = str(error)
    return found


def write_profile(folder: Path, hub: Path, without: frozenset[str] = frozenset()) -> Path:
    """Write the profile as a file of `folder`, for PANGU_HIF8_PROFILES."""
    path = folder / f"{NAME}.yaml"
    write_text(path, yaml.safe_dump(derived(hub, without), sort_keys=False, allow_unicode=True))
    return path
