"""A trained model as a real 8-bit checkpoint, and back: the fake quantization made true.

`export_hif8` takes a model whose scales are frozen and writes, for every HiF8Linear, the weight's HiF8 codes
and its scale, and the scale of its input; everything else (embeddings, attention, norms, buffers) as it is.
`load_hif8` builds the architecture from the model's own configuration with the library's code alone, puts
an HiF8CodesLinear in each of those places, and gives the frozen model's logits bit for bit on a CPU: the
same values meet in the same operations. Buffers are stored too, so nothing is computed anew by a version of
a library that may do it otherwise.

A model that could not be loaded again (parts that its configuration does not describe) is refused before
anything is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pangu_hif8.amax import is_usable, tensor_to_amax
from pangu_hif8.codes_linear import HiF8CodesLinear, weight_codes
from pangu_hif8.errors import UserError
from pangu_hif8.export_files import (
    TENSORS_FILE,
    ExportSettings,
    read_settings,
    read_tensors,
    write_export,
)
from pangu_hif8.export_skeleton import build_skeleton, check_fits, fill, named_tensors
from pangu_hif8.linear import HiF8Linear, decoder_blocks
from pangu_hif8.new_directory import new_directory, refuse_existing
from pangu_hif8.scaling import ScalingState

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["ExportSizes", "HiF8CodesLinear", "export_hif8", "load_hif8"]
# A path, code, or another quantizer that a configuration may name; none belongs into a checkpoint.
_NOT_EXPORTED = ("_name_or_path", "name_or_path", "auto_map", "quantization_config")
_SCALES = ("weight_scale", "input_scale")


@dataclass(frozen=True)
class ExportSizes:
    """Bytes of the quantized weights (after: codes and scales) and of the whole (after: the tensor file)."""

    num_layers: int
    weights_before: int
    weights_after: int
    whole_before: int
    whole_after: int


def export_hif8(
    model: nn.Module, directory: Path | str, *, tokenizer: PreTrainedTokenizerBase | None = None
) -> ExportSizes:
    """Write `model`, its quantizers in mode "frozen", to a new directory; returns sizes in bytes.

    Raises UserError for a model without HiF8Linear, in another mode, with a scale that was never estimated
    or a weight that is not finite, for one that its configuration does not describe, and when `directory`
    exists already.
    """
    final = Path(directory)
    refuse_existing(final)
    layers = _frozen_layers(model)
    settings, tensors = _settings(model, layers), _tensors(model, layers)
    fault = "the model is not what its configuration describes"
    check_fits(build_skeleton(settings), tensors, fault)
    _check_scales(settings, tensors, "a scale is out of range")
    with new_directory(final) as temporary:
        write_export(temporary, settings, tensors)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
    return _sizes(model, layers, tensors, final)


def load_hif8(directory: Path | str) -> PreTrainedModel:
    """The exported model on the CPU, in eval mode, its quantized weights kept as uint8 codes.

    Raises UserError for anything but a complete, undamaged export of this format's version or an older one.
    """
    where = Path(directory)
    settings = read_settings(where)
    tensors, fault = read_tensors(where, settings), f"{where / TENSORS_FILE} does not fit its configuration"
    model = build_skeleton(settings)
    check_fits(model, tensors, fault)
    _check_scales(settings, tensors, fault)
    fill(model, tensors)
    return model.eval()


def _frozen_layers(model: nn.Module) -> dict[str, HiF8Linear]:
    """The quantized layers by name. Raises UserError unless they share one state that stands still."""
    decoder_blocks(model)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, HiF8Linear)}
    if not layers:
        raise UserError("the model has no HiF8Linear to export; convert it with prepare_qat and train it")
    state = next(iter(layers.values())).state
    if any(layer.state is not state for layer in layers.values()):
        raise UserError("the model's layers have several ScalingStates; convert it with one prepare_qat")
    if state.mode != "frozen":
        raise UserError(f'the scales are in mode "{state.mode}"; call state.set_mode("frozen") before export')
    for layer in layers.values():
        _check_layer(layer, state)
    return layers


def _check_layer(layer: HiF8Linear, state: ScalingState) -> None:
    for slot in (layer.input_slot, layer.weight_slot):
        if not state.is_current(slot) and not is_usable(state.estimate[slot]):
            raise UserError(f"{state.names[slot]} has no estimate of its amax yet; train or calibrate first")
    if not layer.weight.isfinite().all():
        raise UserError(f"{state.names[layer.weight_slot]} has values that are not finite")


def _settings(model: nn.Module, layers: dict[str, HiF8Linear]) -> ExportSettings:
    config: Any = model.config
    attention = config._attn_implementation
    if attention not in ("eager", "sdpa"):
        raise UserError(f"attention {attention!r} can't be exported; load the model with 'sdpa' or 'eager'")
    state = next(iter(layers.values())).state
    return ExportSettings(
        model=_plain(config),
        attn_implementation=attention,
        quantization=state.config,
        input_scale="current" if state.config.amax_compute_algo == "current" else "frozen",
        layers=list(layers),
    )


def _plain(config: Any) -> dict[str, Any]:
    """The model's configuration as it will be read again (JSON has text for keys and no tuples)."""
    values = {name: value for name, value in config.to_dict().items() if name not in _NOT_EXPORTED}
    try:
        plain: dict[str, Any] = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UserError(f"the model's configuration can't be written as JSON: {error}") from error
    return plain


def _tensors(model: nn.Module, layers: dict[str, HiF8Linear]) -> dict[str, Tensor]:
    """What the file holds: a clone of each, so that no two share memory."""
    tensors = dict(named_tensors(model))
    for name, layer in layers.items():
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{part}": tensor for part, tensor in _quantized_parts(layer).items()}
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def _quantized_parts(layer: HiF8Linear) -> dict[str, Tensor]:
    state, settings = layer.state, layer.state.config.for_kind("weight")
    scale = state.scale_for(layer.weight_slot, tensor_to_amax(layer.weight))
    codes = weight_codes(layer.weight, scale, settings.hif8_max, settings.overflow)
    parts = {"weight_codes": codes, "weight_scale": scale}
    return (
        parts
        if state.is_current(layer.input_slot)
        else parts | {"input_scale": state.scale[layer.input_slot]}
    )


def _sizes(
    model: nn.Module, layers: dict[str, HiF8Linear], tensors: dict[str, Tensor], final: Path
) -> ExportSizes:
    stored = [tensors.get(f"{name}.{part}") for name in layers for part in ("weight_codes", *_SCALES)]
    return ExportSizes(
        num_layers=len(layers),
        weights_before=sum(layer.weight.nbytes for layer in layers.values()),
        weights_after=sum(tensor.nbytes for tensor in stored if tensor is not None),
        whole_before=sum(parameter.nbytes for parameter in model.parameters()),
        whole_after=(final / TENSORS_FILE).stat().st_size,
    )


def _check_scales(settings: ExportSettings, tensors: dict[str, Tensor], fault: str) -> None:
    for name in (f"{layer}.{part}" for layer in settings.layers for part in _SCALES):
        scale = tensors.get(name)
        if scale is not None and (scale.dtype != torch.float32 or not is_usable(scale)):
            raise UserError(f"{fault}: {name} is not a finite float32 above zero")
