"""Every setting of the quantizer and of the optimizer, seen in a run: against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from engine_runs import (
    TokensAreAmaxes,
    crafted,
    estimates,
    feed,
    numpy_hif8,
    quant,
    rows,
    scales,
    state,
    steps,
    text,
    tokens_of,
    trainer,
)
from test_linear import tiny_llama
from test_train import Successor
from torch import Tensor, nn

from pangu_hif8.config import OptimizerConfig, TensorConfig, TrainConfig
from pangu_hif8.errors import UserError
from pangu_hif8.linear import HiF8Linear, converted_linears, prepare_qat
from pangu_hif8.optimizer import make_adamw, set_learning_rate
from pangu_hif8.train import Trainer, next_token_loss_sum

NAN, INF = float("nan"), float("inf")


# ---- the scale -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hif8_max", [8.0, 15.0, 56.0, 224.0])
@pytest.mark.parametrize("margin", [-2.0, 0.0, 1.0])
def test_the_scale_maps_the_estimate_and_its_margin_to_hif8_max(hif8_max: float, margin: float) -> None:
    scaling = state(quant("most_recent", hif8_max=hif8_max, margin=margin))
    assert feed(scaling, 3.0) == [3.0 * 2**margin]
    assert scaling.scale.item() == torch.tensor(hif8_max / (3.0 * 2**margin)).item()  # one rounding
    scaling.record(0, torch.tensor(3.0))
    assert scaling.update().saturated.item() is (margin < 0)


@pytest.mark.parametrize("hif8_max", [8.0, 15.0, 56.0, 224.0])
@pytest.mark.parametrize("overflow", ["saturate", "taper"])
@pytest.mark.parametrize("algo", ["most_recent", "current"])
def test_what_a_layer_computes_at_each_limit(hif8_max: float, overflow: str, algo: str) -> None:
    torch.manual_seed(0)
    scaling = state(quant(algo, hif8_max=hif8_max, overflow=overflow, margin=-1.0), "input", "weight")
    layer = HiF8Linear.from_float(nn.Linear(64, 64, bias=False), scaling, 0)
    x = torch.randn(64, 64)
    for _ in range(2):
        out = layer(x)
        scaling.update()
    limit = hif8_max if overflow == "saturate" else 32768.0

    def definition(t: Tensor) -> Tensor:
        numbers = t.detach().numpy()
        amax = abs(numbers).max()  # at margin -1 half of it is mapped to hif8_max, and the rest lies beyond
        return torch.from_numpy(numpy_hif8(numbers, float(torch.tensor(hif8_max) / (amax / 2)), limit))

    torch.testing.assert_close(out, definition(x) @ definition(layer.weight).T, rtol=0, atol=0)
    assert layer.quantized_weight is not None
    top = layer.quantized_weight.abs().max() / layer.weight.detach().abs().max()
    assert float(top) == pytest.approx(0.5 if overflow == "saturate" else 1.0, rel=0.2)  # rounding


def test_inputs_and_weights_have_settings_of_their_own() -> None:
    weights = TensorConfig(
        amax_compute_algo="max_window", amax_history_len=2, hif8_max=56.0, overflow="taper", margin=1.0
    )
    scaling = state(quant("most_recent", weights=weights), "input", "weight")
    assert [feed(scaling, amax, amax) for amax in (8.0, 2.0, 1.0)] == [[8.0, 16.0], [2.0, 16.0], [1.0, 4.0]]
    assert scaling.scale.tolist() == [15.0, 14.0]
    assert [s.overflow for s in scaling.slot_settings] == ["saturate", "taper"]


def test_a_shorter_window_forgets_earlier_beside_a_longer_one() -> None:
    weights = TensorConfig(amax_compute_algo="max_window", amax_history_len=1)
    scaling = state(quant("max_window", amax_history_len=3, weights=weights), "input", "weight")
    found = [feed(scaling, amax, amax) for amax in (8.0, 2.0, 1.0, 1.0)]
    assert found == [[8.0, 8.0], [8.0, 2.0], [8.0, 1.0], [2.0, 1.0]]


def test_weights_as_they_stand_and_inputs_delayed_in_one_run() -> None:
    """No weight saturates under current scaling, while the inputs' amax of the step before is used."""
    weights = TensorConfig(amax_compute_algo="current")
    run = crafted(quant("most_recent", weights=weights), lr=0.1)
    records = steps(run, 3, lambda step: tokens_of((9, 2, 12)[step - 1]))
    slots = [slot for slot, name in enumerate(scales(run).names) if name.endswith("weight")]
    for record in records:
        assert record.scaling is not None
        assert torch.equal(record.scaling.amax[slots], record.scaling.estimate[slots])
    assert [r.scaling.estimate[0].item() for r in records if r.scaling] == [9.0, 9.0, 2.0]


# ---- when the estimate moves ---------------------------------------------------------------------------


def test_an_update_interval_keeps_the_scale_while_the_history_goes_on() -> None:
    run = crafted(quant("max_window", amax_update_interval=3))
    assert estimates(run, 9, 2, 12, 3, 14, 1, 1) == [9.0, 9.0, 9.0, 12.0, 12.0, 12.0, 14.0]
    assert scales(run).history[:, 0].tolist() == [1.0, 1.0, 14.0, 3.0]


def test_smoothing_sees_every_step_between_updates() -> None:
    run = crafted(quant("exponential_smoothing", smoothing_decay=0.5, amax_update_interval=3))
    # averages after each step: 8, 6, 9, 8.5, 5.25, 9.625
    assert estimates(run, 8, 4, 12, 8, 2, 14, 1) == [8.0, 8.0, 8.0, 9.0, 9.0, 9.0, 9.625]


def test_a_history_of_micro_batches_counts_each() -> None:
    run = crafted(quant("max_window", history_unit="micro_batch"), micro_batch_size=1)
    record = run.run_step(1, rows(9, 1, 2, 1))
    assert scales(run).history[:, 0].tolist() == [1.0, 2.0, 1.0, 9.0]
    assert scales(run).num_updates == 4
    run.run_step(2, rows(1, 1, 1, 1))  # the published code's window: 4 entries are one step
    assert scales(run).history[:, 0].tolist() == [1.0] * 4
    assert record.scaling is not None
    assert record.scaling.amax[0] == 9.0


def test_a_step_of_micro_batches_is_recorded_by_its_worst() -> None:
    run = crafted(quant("most_recent", history_unit="micro_batch"), micro_batch_size=1)
    run.run_step(1, rows(4, 4, 4, 4))
    record = run.run_step(2, rows(2, 6, 12, 9))  # against 4, 2, 6 and 12
    assert record.scaling is not None
    assert (record.scaling.amax[0], record.scaling.estimate[0]) == (6.0, 2.0)
    assert record.scaling.saturated[0]


def test_a_warm_up_s_history_is_kept_or_emptied() -> None:
    largest = (14, 2, 3, 5, 4)
    kept, emptied = (
        crafted(quant("max_window", bf16_warmup_steps=2, warmup_history=choice))
        for choice in ("kept", "emptied")
    )
    assert estimates(kept, *largest) == [14.0, 14.0, 14.0, 14.0, 14.0]
    # the first quantized step scales by its own batch, as that of a run without warm-up does
    assert estimates(emptied, *largest) == [14.0, 14.0, 3.0, 3.0, 5.0]
    assert scales(emptied).history[:, 0].tolist() == [4.0, 5.0, 3.0, 0.0]


def test_a_step_without_an_estimate_never_runs_at_scale_one() -> None:
    """After emptying, the layer's output is that of a scale made from the batch itself."""
    run = crafted(quant("max_window", bf16_warmup_steps=1, warmup_history="emptied"))
    seen: list[Tensor] = []
    run.model.head.register_forward_hook(lambda *_: seen.append(scales(run).scale[0].clone()))
    steps(run, 2, lambda step: tokens_of((14, 3)[step - 1]))
    assert seen[-1] == 5.0


def test_an_adaptive_warm_up_ends_when_the_history_has_settled() -> None:
    model = TokensAreAmaxes()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.head.requires_grad_(True)
    config = quant(amax_history_len=3, bf16_warmup_steps=9, adaptive_warmup_spread=0.5)
    run = trainer(config, model, blocks=0)
    # (largest - smallest) / mean of the last three: - - 8/5=1.6, 6/4=1.5, 0.25, whereupon step 6 quantizes
    largest = (9, 1, 5, 6, 1, 9, 9)
    by_hand = {3: 8 / 5, 4: 5 / 4, 5: 5 / 4}
    for step in range(1, 8):
        record = run.run_step(step, tokens_of(largest[step - 1]))
        if step in by_hand:
            assert scales(run).spread()[0].item() == pytest.approx(by_hand[step], rel=1e-6)
        assert record.scaling is not None
        assert record.scaling.quantized is (step >= 4)


def test_spread_and_the_latest_switch() -> None:
    scaling = state(quant(amax_history_len=3))
    for amax in (4.0, 6.0):
        feed(scaling, amax)
        assert scaling.spread().item() == INF
    feed(scaling, 5.0)
    assert scaling.spread().item() == torch.tensor(2.0).div(5.0).item()
    run = crafted(quant(bf16_warmup_steps=3, adaptive_warmup_spread=1e-9))
    quantized = [r.scaling.quantized for r in steps(run, 5, lambda step: tokens_of(step)) if r.scaling]
    assert quantized == [False, False, False, True, True]


def test_a_spread_without_a_window_is_refused() -> None:
    with pytest.raises(UserError, match="adaptive_warmup_spread without a window"):
        crafted(quant("most_recent", bf16_warmup_steps=3, adaptive_warmup_spread=0.1))


# ---- which blocks, rates and labels --------------------------------------------------------------------


def test_hp_blocks_replace_the_first_and_last() -> None:
    model = tiny_llama(6)
    prepare_qat(model, quant(), 3, 2, hp_blocks=[0, 2, 5])
    assert {int(name.split(".")[2]) for name in converted_linears(model)} == {1, 3, 4}
    for bad, words in (([6], "blocks 0 to 5"), ([-1], "block -1"), (list(range(6)), "keeps all 6")):
        with pytest.raises(UserError, match=words):
            prepare_qat(tiny_llama(6), quant(), 3, 2, hp_blocks=bad)


def test_layer_wise_rates_by_hand() -> None:
    model = tiny_llama(3)
    adamw = make_adamw(model, 1.0, OptimizerConfig(lr_decay_per_block=0.5))
    set_learning_rate(adamw, 0.8)
    names = {p: name for name, p in model.named_parameters()}
    found = {names[p]: group["lr"] for group in adamw.param_groups for p in group["params"]}
    assert len(found) == len(names)
    for name, rate in found.items():
        parts = {"embed_tokens": 0.1, "layers.0.": 0.2, "layers.1.": 0.4, "layers.2.": 0.8}
        assert rate == next((value for part, value in parts.items() if part in name), 0.8), name


def test_labels_shifted_twice_are_the_published_code_s() -> None:
    vocab, sure = 16, 5.0
    counting = torch.arange(10).repeat(2, 1)
    wrong = math.log(math.exp(sure) + vocab - 1)  # the token after next has logit 0
    loss = next_token_loss_sum(Successor(vocab, sure), counting, 2) / (2 * 8)
    assert loss.item() == pytest.approx(wrong, rel=1e-6)
    run = trainer(None, Successor(vocab, sure), label_shift=2)
    assert run.run_step(1, counting.repeat(2, 1)).loss == pytest.approx(wrong, rel=1e-6)
    by_two = (torch.arange(5) * 2).repeat(4, 1)  # every other token: what it predicts never comes
    run = trainer(None, Successor(vocab, sure), label_shift=1)
    assert run.run_step(1, by_two).loss == pytest.approx(wrong, rel=1e-6)


@pytest.mark.parametrize("lr", [1e-3, 1e-5])
def test_the_share_of_moved_weights_is_counted(lr: float) -> None:
    run = trainer(None, lr=lr, weight_dtype="bfloat16", record_moved_share=True, telemetry_every=2)
    for step in range(1, 5):
        before = [p.detach().clone() for p in run.model.parameters() if p.ndim == 2]
        record = run.run_step(step, text(step))
        moved = [(p != old).flatten() for p, old in zip(_matrices(run), before, strict=True)]
        assert record.moved_share == (torch.cat(moved).double().mean().item() if step % 2 == 0 else None)
    assert record.moved_share is not None
    assert (0 < record.moved_share < 0.5) is (lr == 1e-5)  # most steps are lost in bfloat16's rounding


def _matrices(run: Trainer) -> list[Tensor]:
    return [p for p in run.model.parameters() if p.ndim == 2]


def test_unknown_settings_are_refused() -> None:
    for settings in (
        dict(hif8max=8.0),
        dict(margin=17.0),
        dict(history_unit="epoch"),
        dict(weights={"x": 1}),
    ):
        with pytest.raises(ValueError, match=next(iter(settings))):
            quant(**settings)
    with pytest.raises(ValueError, match="label_shift"):
        TrainConfig(steps=1, batch_size=1, micro_batch_size=1, label_shift=3)
