"""ScalingState against histories worked out by hand, at rtol 0."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from pangu_hif8.config import QuantConfig
from pangu_hif8.errors import UserError
from pangu_hif8.scaling import ScalingState

NAN, INF = float("nan"), float("inf")


def make(algo="max_window", length=4, n=1, **more) -> ScalingState:
    config = QuantConfig(amax_compute_algo=algo, amax_history_len=length, **more)
    state = ScalingState([f"0.t{i}.input" for i in range(n)], config)
    state.set_mode("quantize")
    return state


def feed(state: ScalingState, *amaxes: float):
    """One optimizer step whose micro-batches have the given amaxes."""
    for amax in amaxes:
        state.record(0, torch.tensor(amax))
    return state.update()


def test_accumulation_gives_one_entry_with_the_largest():
    state = make()
    feed(state, 9.0, 1.0, 1.0, 1.0)
    assert state.history[:, 0].tolist() == [9.0, 0.0, 0.0, 0.0]
    assert state.num_updates == 1


def test_estimate_uses_earlier_steps_only():
    state = make("most_recent")
    first = feed(state, 3.0)
    second = feed(state, 12.0)
    assert (first.estimate.item(), first.saturated.item()) == (3.0, False)  # cold: by itself
    assert (second.estimate.item(), second.saturated.item()) == (3.0, True)
    assert feed(state, 12.0).saturated.item() is False


def test_window_forgets_after_its_length():
    state = make(length=2)
    used = [feed(state, amax).estimate.item() for amax in (8.0, 1.0, 2.0, 1.0, 1.0)]
    assert used == [8.0, 8.0, 8.0, 2.0, 2.0]


def test_smoothing_is_the_running_average_of_all_steps():
    state, expected = make("exponential_smoothing"), None
    for amax in [1.0, 5.0, 2.0, 8.0] * 25:
        used = feed(state, amax).estimate.item()
        assert expected is None or math.isclose(used, expected, rel_tol=1e-6)
        expected = amax if expected is None else 0.9 * expected + 0.1 * amax


def test_current_never_saturates_and_scales_by_itself():
    state = make("current")
    for amax in (1.0, 100.0, 2.0):
        assert state.scale_for(0, torch.tensor(amax)).item() == pytest.approx(15.0 / amax)
        step = feed(state, amax)
        assert step.estimate.item() == amax and not step.saturated.item()


def test_non_finite_and_zero_amax_are_skipped_and_counted():
    state = make(length=4)
    for amax in (1.0, NAN, 2.0, 3.0):
        feed(state, amax)
    assert state.history[:, 0].tolist() == [3.0, 2.0, 1.0, 0.0]
    assert state.num_skipped.item() == 1
    assert state.estimate.item() == 3.0
    for bad in (INF, 0.0, -INF):
        step = feed(state, bad)
        assert not step.saturated.item()
    assert state.estimate.item() == 3.0 and state.num_skipped.item() == 4


def test_amax_one_nan_two_most_recent_scales_by_two():
    state = make("most_recent")
    for amax in (1.0, NAN, 2.0):
        feed(state, amax)
    assert state.scale_for(0, torch.tensor(99.0)).item() == 7.5


def test_cold_start_after_a_bad_first_step_still_scales_by_itself():
    state = make("most_recent")
    feed(state, NAN)
    assert state.scale_for(0, torch.tensor(3.0)).item() == 5.0


@pytest.mark.parametrize("amax", [0.0, 1e-45, 1e-42, 3e38, INF, NAN])
def test_extreme_amaxes_give_finite_scales(amax):
    for algo in ("most_recent", "exponential_smoothing", "max_window", "current"):
        state = make(algo)
        assert torch.isfinite(state.scale_for(0, torch.tensor(amax)))
        feed(state, amax)
        assert torch.isfinite(state.scale_for(0, torch.tensor(amax)))


def test_state_round_trip_and_what_is_refused():
    state = make(n=3)
    feed(state, 2.0, 5.0)
    other = make(n=3)
    other.load_state_dict(state.state_dict())
    assert torch.equal(other.history, state.history) and torch.equal(other.scale, state.scale)
    for name in state.state_dict():
        damaged = state.state_dict()
        del damaged[name]
        with pytest.raises(UserError, match=name):
            other.load_state_dict(damaged)
    with pytest.raises(UserError, match="expected"):
        make(n=2).load_state_dict(state.state_dict())


def test_state_does_not_grow_with_steps():
    state = make(n=2)
    sizes = []
    for _ in range(2):
        feed(state, 1.0)
        sizes.append({k: v.shape for k, v in state.state_dict().items()})
    assert sizes[0] == sizes[1]


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="mode"):
        make().set_mode("on")


RANKS = """
import sys, torch, torch.distributed as dist
from pangu_hif8.config import QuantConfig
from pangu_hif8.scaling import ScalingState
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
state = ScalingState(["a", "b"], QuantConfig(amax_compute_algo="max_window", amax_history_len=4))
state.set_mode("quantize")
state.record(0, torch.tensor([1.0, 5.0][rank]))
if rank == 0:
    state.record(1, torch.tensor(float("nan")))
else:
    state.record(1, torch.tensor(2.0))
state.update()
print(state.history[0].tolist(), state.num_skipped.tolist())
"""


def test_two_ranks_store_the_larger_and_agree_on_a_nan(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, str(r), str(tmp_path / "meet")], stdout=subprocess.PIPE
        )
        for r in (0, 1)
    ]
    try:
        outputs = [rank.communicate(timeout=60)[0].decode().strip() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()  # one that died leaves the other waiting
    assert outputs == ["[5.0, 0.0] [0, 1]"] * 2
