"""The files of an exported model: what is written, and the suspicion with which it is read.

    hif8_config.json         format, version, the model's own configuration, the quantizer's, the layers
    hif8_model.safetensors   codes (uint8), scales (float32), and every other tensor as trained
    tokenizer.json ...       when a tokenizer was given, in the hub's layout

Neither file can run code. The configuration holds its own digest and the tensor file's sha256, so a flipped
byte is found as surely as a missing one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pangu_hif8.config import QuantConfig, Strict, validated
from pangu_hif8.errors import UserError
from pangu_hif8.files import digest, read_json, sha256_file, write_json

FORMAT, VERSION = "pangu_hif8", 1
CONFIG_FILE, TENSORS_FILE = "hif8_config.json", "hif8_model.safetensors"
_DIGEST = "settings_sha256"
AGAIN = "export the run again"


class ExportSettings(Strict):
    """Everything about an exported model that is not a tensor.

    `layers` are the names of the linears that are stored as codes; `input_scale` says whether each of them
    has a frozen scale for its input or scales every input by its own amax.
    """

    format: Literal["pangu_hif8"] = "pangu_hif8"
    version: Literal[1] = 1
    model: dict[str, Any]
    attn_implementation: Literal["eager", "sdpa"]
    quantization: QuantConfig
    input_scale: Literal["frozen", "current"]
    layers: list[str]
    tensors_sha256: str = ""


def write_export(directory: Path, settings: ExportSettings, tensors: dict[str, Tensor]) -> None:
    """Write both files into an existing directory. Raises UserError when the disk will not take them."""
    path = directory / TENSORS_FILE
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it wraps the system's errors, a full disk among them
        raise UserError(f"cannot write {path}: {error}. Check free space.") from error
    values = settings.model_copy(update={"tensors_sha256": sha256_file(path)}).model_dump()
    write_json(directory / CONFIG_FILE, values | {_DIGEST: digest(values)})


def read_settings(directory: Path) -> ExportSettings:
    """Read and check the configuration. Raises UserError: not exported, newer, damaged, or contradictory."""
    path = directory / CONFIG_FILE
    if not path.is_file():
        raise UserError(
            f"{directory} holds no exported HiF8 model: {CONFIG_FILE} is missing; export a run first"
        )
    values = _read_object(path)
    _check_version(path, values)
    known = values.pop(_DIGEST, None)
    if known != digest(values):
        raise UserError(f"{path} is damaged or was changed: its digest does not fit; {AGAIN}")
    settings = validated(ExportSettings, values, str(path))
    if not settings.layers or len(set(settings.layers)) != len(settings.layers):
        raise UserError(f"{path}: layers must be named, each once; {AGAIN}")
    if (settings.input_scale == "current") != (settings.quantization.amax_compute_algo == "current"):
        raise UserError(f"{path}: input_scale contradicts {settings.quantization.amax_compute_algo}; {AGAIN}")
    return settings


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = read_json(path)
        digest(values)  # refuses NaN, which JSON does not have
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged or cut short; {AGAIN}") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise UserError(f"{path} is no configuration of an exported HiF8 model (format is not {FORMAT!r})")
    return values


def _check_version(path: Path, values: dict[str, Any]) -> None:
    version = values.get("version")
    if type(version) is not int or version < 1:
        raise UserError(f"{path} states no version that exists: {version!r}; {AGAIN}")
    if version > VERSION:
        raise UserError(
            f"{path} has format version {version}, this pangu_hif8 reads up to {VERSION}; update it"
        )


def read_tensors(directory: Path, settings: ExportSettings) -> dict[str, Tensor]:
    """All tensors, on the CPU. Raises UserError unless the file is the very one that was exported."""
    path = directory / TENSORS_FILE
    if not path.is_file():
        raise UserError(f"{path} is missing; {AGAIN}")
    try:
        if sha256_file(path) != settings.tensors_sha256:
            raise UserError(f"{path} is damaged, cut short or another model's: its sha256 differs; {AGAIN}")
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} can't be read ({error}); {AGAIN}") from error
    return tensors
