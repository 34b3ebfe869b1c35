"""Sampled telemetry against NumPy on the same tensors, and that it changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_runs import losses, numpy_hif8, quant, scales, steps, text, trainer
from torch import Tensor

from pangu_hif8.quant_config import QuantConfig
from pangu_hif8.sampling import SampledStats
from pangu_hif8.scaling import ScalingState
from pangu_hif8.train import Trainer

SHORT = quant("most_recent", margin=-2.0)  # most of what lies above a quarter of the amax clips


def by_numpy(tensors: list[Tensor], scale: float, limit: float = 15.0) -> tuple[float, float, float]:
    """clipped_share, flushed_share and sqnr_db of some tensors together."""
    x = np.concatenate([t.detach().numpy().ravel() for t in tensors]).astype(np.float64)
    x_q = numpy_hif8(x, scale, limit).astype(np.float64)
    clipped = np.abs(x.astype(np.float32) * np.float32(scale)) > limit
    sqnr = 10 * np.log10((x**2).sum() / ((x - x_q) ** 2).sum())
    return float(clipped.mean()), float(((x_q == 0) & (x != 0)).mean()), float(sqnr)


def inputs_of(run: Trainer, layer: str) -> list[Tensor]:
    """Filled with the inputs of a layer as the run goes on."""
    seen: list[Tensor] = []
    hooked = run.model.get_submodule(layer)
    hooked.register_forward_hook(lambda module, args, out: seen.append(args[0].detach()))
    return seen


def stats_of(run: Trainer, step: int) -> SampledStats:
    record = run.run_step(step, text(step))
    assert record.scaling is not None
    assert record.scaling.stats is not None
    return record.scaling.stats


@pytest.mark.parametrize(
    "config", [SHORT, quant("max_window"), SHORT.model_copy(update={"overflow": "taper"})]
)
@pytest.mark.parametrize("micro", [4, 1])
def test_a_run_s_samples_are_numpy_s(config: QuantConfig, micro: int) -> None:
    run = trainer(config, telemetry_every=2, micro_batch_size=micro)
    state = scales(run)
    assert steps(run, 1)[0].scaling.stats is None  # type: ignore[union-attr]
    seen = inputs_of(run, "model.layers.1.mlp.down_proj")
    before = run.model.get_parameter("model.layers.1.mlp.down_proj.weight").detach().clone()
    scale = state.scale.clone()
    found = stats_of(run, 2)
    limit = 15.0 if config.overflow == "saturate" else 32768.0
    assert len(seen) == 4 // micro
    for name, tensors in (("1.down_proj.input", seen), ("1.down_proj.weight", [before])):
        slot = state.names.index(name)
        clipped, flushed, sqnr = by_numpy(tensors, float(scale[slot]), limit)
        assert found.clipped_share[slot].item() == pytest.approx(clipped, rel=1e-6)
        assert found.flushed_share[slot].item() == pytest.approx(flushed, rel=1e-6)
        assert found.sqnr_db[slot].item() == pytest.approx(sqnr, rel=1e-5)  # float32 sums
    assert (found.clipped_share[slot].item() > 0.1) is (config is SHORT)


def test_tiny_elements_are_flushed_and_zeros_are_not_counted() -> None:
    state = ScalingState(["0.down_proj.input"], quant("most_recent"))
    x = torch.tensor([15.0, 2.0**-24, -(2.0**-24), 2.0**-23, 0.0, -0.0, 1.0, 30.0])
    x_q = torch.from_numpy(numpy_hif8(x.numpy(), 1.0))
    state.stats.add(0, x, x_q, torch.tensor(1))
    found = state.stats.take(reduce=True)
    assert (found.clipped_share.item(), found.flushed_share.item()) == (1 / 8, 2 / 8)


def test_what_has_no_sqnr() -> None:
    state = ScalingState(["0.down_proj.input", "1.down_proj.input", "2.down_proj.input"], quant())
    for slot, x in enumerate((torch.zeros(3), torch.ones(3))):
        state.stats.add(slot, x, x.clone(), torch.tensor(0))
    found = state.stats.take(reduce=True)
    assert found.sqnr_db.isnan().tolist() == [True, False, True]
    assert found.sqnr_db[1] == float("inf")
    assert found.clipped_share.isnan().tolist() == [False, False, True]  # the third was not seen


@pytest.mark.parametrize("more", [{}, {"gradients": quant("most_recent")}])
def test_recomputation_and_micro_batches_leave_the_shares_equal(more: dict[str, QuantConfig]) -> None:
    config, found = quant("max_window", **more), []
    for recomputed in (False, True):
        run = trainer(config, telemetry_every=2, micro_batch_size=2, activation_checkpointing=recomputed)
        steps(run, 1)
        found.append(stats_of(run, 2))
    for name in ("clipped_share", "flushed_share", "sqnr_db"):
        plain, twice = (getattr(stats, name) for stats in found)
        torch.testing.assert_close(plain, twice, rtol=1e-6, atol=0)
        assert plain.isfinite().all()


def test_a_history_of_micro_batches_samples_the_whole_step() -> None:
    run = trainer(quant("max_window", history_unit="micro_batch"), telemetry_every=2, micro_batch_size=1)
    steps(run, 1)
    seen, estimates = inputs_of(run, "model.layers.1.mlp.down_proj"), []
    state = scales(run)
    slot = state.names.index("1.down_proj.input")
    layer = run.model.get_submodule("model.layers.1.mlp.down_proj")
    layer.register_forward_hook(lambda *_: estimates.append(float(state.scale[slot])))
    found = stats_of(run, 2)
    shares = [by_numpy([x], scale)[1] for x, scale in zip(seen, estimates, strict=True)]
    assert found.flushed_share[slot].item() == pytest.approx(sum(shares) / 4, rel=1e-6)
    signal = [float(x.double().square().sum()) for x in seen]
    ratios = [by_numpy([x], scale)[2] for x, scale in zip(seen, estimates, strict=True)]
    noise = [energy * 10 ** (-ratio / 10) for energy, ratio in zip(signal, ratios, strict=True)]
    expected = 10 * np.log10(sum(signal) / sum(noise))
    assert found.sqnr_db[slot].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("algo", ["max_window", "current", "most_recent"])
def test_telemetry_changes_no_loss(algo: str) -> None:
    off, often = (steps(trainer(quant(algo), telemetry_every=every), 4) for every in (0, 1))
    assert losses(off) == losses(often)
    assert [r.grad_norm for r in off] == [r.grad_norm for r in often]
    assert all(r.scaling and r.scaling.stats is None for r in off)
    assert all(r.scaling and r.scaling.stats is not None for r in often)


def test_a_step_samples_nothing_of_the_one_before() -> None:
    """Not even of a skipped one, nor of an evaluation."""
    run = trainer(quant("most_recent"), telemetry_every=1)
    steps(run, 1)
    with torch.no_grad():
        run.model(input_ids=text(9), use_cache=False)
    scales(run).stats.add(0, torch.ones(5), torch.zeros(5), torch.tensor(5))
    scales(run).discard()
    assert not scales(run).stats.sums.any()
    assert stats_of(run, 2).clipped_share.max() < 0.5
