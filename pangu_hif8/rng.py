"""All random state of a process as tensors, so that it travels in a checkpoint: exact, and without pickle.

Python's `random`, NumPy's global generator, torch's on the CPU and on each CUDA device. Words of the two
Mersenne Twisters are int64 (torch does little with uint32); a Gaussian drawn ahead is a float64, and NaN,
which no generator draws, where there is none.
"""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pangu_hif8.errors import UserError

_TWISTER = 624  # 32-bit words of the Mersenne Twister, then one for the position in them
_LAYOUT: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "python": (torch.int64, (_TWISTER + 1,)),
    "python_gauss": (torch.float64, (1,)),
    "numpy": (torch.int64, (_TWISTER + 1,)),
    "numpy_gauss": (torch.float64, (1,)),
}
_REMEDY = "resume from another checkpoint"


def rng_state() -> dict[str, Tensor]:
    """The state of every generator. Raises UserError where NumPy's was replaced by one of another kind."""
    _, words, gauss = random.getstate()
    key, position, numpy_gauss = _numpy_state()
    state = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": _optional(gauss),
        "numpy": torch.tensor([*key, position], dtype=torch.int64),
        "numpy_gauss": _optional(numpy_gauss),
        "torch": torch.get_rng_state(),
    }
    return state | {f"cuda{i}": torch.cuda.get_rng_state(i) for i in range(_num_cuda())}


def _numpy_state() -> tuple[list[int], int, float | None]:
    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002  libraries draw from it, so it counts
    if state["bit_generator"] != "MT19937":
        raise UserError(f"NumPy's global generator is a {state['bit_generator']}; leave it the MT19937 it is")
    words = state["state"]
    return words["key"].tolist(), int(words["pos"]), state["gauss"] if state["has_gauss"] else None


def _optional(value: float | None) -> Tensor:
    return torch.tensor([math.nan if value is None else value], dtype=torch.float64)


def _num_cuda() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def set_rng_state(state: dict[str, Tensor]) -> None:
    """Make every generator go on from `state`. Raises UserError: an entry is missing, malformed or extra."""
    _check_layout(state)
    gauss = {name: state[f"{name}_gauss"].item() for name in ("python", "numpy")}
    try:
        torch.set_rng_state(state["torch"].cpu())
        for index in range(_num_cuda()):
            torch.cuda.set_rng_state(state[f"cuda{index}"].cpu(), index)
        drawn = None if math.isnan(gauss["python"]) else gauss["python"]
        random.setstate((3, tuple(state["python"].tolist()), drawn))
        _set_numpy_state(state["numpy"].tolist(), gauss["numpy"])
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"the random state is malformed ({_first_line(error)}); {_REMEDY}") from error


def _set_numpy_state(words: list[int], gauss: float) -> None:
    drawn = not math.isnan(gauss)
    state = {
        "bit_generator": "MT19937",
        "state": {"key": np.array(words[:-1], dtype=np.uint32), "pos": words[-1]},
        "has_gauss": int(drawn),
        "gauss": gauss if drawn else 0.0,
    }
    np.random.set_state(state)  # noqa: NPY002


def _check_layout(state: dict[str, Tensor]) -> None:
    needed = [*_LAYOUT, "torch", *(f"cuda{index}" for index in range(_num_cuda()))]
    missing = [name for name in needed if name not in state]
    extra = sorted(set(state) - set(needed))
    if missing or extra:
        fault = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(extra)}, absent here"
        raise UserError(f"the random state {fault}; resume on the devices that it was saved on")
    for name, tensor in state.items():
        dtype, shape = _LAYOUT.get(name, (torch.uint8, (tensor.numel(),)))
        if tensor.dtype != dtype or tensor.shape != shape:
            raise UserError(
                f"the random state {name} is malformed ({tensor.dtype}, {tuple(tensor.shape)}); {_REMEDY}"
            )
    for name in ("python", "numpy"):
        words = state[name]
        if words.min() < 0 or words.max() >= 2**32 or words[-1] > _TWISTER or not words[:-1].any():
            raise UserError(f"the random state {name} is malformed (no Mersenne Twister's); {_REMEDY}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def gather_rng(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """One flat dict from the states of all ranks, in rank order: "rank0.torch", ..."""
    return {f"rank{rank}.{name}": t for rank, state in enumerate(states) for name, t in state.items()}


def rng_of_rank(tensors: dict[str, Tensor], rank: int) -> dict[str, Tensor]:
    """The state of one rank out of `gather_rng`'s. Raises UserError when it holds none of that rank."""
    prefix = f"rank{rank}."
    state = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    if not state:
        ranks = {match[1] for name in tensors if (match := re.match(r"rank(\d+)\.", name))}
        raise UserError(
            f"the random state of rank {rank} is missing: the checkpoint has that of {len(ranks)} ranks; "
            "resume with as many processes as it was saved with"
        )
    return state
