"""What must not change a run: how the batch is cut, recomputation, evaluation in between, frozen parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_runs import (
    TokensAreAmaxes,
    differences,
    everything,
    losses,
    quant,
    rows,
    scales,
    steps,
    text,
    trainer,
)
from test_linear import tiny_llama
from torch import Tensor, nn

from pangu_hif8.config import QuantConfig
from pangu_hif8.linear import HiF8Linear, converted_linears
from pangu_hif8.train import Trainer

WITH_GRADIENTS = quant("most_recent").model_copy(update={"gradients": quant("most_recent")})


def history(run: Trainer, name: str) -> list[float]:
    state = scales(run)
    return state.history[:, state.names.index(name)].tolist()


@pytest.mark.parametrize("largest", [(9, 1, 1, 1), (1, 1, 9, 1), (1, 1, 1, 9)])
def test_four_micro_batches_give_one_entry_the_largest(largest: tuple[int, ...]) -> None:
    run = trainer(quant(), TokensAreAmaxes(), blocks=0, micro_batch_size=1)
    run.run_step(1, rows(*largest))
    assert history(run, "0.gate_proj,up_proj.input") == [9.0, 0.0, 0.0, 0.0]
    run.run_step(2, rows(2, 2, 2, 2))
    assert history(run, "0.gate_proj,up_proj.input") == [2.0, 9.0, 0.0, 0.0]
    assert scales(run).num_updates == 2


def test_a_module_called_twice_has_one_entry_the_larger() -> None:
    run = trainer(quant(), TokensAreAmaxes(calls=2), blocks=0, micro_batch_size=2)
    run.run_step(1, rows(5, 1, 1, 1))
    assert history(run, "0.gate_proj,up_proj.input") == [10.0, 0.0, 0.0, 0.0]


def test_amax_of_the_text_scales_the_next_step() -> None:
    run = trainer(quant("most_recent"), TokensAreAmaxes(), blocks=0, micro_batch_size=1)
    records = steps(run, 3, lambda step: rows(*[(9, 1, 1, 1), (2, 3, 2, 2), (12, 1, 1, 1)][step - 1]))
    assert [r.scaling.estimate[0].item() for r in records if r.scaling] == [9.0, 9.0, 3.0]
    assert [r.scaling.saturated[0].item() for r in records if r.scaling] == [False, False, True]


@pytest.mark.parametrize("config", [quant(), quant(bf16_warmup_steps=2), quant("current"), WITH_GRADIENTS])
@pytest.mark.parametrize("micro", [4, 2])
def test_recomputation_changes_no_bit(config: QuantConfig, micro: int) -> None:
    kept, recomputed = (
        trainer(config, micro_batch_size=micro, activation_checkpointing=on) for on in (False, True)
    )
    assert losses(steps(kept, 4)) == losses(steps(recomputed, 4))
    before, after = everything(kept), everything(recomputed)
    assert differences(before, after) == []
    assert scales(kept).num_updates == 4


def test_recomputation_happens() -> None:
    run, calls = trainer(quant(), activation_checkpointing=True), []
    layer = run.model.get_submodule(converted_linears(run.model)[0])
    layer.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    run.run_step(1, text(1))
    assert calls == [False, True, True]  # the first look, the step, the step's recomputation


@pytest.mark.parametrize(
    ("algo", "more"),
    [
        ("max_window", {}),
        ("exponential_smoothing", {}),
        ("current", {}),
        ("max_window", {"warmup_history": "emptied"}),
        ("max_window", {"adaptive_warmup_spread": 9.0}),
    ],
)
def test_evaluation_between_steps_changes_no_byte_of_state_nor_later_losses(
    algo: str, more: dict[str, Any]
) -> None:
    config = quant(algo, bf16_warmup_steps=5, **more)
    plain, evaluated = trainer(config), trainer(config)
    for step in range(1, 8):
        assert plain.run_step(step, text(step)).loss == evaluated.run_step(step, text(step)).loss
        before = everything(evaluated)
        _evaluate(evaluated)
        assert differences(before, everything(evaluated)) == []
    assert differences(everything(plain), everything(evaluated)) == []


def _evaluate(run: Trainer) -> None:
    """In every way: as the training left it, without gradients; and frozen, left so, with gradients."""
    with torch.no_grad():
        run.model(input_ids=text(99), use_cache=False)
    scales(run).set_mode("frozen")
    run.model(input_ids=text(98), use_cache=False).logits.sum().backward()
    run.adamw.zero_grad()


def freeze(model: nn.Module, *parts: str) -> None:
    for part in parts:
        for parameter in model.get_submodule(part).parameters():
            parameter.requires_grad_(False)


def test_a_frozen_block_trains_on_and_its_weight_history_is_constant() -> None:
    for config in (quant(), WITH_GRADIENTS):
        model = tiny_llama()
        freeze(model, "model.layers.1")
        run = trainer(config, model, micro_batch_size=2)
        before = {name: p.clone() for name, p in model.model.layers[1].named_parameters()}
        records = steps(run, 5)
        assert len(set(losses(records))) == 5
        assert len(set(history(run, "1.up_proj.weight"))) == 1
        assert len({*(r.scaling.amax[0].item() for r in records if r.scaling)}) == 5  # its input's do move
        assert differences(before, dict(model.model.layers[1].named_parameters())) == []


def test_gradients_that_nothing_asks_for_have_a_constant_history_and_one_first_look() -> None:
    model = tiny_llama()
    freeze(model, "model.embed_tokens", "model.layers.0", "model.layers.1")
    run = trainer(WITH_GRADIENTS, model)
    calls: list[bool] = []
    model.lm_head.register_forward_hook(lambda *_: calls.append(True))
    steps(run, 3)
    for layer in ("gate_proj", "up_proj", "down_proj"):
        assert history(run, f"1.{layer}.gradient") == [0.0]
    assert history(run, "2.down_proj.gradient") != [0.0]
    assert len(calls) == 4  # three steps, and the first look once


@pytest.mark.parametrize("algo", ["max_window", "current"])
def test_tied_embeddings_are_never_quantized(algo: str) -> None:
    model = tiny_llama(tie_word_embeddings=True)
    run = trainer(quant(algo), model)
    inputs: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, out: inputs.append(args[0].detach()))
    steps(run, 2)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not isinstance(model.lm_head, HiF8Linear)
    with torch.no_grad():
        logits = model(input_ids=text(3), use_cache=False).logits
    assert torch.equal(logits, inputs[-1] @ model.model.embed_tokens.weight.T)


@pytest.mark.parametrize("algo", ["most_recent", "exponential_smoothing", "max_window"])
def test_micro_batches_change_neither_scales_nor_losses(algo: str) -> None:
    """Without warm-up; float32 sums in another order are what 1e-5 leaves room for."""
    whole, cut = (trainer(quant(algo), micro_batch_size=micro, lr=1e-3) for micro in (4, 1))
    first, second = steps(whole, 6), steps(cut, 6)
    assert losses(first) == pytest.approx(losses(second), rel=1e-5)
    for a, b in zip(first, second, strict=True):
        assert a.scaling and b.scaling
        torch.testing.assert_close(a.scaling.estimate, b.scaling.estimate, rtol=1e-5, atol=0)
    torch.testing.assert_close(scales(whole).scale, scales(cut).scale, rtol=1e-5, atol=0)


def test_micro_batches_also_leave_quantized_gradients_alone() -> None:
    whole, cut = (trainer(WITH_GRADIENTS, micro_batch_size=micro, lr=1e-3) for micro in (4, 1))
    assert losses(steps(whole, 4)) == pytest.approx(losses(steps(cut, 4)), rel=1e-5)
    torch.testing.assert_close(scales(whole).scale, scales(cut).scale, rtol=1e-3, atol=0)


def test_current_scaling_depends_on_the_cut_by_nature() -> None:
    """Each micro-batch is a tensor of its own with a scale of its own."""
    records = [steps(trainer(quant("current"), micro_batch_size=m, lr=1e-3), 1)[0] for m in (4, 1)]
    assert records[0].loss != records[1].loss
    assert records[0].loss == pytest.approx(records[1].loss, rel=1e-3)
