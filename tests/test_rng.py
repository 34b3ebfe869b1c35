"""Random state: every generator goes on with exactly the numbers that it would have drawn."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from pangu_hif8.errors import UserError
from pangu_hif8.rng import gather_rng, rng_of_rank, rng_state, set_rng_state


@pytest.fixture(autouse=True)
def _untouched():
    """Other tests' random numbers stay as they were (by the generators' own means)."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_rng_state(cpu)


def draws() -> list[object]:
    """Uniform, integer and Gaussian draws; an odd number of Gaussians leaves one drawn ahead."""
    python = [random.random(), random.getrandbits(64), random.gauss(0, 1)]
    numpy = [np.random.rand(), np.random.randint(2**60), np.random.randn()]  # noqa: NPY002
    return [*python, *numpy, torch.rand(3).tolist(), torch.randn(17).tolist(), torch.randperm(50).tolist()]


@pytest.mark.parametrize("num_before", [0, 1, 2, 700])
def test_every_generator_goes_on_exactly(num_before):
    random.seed(5), np.random.seed(6), torch.manual_seed(7)  # noqa: NPY002
    for _ in range(num_before):
        draws()
    stored = load(save(rng_state()))  # as a checkpoint would store it
    expected = [draws() for _ in range(300)]  # beyond one block of 624 words
    set_rng_state(stored)
    assert [draws() for _ in range(300)] == expected


def test_the_gaussian_drawn_ahead_travels():
    random.seed(1), np.random.seed(1)  # noqa: NPY002
    none = rng_state()
    assert math.isnan(none["python_gauss"].item()) and math.isnan(none["numpy_gauss"].item())
    random.gauss(0, 1), np.random.randn()  # noqa: NPY002
    state, ahead = rng_state(), (random.gauss(0, 1), np.random.randn())  # noqa: NPY002
    assert (state["python_gauss"].item(), state["numpy_gauss"].item()) == ahead
    set_rng_state(state)
    assert (random.gauss(0, 1), np.random.randn()) == ahead  # noqa: NPY002
    set_rng_state(none)
    assert random.getstate()[2] is None


def test_a_state_does_not_change_as_numbers_are_drawn():
    state = rng_state()
    copy = {name: tensor.clone() for name, tensor in state.items()}
    draws()
    assert all(torch.equal(copy[name].nan_to_num(), state[name].nan_to_num()) for name in copy)


@pytest.mark.parametrize("name", ["python", "python_gauss", "numpy", "numpy_gauss", "torch"])
def test_a_missing_or_malformed_entry_is_named_and_changes_nothing(name):
    state, before = rng_state(), (random.getstate(), torch.get_rng_state().tolist())
    state["torch"] = torch.Generator().manual_seed(3).get_state()
    for bad in (state[name][:-1], state[name].to(torch.float16), state[name].repeat(2), None):
        broken = {k: v for k, v in state.items() if k != name} | ({} if bad is None else {name: bad})
        with pytest.raises(UserError, match=rf"lacks {name};" if bad is None else "malformed"):
            set_rng_state(broken)
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("name", ["python", "numpy"])
@pytest.mark.parametrize(("index", "word"), [(0, -1), (0, 2**32), (-1, 625), (slice(0, 624), 0)])
def test_words_that_no_twister_has_are_refused(name, index, word):
    state = rng_state()
    state[name][index] = word
    with pytest.raises(UserError, match=f"{name} is malformed"):
        set_rng_state(state)


def test_another_numpy_generator_is_refused(monkeypatch):
    other = {"bit_generator": "PCG64"}
    monkeypatch.setattr(np.random, "get_state", lambda legacy: other)
    with pytest.raises(UserError, match="PCG64"):
        rng_state()


class FakeDevices:
    """Stands for torch.cuda where there is none: one state a device, as the driver keeps it."""

    def __init__(self, monkeypatch, num: int) -> None:
        self.states = [torch.full((16,), index, dtype=torch.uint8) for index in range(num)]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(self.states))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda index: self.states[index].clone())
        monkeypatch.setattr(torch.cuda, "set_rng_state", self.set)

    def set(self, state, index) -> None:
        self.states[index] = state


def test_each_cuda_device_has_its_own_state(monkeypatch):
    devices = FakeDevices(monkeypatch, 3)
    state = rng_state()
    devices.states = [torch.zeros(16, dtype=torch.uint8)] * 3
    set_rng_state(state)
    assert [tensor[0].item() for tensor in devices.states] == [0, 1, 2]


@pytest.mark.parametrize(
    ("saved", "here", "fault"), [(2, 3, "lacks cuda2"), (2, 0, "has cuda0, cuda1, absent")]
)
def test_another_number_of_devices_is_refused(monkeypatch, saved, here, fault):
    devices = FakeDevices(monkeypatch, saved)
    state = rng_state()
    devices.states = [torch.zeros(16, dtype=torch.uint8)] * here
    with pytest.raises(UserError, match=fault):
        set_rng_state(state)


def test_each_rank_gets_its_own_back():
    states = [{"torch": torch.tensor([rank]), "python": torch.tensor([-rank])} for rank in range(12)]
    gathered = gather_rng(states)
    assert set(gathered) == {f"rank{rank}.{name}" for rank in range(12) for name in ("torch", "python")}
    assert [rng_of_rank(gathered, rank) for rank in range(12)] == states  # rank 1 is not 10 or 11


def test_a_rank_that_was_not_saved_is_refused():
    gathered = gather_rng([{"torch": torch.zeros(1)}] * 2)
    with pytest.raises(UserError, match="rank 2 is missing: the checkpoint has that of 2 ranks"):
        rng_of_rank(gathered, 2)
