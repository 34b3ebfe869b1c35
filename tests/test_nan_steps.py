"""A step whose loss or gradient is not finite: nothing changes, it is counted, and in the end explained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_runs import differences, everything, losses, quant, scales, text, trainer
from torch import Tensor, nn

from pangu_hif8.errors import UserError
from pangu_hif8.train import Trainer

NAN, INF = float("nan"), float("inf")
GRADIENTS = {"gradients": quant("most_recent")}


class Fault(torch.autograd.Function):
    """Identity, but for a value that it adds in the forward pass and one in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.backward_value = backward
        return x + forward

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0] + ctx.backward_value, None, None


class Faulty(nn.Module):
    """A module that goes wrong while `on`, for batches that hold the token `trigger` (all, where None)."""

    def __init__(self, inner: nn.Module, forward: float, backward: float) -> None:
        super().__init__()
        self.inner, self.values, self.on = inner, (forward, backward), False
        self.weight = inner.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return Fault.apply(out, *self.values) if self.on else out


class BadWeightGradient(nn.Module):
    """A vector added to the activations whose own gradient is NaN: all activations' gradients are finite."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.shift, self.on = inner, nn.Parameter(torch.zeros(32)), False

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out + (Fault.apply(self.shift, 0.0, NAN) if self.on else self.shift)


def with_fault(config: Any = None, forward: float = 0.0, backward: float = 0.0, **more: Any) -> Trainer:
    """The norm before block 2's attention can go wrong; its MLP is quantized where `config` says so."""
    run = trainer(config, **more)
    block = run.model.get_submodule("model.layers.2")
    block.input_layernorm = Faulty(block.input_layernorm, forward, backward)
    return run


def switch(run: Trainer, on: bool) -> None:
    for module in run.model.modules():
        if isinstance(module, Faulty | BadWeightGradient):
            module.on = on


CONFIGS = {
    "baseline": None,
    "window": quant("max_window"),
    "current": quant("current"),
    "gradients": quant("max_window", **GRADIENTS),
    "micro-batches": quant("max_window", history_unit="micro_batch", **GRADIENTS),
    "interval": quant("exponential_smoothing", amax_update_interval=2),
    "warm-up": quant("max_window", bf16_warmup_steps=3),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("forward", "backward"), [(NAN, 0.0), (INF, 0.0), (0.0, NAN)])
@pytest.mark.parametrize("bad", [1, 3])
def test_a_bad_step_changes_no_bit_and_is_counted(
    name: str, forward: float, backward: float, bad: int
) -> None:
    run = with_fault(CONFIGS[name], forward, backward, micro_batch_size=2, telemetry_every=1)
    for step in range(1, bad):
        assert not run.run_step(step, text(step)).skipped
    before = everything(run)
    switch(run, True)
    record = run.run_step(bad, text(bad))
    assert record.skipped
    assert record.scaling is None
    assert run.num_skipped_in_row == 1
    assert differences(before, everything(run)) == []
    assert all(p.grad is None for p in run.model.parameters())
    switch(run, False)
    assert not run.run_step(bad + 1, text(bad + 1)).skipped
    assert run.num_skipped_in_row == 0


@pytest.mark.parametrize("name", CONFIGS)
def test_what_follows_is_as_if_the_bad_batch_had_not_been(name: str) -> None:
    """At a constant rate; the step that calibrates or quantizes goes by its number."""
    config = CONFIGS[name]
    steps_of = {True: (1, 2, 3, 4, 5), False: (1, 2, 4, 5)}
    found = []
    for faulty in (True, False):
        run = with_fault(config, NAN, micro_batch_size=2, steps=10**9)
        for step in steps_of[faulty]:
            switch(run, step == 3)
            run.run_step(step, text(step))
        found.append(everything(run))
    assert differences(*found) == []


def test_only_one_bad_micro_batch_skips_the_step() -> None:
    """One row holds a token whose embedding overflows; the three other micro-batches are fine."""
    run = trainer(quant("max_window", history_unit="micro_batch"), micro_batch_size=1)
    model = run.model
    assert not run.run_step(1, text(1) % 60).skipped
    with torch.no_grad():
        model.get_parameter("model.embed_tokens.weight")[63] = 3e38
    before = everything(run)
    batch = text(2) % 60
    batch[3, 0] = 63
    assert run.run_step(2, batch).skipped
    assert differences(before, everything(run)) == []
    assert not run.run_step(3, text(3) % 60).skipped


def stop(run: Trainer, num: int = 3) -> str:
    """Steps until the run stops; the last one has number 10 + num."""
    run.describe_batch = lambda step: f"sequences [{step}, 7]"
    for step in range(11, 10 + num):
        assert run.run_step(step, text(step)).skipped
    with pytest.raises(UserError) as caught:
        run.run_step(10 + num, text(10 + num))
    message = str(caught.value)
    assert message.startswith(f"step {10 + num}: loss ")
    assert f"{num} steps in a row" in message
    assert f"Batch: sequences [{10 + num}, 7]. " in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("config", [None, quant("max_window"), quant("current")])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_module_that_overflows_is_named(config: Any, recompute: bool) -> None:
    run = with_fault(config, INF, micro_batch_size=2, activation_checkpointing=recompute)
    switch(run, True)
    message = stop(run)
    assert "First: the output of model.layers.2.self_attn.q_proj is the first tensor that is not" in message
    assert "in micro-batch 1 of 2" in message


def test_an_overflow_that_quantization_clips_is_counted_and_trained_through() -> None:
    """Inf in the input of a quantized layer comes out as the limit: the loss is finite, the amax is not."""
    for algo in ("most_recent", "current"):
        run = trainer(quant(algo))
        run.run_step(1, text(1))
        before, slot = scales(run).history.clone(), scales(run).names.index("2.down_proj.input")
        act = run.model.get_submodule("model.layers.2.mlp.act_fn")
        hook = act.register_forward_hook(lambda module, args, out: torch.full_like(out, INF))
        for parameter in run.model.parameters():
            parameter.requires_grad_(False)
        run.model.lm_head.weight.requires_grad_(True)
        record = run.run_step(2, text(2))
        hook.remove()
        assert not record.skipped
        assert record.scaling is not None
        assert record.scaling.amax[slot] == INF
        assert scales(run).num_skipped[slot] == 1
        assert torch.equal(scales(run).history[:, slot], before[:, slot])


def test_a_leaf_that_overflows_is_named() -> None:
    run = trainer(quant("max_window"))
    run.model.get_submodule("model.layers.1.self_attn.o_proj").register_forward_hook(
        lambda module, args, out: out * INF
    )
    assert "the output of model.layers.1.self_attn.o_proj is the first tensor that" in stop(run)


def test_the_micro_batch_is_named() -> None:
    run = trainer(quant("max_window"), micro_batch_size=1, max_skipped_steps=1)
    with torch.no_grad():
        run.model.get_parameter("model.embed_tokens.weight")[63] = 3e38
    batch = text(11) % 60
    batch[2, 5] = 63
    with pytest.raises(UserError, match="in micro-batch 3 of 4"):
        run.run_step(11, batch)


def test_a_weight_is_named() -> None:
    run = trainer(quant("max_window"), max_skipped_steps=2)
    with torch.no_grad():
        run.model.get_parameter("model.layers.1.mlp.up_proj.weight")[3, 4] = NAN
    assert "First: the weight model.layers.1.mlp.up_proj.weight holds values that" in stop(run, 2)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gradient_is_named(recompute: bool) -> None:
    run = with_fault(quant("max_window", **GRADIENTS), backward=NAN, activation_checkpointing=recompute)
    switch(run, True)
    message = stop(run)
    # the gradient goes back through the fault into the output of the norm inside it
    assert "the gradient at the output of model.layers.2.input_layernorm.inner" in message
    assert "loss nan" not in message
    assert "gradient norm nan" in message


def test_a_weight_s_own_gradient_is_named() -> None:
    run = trainer(quant("max_window"))
    bad = BadWeightGradient(run.model.model.norm)
    run.model.model.norm = bad
    run.adamw.add_param_group({"params": [bad.shift], "lr_factor": 1.0, "weight_decay": 0.0})
    switch(run, True)
    assert "the gradient of the weight model.norm.shift is not finite" in stop(run)


def test_a_gradient_norm_that_overflows_is_told_from_its_parts() -> None:
    """Every gradient is finite, and the sum of their squares is not."""
    run = with_fault(None, backward=1e30)
    switch(run, True)
    message = stop(run)
    assert "gradient norm inf" in message
    assert "all gradients are finite, but their squares overflow" in message


def test_a_good_step_begins_the_count_anew() -> None:
    run = with_fault(quant("max_window"), NAN, max_skipped_steps=2)
    for step in range(1, 7):
        switch(run, step % 2 == 0)
        assert run.run_step(step, text(step)).skipped is (step % 2 == 0)


def test_a_stopped_run_keeps_its_state() -> None:
    run = with_fault(quant("max_window", **GRADIENTS), NAN, max_skipped_steps=1)
    run.run_step(1, text(1))
    before = everything(run)
    switch(run, True)
    with pytest.raises(UserError):
        run.run_step(2, text(2))
    assert differences(before, everything(run)) == []
    switch(run, False)
    assert losses([run.run_step(3, text(3))])[0] > 0
