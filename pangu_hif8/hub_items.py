"""Benchmark items and exemplars from the hub's data sets, by the network or from a folder.

With `items_dir`, every data set lies below it as `hf download --repo-type dataset NAME --local-dir
ITEMS_DIR/NAME` leaves it: Parquet, Arrow or JSON lines, in configurations that its README.md describes, or,
without one, as `<configuration>/<split>-*` (`data/<split>-*` or `<split>-*` where there is only one). Nothing
is looked up then. A data set that is a script is refused: code that came with data is never run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.files import digest
from pangu_hif8.hub_tasks import HUB_TASKS, Subtask, subtasks

if TYPE_CHECKING:
    from datasets import DatasetDict

BUILDERS = {".parquet": "parquet", ".arrow": "arrow", ".jsonl": "json", ".json": "json"}

Item = dict[str, Any]


def source_digests(evaluation: EvalConfig) -> dict[str, str]:
    """What decides the items besides the settings: lm-eval's version, and the files (names, sizes, times)."""
    from importlib.metadata import version

    found = {"lm_eval": version("lm_eval")}
    if evaluation.items_dir is not None:
        names = sorted({HUB_TASKS[task.name].dataset for task in evaluation.tasks})
        found["benchmark files"] = digest([_listing(_folder(evaluation.items_dir, name)) for name in names])
    return found


def _listing(folder: Path) -> list[list[str | int]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return [[p.relative_to(folder).as_posix(), p.stat().st_size, p.stat().st_mtime_ns] for p in paths]


def _folder(items_dir: str, dataset: str) -> Path:
    folder = Path(items_dir).expanduser() / dataset
    if not folder.is_dir():
        raise UserError(
            f"{folder} is missing; hf download --repo-type dataset {dataset} --local-dir {folder}"
        )
    return folder


def hub_items(
    task: TaskConfig, evaluation: EvalConfig, *, offline: bool = False
) -> tuple[list[Item], list[Item]]:
    """A benchmark's items and exemplars in the hub's columns and order, with `item_id` (and `subject`).

    Raises UserError that names benchmark and data set when one can't be read or has no such split.
    """
    items: list[Item] = []
    exemplars: list[Item] = []
    described = _described(task, evaluation)
    for sub in subtasks(task.name):
        with tempfile.TemporaryDirectory(prefix="pangu-items-") as cache:
            splits = _load(task.name, sub, evaluation, described, offline, cache)
            items += _rows(splits[sub.item_split].to_list(), sub, HUB_TASKS[task.name].id_column)
            if sub.exemplar_split:
                exemplars += _rows(splits[sub.exemplar_split].to_list(), sub, None)
    if len({item["item_id"] for item in items}) != len(items):
        raise UserError(f"benchmark {task.name}: two items of {sub.dataset} have one id; fetch it again")
    return items, exemplars


def _rows(rows: list[Item], sub: Subtask, id_column: str | None) -> list[Item]:
    names = [str(i) if id_column is None else str(row[id_column]) for i, row in enumerate(rows)]
    if sub.group is None:
        return [row | {"item_id": name} for row, name in zip(rows, names, strict=True)]
    more = [{"item_id": f"{sub.group}/{name}", "subject": sub.group} for name in names]
    return [row | extra for row, extra in zip(rows, more, strict=True)]


def _load(
    name: str, sub: Subtask, evaluation: EvalConfig, described: list[str], offline: bool, cache: str
) -> DatasetDict:
    where = " ".join(filter(None, (sub.dataset, sub.dataset_config)))
    try:
        if evaluation.items_dir is None:
            splits = _from_hub(sub, offline)
        else:
            splits = _from_folder(
                Path(evaluation.items_dir).expanduser() / sub.dataset, sub, described, cache
            )
    except UserError:
        raise
    except Exception as error:  # datasets and huggingface_hub raise many kinds
        raise UserError(f"benchmark {name}: data set {where} can't be read: {_reason(error)}") from error
    absent = [split for split in sub.splits if not len(splits.get(split, []))]
    if absent:
        raise UserError(f"benchmark {name}: data set {where} has no items in split {', '.join(absent)}")
    return splits


def _reason(error: BaseException) -> str:
    """Kind and first line of the innermost cause, and what to do where the cause is known."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
    if "scripts are no longer supported" in reason:
        return f"{reason}; it comes as a script, which is never run: use a copy in Parquet"
    return f"{reason}; fetch it again, or name a folder with items_dir"


def _from_hub(sub: Subtask, offline: bool) -> DatasetDict:
    import datasets

    if offline:
        from pangu_hif8.lm_tasks import go_offline

        go_offline()
    return datasets.load_dataset(sub.dataset, sub.dataset_config)


def _from_folder(folder: Path, sub: Subtask, described: list[str], cache: str) -> DatasetDict:
    """By the configurations that the folder's README.md describes, else by its layout."""
    import datasets

    if sub.dataset_config in described or (sub.dataset_config is None and described):
        return datasets.load_dataset(str(folder), sub.dataset_config, cache_dir=cache)
    data = folder / "data"
    base = folder / sub.dataset_config if sub.dataset_config else data if data.is_dir() else folder
    for suffix, builder in BUILDERS.items():
        files = {split: _split_files(base, split, suffix) for split in sub.splits}
        if all(files.values()):
            return datasets.load_dataset(builder, data_files=files, cache_dir=cache)
    if scripts := sorted(folder.glob("*.py")):
        raise RuntimeError(f"Dataset scripts are no longer supported, but found {scripts[0].name}")
    wanted = " and ".join(f"{split}-*" for split in sub.splits)
    raise FileNotFoundError(f"{base} has no files {wanted} of one kind ({', '.join(BUILDERS)})")


def _described(task: TaskConfig, evaluation: EvalConfig) -> list[str]:
    """Configurations in the README.md of the task's folder; none where there is no folder or README.md."""
    import datasets

    if evaluation.items_dir is None:
        return []
    folder = _folder(evaluation.items_dir, HUB_TASKS[task.name].dataset)
    datasets.disable_progress_bars()
    if not (folder / "README.md").is_file():
        return []
    try:
        return list(datasets.get_dataset_config_names(str(folder)))
    except Exception as error:  # datasets raises many kinds
        raise UserError(f"benchmark {task.name}: {folder} can't be read: {_reason(error)}") from error


def _split_files(base: Path, split: str, suffix: str) -> list[str]:
    paths = [
        *base.glob(f"{split}[-.]*{suffix}"),
        *base.glob(f"{split}{suffix}"),
        *base.glob(f"{split}/*{suffix}"),
    ]
    return sorted({str(path) for path in paths})
