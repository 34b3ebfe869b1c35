"""One of a run's checkpoints on disk: what its directory holds, and the suspicion with which it is read.

    <part>.safetensors   tensors: model, optimizer, scaling, rng, ...
    checkpoint.json      format, version, step, score, facts, size and sha256 of every other file

Neither can run code. checkpoint.json is written last and holds its own digest, so a flipped byte is found as
surely as a missing file. Sizes are checked when a checkpoint is listed, contents before any of it is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pangu_hif8.errors import UserError
from pangu_hif8.files import digest, read_json, sha256_file, write_json

CHECKPOINT_FORMAT, CHECKPOINT_VERSION = "pangu_hif8 checkpoint", 1
FACTS_FILE, SUFFIX = "checkpoint.json", ".safetensors"
_DIGEST = "facts_sha256"
_NUM_SHOWN = 3  # differing settings that a refusal spells out
ANOTHER = "resume from another checkpoint"


class DamagedCheckpoint(UserError):
    """This checkpoint can't be used, but an older one beside it may be."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose checkpoint.json is sound and whose files have their right sizes.

    `score` is the caller's measure of how good the weights are, lower is better; `facts` is what the caller
    saved beside the tensors; `files` has the size and sha256 of each tensor file.
    """

    step: int
    path: Path
    facts: dict[str, Any]
    score: float | None
    files: dict[str, dict[str, Any]] = field(repr=False)
    _verified: set[str] = field(default_factory=set, repr=False, compare=False)

    def tensors(self, part: str) -> dict[str, Tensor]:
        """The tensors of a part, on the CPU. Raises UserError: no such part, or its file is damaged."""
        name = part + SUFFIX
        if name not in self.files:
            held = ", ".join(sorted(file.removesuffix(SUFFIX) for file in self.files))
            raise UserError(f"the checkpoint has no {part} state: {self.path} holds only {held}; {ANOTHER}")
        self._verify(name)
        try:
            tensors: dict[str, Tensor] = load_file(self.path / name)
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{self.path / name} can't be read ({error}); {ANOTHER}") from error
        return tensors

    def verify(self) -> None:
        """Compare every file with its sha256, each once per object. Raises DamagedCheckpoint."""
        for name in self.files:
            self._verify(name)

    def _verify(self, name: str) -> None:
        if name in self._verified:
            return
        try:
            same = sha256_file(self.path / name) == self.files[name]["sha256"]
        except OSError as error:
            raise DamagedCheckpoint(f"{self.path / name} can't be read ({error}); {ANOTHER}") from error
        if not same:
            raise DamagedCheckpoint(f"{self.path / name} is damaged: its sha256 differs; {ANOTHER}")
        self._verified.add(name)


def write_checkpoint(
    directory: Path,
    step: int,
    parts: dict[str, dict[str, Tensor]],
    facts: dict[str, Any],
    score: float | None,
) -> None:
    """Write all files into an existing directory, checkpoint.json last. Raises OSError or UserError."""
    files = {}
    for part, tensors in parts.items():
        path = directory / (part + SUFFIX)
        try:
            save_file(_storable(tensors), path)
        except SafetensorError as error:  # it wraps the system's errors, a full disk among them
            raise OSError(f"{path.name}: {error}") from error
        files[path.name] = {"size": path.stat().st_size, "sha256": sha256_file(path)}
    values = {"format": CHECKPOINT_FORMAT, "version": CHECKPOINT_VERSION, "step": step, "score": score}
    values |= {"facts": facts, "files": files}
    write_json(directory / FACTS_FILE, values | {_DIGEST: digest(values)})


def _storable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, and each with memory of its own: safetensors refuses tied weights and views."""
    storable, seen = {}, set[int]()
    for name, tensor in tensors.items():
        ready = tensor.detach().cpu().contiguous()
        memory = ready.untyped_storage().data_ptr()
        storable[name] = ready.clone() if memory in seen else ready
        seen.add(memory)
    return storable


def read_checkpoint(path: Path) -> Checkpoint:
    """Read checkpoint.json and look at the files' sizes.

    Raises DamagedCheckpoint, and plain UserError for a version that only a newer program reads.
    """
    values = _read_values(path / FACTS_FILE)
    checkpoint = Checkpoint(values["step"], path, values["facts"], values["score"], values["files"])
    for name, known in checkpoint.files.items():
        size = (path / name).stat().st_size if (path / name).is_file() else None
        if size != known["size"]:
            fault = "is missing" if size is None else f"has {size} bytes, not {known['size']}"
            raise DamagedCheckpoint(f"{path / name} {fault}; {ANOTHER}")
    return checkpoint


def _read_values(file: Path) -> dict[str, Any]:
    try:
        values = read_json(file)
        found = digest({k: v for k, v in values.items() if k != _DIGEST})
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{file} is missing, damaged or cut short; {ANOTHER}") from error
    if values.get("format") != CHECKPOINT_FORMAT:
        raise DamagedCheckpoint(f"{file} is not of a checkpoint of this program; {ANOTHER}")
    _check_version(file, values.get("version"))
    if found != values.get(_DIGEST):
        raise DamagedCheckpoint(f"{file} is damaged or was changed: its digest does not fit; {ANOTHER}")
    return values


def _check_version(file: Path, version: Any) -> None:
    if type(version) is not int or version < 1:
        raise DamagedCheckpoint(f"{file} states no version that exists: {version!r}; {ANOTHER}")
    if version > CHECKPOINT_VERSION:
        raise UserError(
            f"{file} has version {version}, this pangu_hif8 reads up to {CHECKPOINT_VERSION}; update it"
        )


def refuse_other(checkpoint: Checkpoint, expected: dict[str, Any]) -> None:
    """Raises UserError, naming what differs, unless facts["identity"] equals the flat dict `expected`."""
    saved = checkpoint.facts.get("identity")
    if not isinstance(saved, dict):
        raise UserError(f"{checkpoint.path} does not say which run it is of; {ANOTHER}")
    there, here = _as_json(saved), _as_json(expected)
    differing = sorted(key for key in there | here if there.get(key) != here.get(key))
    if differing:
        shown = [f"{k} is {there.get(k, 'absent')} there, {here.get(k, 'absent')} here" for k in differing]
        more = f"; and {len(shown) - _NUM_SHOWN} more" if len(shown) > _NUM_SHOWN else ""
        raise UserError(
            f"{checkpoint.path} is of another run: {'; '.join(shown[:_NUM_SHOWN])}{more}. "
            "Use the settings that it was saved with, or another directory"
        )


def _as_json(values: dict[str, Any]) -> dict[str, str]:
    """As text: a tuple equals the list that it was saved as, and 1 is neither 1.0 nor true."""
    return {key: json.dumps(value, sort_keys=True, ensure_ascii=False) for key, value in values.items()}
