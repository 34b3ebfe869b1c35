"""A user's own function as an estimator: what it is given, what it may return, which names it may have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from engine_runs import crafted, estimates, feed, quant, state
from torch import Tensor

from pangu_hif8.amax import ESTIMATORS, register_estimator
from pangu_hif8.config import QuantConfig, TensorConfig
from pangu_hif8.errors import UserError
from pangu_hif8.quant_config import CUSTOM_ALGOS

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def own() -> Iterator[list[tuple[int, ...]]]:
    """Registers median_of_window; gives the shapes that it was called with."""
    shapes: list[tuple[int, ...]] = []

    def median_of_window(history: Tensor, previous: Tensor, decay: float) -> Tensor:
        shapes.append((*history.shape, *previous.shape))
        filled = torch.where(history > 0, history, torch.nan)
        return filled.nanmedian(0).values

    register_estimator("median_of_window", median_of_window)
    yield shapes
    del ESTIMATORS["median_of_window"]
    CUSTOM_ALGOS.discard("median_of_window")


def test_a_user_s_estimator_decides_the_scale(own: list[tuple[int, ...]]) -> None:
    run = crafted(quant("median_of_window", amax_history_len=3))
    assert estimates(run, 9, 1, 4, 2, 3) == [9.0, 9.0, 1.0, 4.0, 2.0]
    assert set(own) == {(3, 2, 2), (3, 3, 3)}  # two inputs, three weights


def _answers(*values: object) -> None:
    answers = iter(values)
    register_estimator("scripted", lambda history, previous, decay: next(answers))


@pytest.fixture
def scripted() -> Iterator[None]:
    yield
    ESTIMATORS.pop("scripted", None)
    CUSTOM_ALGOS.discard("scripted")


@pytest.mark.usefixtures("scripted")
def test_a_result_that_is_no_estimate_keeps_the_last() -> None:
    _answers(*(torch.tensor([value]) for value in (5.0, NAN, INF, 0.0, -1.0, 6.0)))
    scaling = state(quant("scripted"))
    assert [feed(scaling, 1.0) for _ in range(6)] == [[5.0]] * 5 + [[6.0]]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("answer", [torch.ones(2), torch.ones(()), torch.ones(1, 1), 3.0, None])
def test_a_result_of_another_shape_is_refused(answer: object) -> None:
    _answers(answer)
    with pytest.raises(UserError, match=r"scripted returned .* \(1,\)"):
        feed(state(quant("scripted")), 1.0)


@pytest.mark.usefixtures("own")
def test_names_that_can_t_be_estimators() -> None:
    with pytest.raises(UserError, match=r"other than most_recent, .*, current"):
        register_estimator("max_window", ESTIMATORS["most_recent"])
    with pytest.raises(UserError, match="identifier"):
        register_estimator("my estimator", ESTIMATORS["most_recent"])
    with pytest.raises(ValueError, match="called"):
        register_estimator("mine", 3)  # type: ignore[arg-type]
    valid = "valid: most_recent, exponential_smoothing, max_window, current, median_of_window"
    with pytest.raises(ValueError, match=valid):
        QuantConfig(amax_compute_algo="minimum")
    with pytest.raises(ValueError, match=valid):
        TensorConfig(amax_compute_algo="")
