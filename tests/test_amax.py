"""Estimators against answers worked out by hand, at rtol 0."""

from __future__ import annotations

import pytest
import torch

from pangu_hif8.amax import ESTIMATORS, amax_to_scale, is_usable, tensor_to_amax

INF, NAN = float("inf"), float("nan")
HISTORY = torch.tensor([[3.0, 0.0], [7.0, 0.0], [5.0, 0.0]])  # newest first; the second tensor is cold


def estimate(name: str, previous=(0.0, 0.0), decay=0.9) -> list[float]:
    return ESTIMATORS[name](HISTORY, torch.tensor(previous), decay).tolist()


def test_each_estimator():
    assert estimate("most_recent") == [3.0, 0.0]
    assert estimate("max_window") == [7.0, 0.0]
    assert estimate("exponential_smoothing") == [3.0, 0.0]  # the first amax starts the average
    assert estimate("exponential_smoothing", (8.0, 0.0), decay=0.5) == [5.5, 0.0]


def test_amax_of_a_tensor():
    assert tensor_to_amax(torch.tensor([1.0, -4.0, 2.0])).item() == 4.0
    assert tensor_to_amax(torch.zeros(0, 3)).item() == 0.0
    assert tensor_to_amax(torch.tensor([1.0, NAN])).isnan()
    assert tensor_to_amax(torch.tensor([1.0, -INF])).item() == INF


def test_amax_of_bfloat16_is_of_the_rounded_values():
    x = torch.tensor([1.0, -3.1415926])
    assert tensor_to_amax(x.bfloat16()).item() == x.bfloat16().abs().max().item() != 3.1415926


@pytest.mark.parametrize("amax", [0.0, 1e-45, 1e-42, 1e-30, 1.0, 3e38, INF, NAN])
def test_scale_is_always_finite_and_positive(amax):
    scale = amax_to_scale(torch.tensor([amax]), 15.0)
    assert torch.isfinite(scale).all() and (scale > 0).all()


def test_scale_maps_amax_to_the_target():
    assert amax_to_scale(torch.tensor([3.0, 30.0]), 15.0).tolist() == [5.0, 0.5]
    assert amax_to_scale(torch.tensor([0.0, INF, NAN]), 15.0).tolist() == [1.0, 1.0, 1.0]


def test_usable():
    assert is_usable(torch.tensor([1.0, 1e-42, 0.0, INF, NAN])).tolist() == [True, True, False, False, False]
