"""The architecture of an exported model: built empty from its configuration, compared, and filled.

Only the library's own model classes are used: a configuration can't bring code, nor name a place to fetch
any from. The model is built on the meta device, so nothing is initialized at random only to be replaced;
therefore every tensor, buffers that a state_dict leaves out included, has to come from the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pangu_hif8.codes_linear import HiF8CodesLinear
from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.export_files import AGAIN, ExportSettings
from pangu_hif8.linear import decoder_blocks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every parameter once (a tied one under its first name), and every buffer, persistent or not."""
    yield from model.named_parameters()
    yield from model.named_buffers(remove_duplicate=False)


def build_skeleton(settings: ExportSettings) -> PreTrainedModel:
    """The model without values, its quantized layers in place. UserError when it can't be built."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.for_model(**settings.model)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation=settings.attn_implementation, trust_remote_code=False
            )
    except Exception as error:  # transformers raises many kinds for a configuration that it can't read
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"no model can be built from the configuration: {reason}") from error
    decoder_blocks(model)
    for name in settings.layers:
        _put_codes_linear(model, name, settings.quantization)
    return model


def _put_codes_linear(model: nn.Module, name: str, config: QuantConfig) -> None:
    try:
        linear = model.get_submodule(name)
    except AttributeError as error:
        raise UserError(f"the model's configuration has no layer {name}; {AGAIN}") from error
    if type(linear) is not nn.Linear:
        raise UserError(f"{name} is a {type(linear).__name__}, not a plain linear; {AGAIN}")
    with torch.device("meta"):
        codes = HiF8CodesLinear(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            current=config.amax_compute_algo == "current",
            hif8_max=config.hif8_max,
            overflow=config.overflow,
            margin=config.margin,
        )
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, codes)


def check_fits(model: nn.Module, tensors: dict[str, Tensor], fault: str) -> None:
    """The tensors are those of the model, each of its shape and kind of number. Raises UserError."""
    expected = dict(named_tensors(model))
    missing, unexpected = expected.keys() - tensors.keys(), tensors.keys() - expected.keys()
    if missing:
        raise UserError(f"{fault}: {len(missing)} tensors are missing, first {min(missing)}")
    if unexpected:
        raise UserError(f"{fault}: {len(unexpected)} tensors are unexpected, first {min(unexpected)}")
    for name, like in expected.items():
        if tensors[name].shape != like.shape or _kind(tensors[name]) != _kind(like):
            wanted = f"{_kind(like)} {list(like.shape)}"
            found = f"{tensors[name].dtype} {list(tensors[name].shape)}"
            raise UserError(f"{fault}: {name} is {found}, expected {wanted}")


def _kind(tensor: Tensor) -> str:
    """Floating point of any width (a model is stored as it was trained), or the type itself."""
    return "float" if tensor.is_floating_point() else str(tensor.dtype)


def fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put the values in. A parameter that the model has in two places (a tied head) stays one."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    made = {name: nn.Parameter(tensors[name]) for name in names.values()}
    for prefix, module in model.named_modules():
        for key, old in module._parameters.items():
            if old is not None:
                module._parameters[key] = made[names[id(old)]]
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = tensors[f"{prefix}.{key}" if prefix else key]
