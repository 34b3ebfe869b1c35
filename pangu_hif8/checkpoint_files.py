"""The files of a checkpoint: fetched from the hub or found in a folder, and checked before they are loaded.

Only configuration, tokenizer and safetensors files are fetched; pickles never. The headers of the safetensors
files name every tensor and its shape, so that whatever does not fit the model is named in one line before
any weight is read, and a hub model of another architecture is refused before its weights are downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

SMALL_FILES = ["*.json", "tokenizer.model", "merges.txt", "vocab.txt", "*.jinja"]
WEIGHT_FILES = ["model*.safetensors"]
CODE_FILES = ["*.py"]
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
ROTARY = ".rotary_emb.inv_freq"  # a constant that older checkpoints store for every block
NUM_NAMED = 5  # faults that one message names

_REASONS = {
    "GatedRepoError": "its owner must grant access: ask on its page, then `hf auth login`",
    "RepositoryNotFoundError": "the hub knows no such model, or it is private (then `hf auth login`)",
    "RevisionNotFoundError": "it has no such revision",
    "HFValidationError": "it is neither a folder nor a hub name (owner/model)",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE is set and it is not in the cache",
    "IncompleteSnapshotError": "the hub is not reachable and the cached copy is incomplete",
    "ConnectError": "the hub is not reachable",
    "TimeoutException": "the hub is not reachable",
    "LocalEntryNotFoundError": "the hub is not reachable (HF_HUB_OFFLINE?) and it is not in the cache",
}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor is, and its shape."""

    file: Path
    shape: tuple[int, ...]


def fetch_files(name_or_dir: str | Path, revision: str | None, patterns: list[str]) -> Path:
    """The local folder of a checkpoint: itself, or the hub's files that match `patterns` (cached by the hub).

    A folder needs no network. Raises UserError when the hub refuses or can't be reached.
    """
    if Path(name_or_dir).is_dir():
        return Path(name_or_dir)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name_or_dir), revision=revision, allow_patterns=patterns))
    except Exception as error:  # HTTP, validation and file errors without a common parent
        at = f" at revision {revision}" if revision else ""
        raise UserError(
            f"cannot fetch model {str(name_or_dir)!r}{at} from the hub: {hub_refusal(error)}; "
            "or give a folder with its files"
        ) from error


def hub_refusal(error: Exception) -> str:
    """Why the hub (or its cache) did not give something, in words for people."""
    known = (_REASONS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in _REASONS)
    return next(known, None) or f"{type(error).__name__}: {str(error).strip().split(chr(10))[0]}"


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint by name, read from the headers alone.

    Raises UserError when there is no safetensors file, a shard of the index is missing or damaged, or a shard
    lacks a tensor that the index promises.
    """
    index = _index(directory)
    found = {name: stored for file in sorted(set(index.values())) for name, stored in _headers(file).items()}
    lost = [f"{name} ({file.name})" for name, file in index.items() if name and name not in found]
    if lost:
        raise UserError(
            f"{directory}: the index lists tensors that no file holds: {_some(lost)}; fetch it again"
        )
    return found


def _index(directory: Path) -> dict[str, Path]:
    """Tensor name to file; a checkpoint of one file has no index and gets the name ""."""
    if (directory / INDEX).is_file():
        listed = read_json(directory / INDEX)
        weights = listed.get("weight_map") if isinstance(listed, dict) else None
        if not isinstance(weights, dict) or not weights:
            raise UserError(f"{directory / INDEX} has no weight_map; fetch it again")
        missing = sorted({str(f) for f in weights.values()} - {f.name for f in directory.iterdir()})
        if missing:
            raise UserError(f"{directory} lacks {_some(missing)}, which its index lists; fetch it again")
        return {str(name): directory / Path(str(file)).name for name, file in weights.items()}
    if (directory / SINGLE).is_file():
        return {"": directory / SINGLE}
    pickles = sorted(f.name for p in ("*.bin", "*.pt", "*.pth") for f in directory.glob(p))
    held = f"only pickles ({_some(pickles)}), which can run code when read" if pickles else "none"
    raise UserError(f"{directory} needs {SINGLE} or {INDEX} and has {held}; convert it to safetensors")


def _headers(file: Path) -> dict[str, StoredTensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as handle:
            names = list(handle.keys())
            return {name: StoredTensor(file, tuple(handle.get_slice(name).get_shape())) for name in names}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged ({error}); fetch it again") from error


def check_tensors(directory: Path, stored: dict[str, StoredTensor], skeleton: PreTrainedModel) -> None:
    """Raise UserError that names the tensors which are missing, unexpected or of a wrong shape.

    `skeleton` is the model on the meta device. A tied weight may be left out; if it is there, it must be
    equal to the one that it is tied to.
    """
    tied = dict(skeleton.all_tied_weights_keys)
    expected = {name: tuple(tensor.shape) for name, tensor in skeleton.state_dict().items()}
    given = {name: tensor.shape for name, tensor in stored.items() if not name.endswith(ROTARY)}
    faults = {
        "missing": [name for name in expected if name not in given and name not in tied],
        "unexpected": [name for name in given if name not in expected],
        "of a wrong shape": [
            f"{name} {list(given[name])}, not {list(shape)}"
            for name, shape in expected.items()
            if name in given and given[name] != shape
        ],
    }
    found = "; ".join(f"{kind}: {_some(names)}" for kind, names in faults.items() if names)
    if found:
        raise UserError(f"the checkpoint in {directory} does not fit its config.json: tensors {found}")
    _check_tied(directory, stored, tied)


def _check_tied(directory: Path, stored: dict[str, StoredTensor], tied: dict[str, Any]) -> None:
    import torch

    for name, source in tied.items():
        both = name in stored and source in stored
        if both and not torch.equal(read_tensor(stored, name), read_tensor(stored, source)):
            raise UserError(
                f"{directory}: config.json ties {name} to {source}, but the checkpoint holds two different "
                "tensors; set tie_word_embeddings to false if both are meant"
            )


def read_tensor(stored: dict[str, StoredTensor], name: str) -> Tensor:
    """One tensor of the checkpoint."""
    from safetensors import safe_open

    with safe_open(stored[name].file, framework="pt") as handle:
        tensor: Tensor = handle.get_tensor(name)
        return tensor


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NUM_NAMED} more" if len(names) > NUM_NAMED else ""
    return ", ".join(names[:NUM_NAMED]) + more
