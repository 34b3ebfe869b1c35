"""The loop: a known next-token loss, accumulation, the schedule, the switch, repeatability."""

from __future__ import annotations

import math

import pytest
import torch
from test_linear import tiny_llama
from torch import nn

from pangu_hif8.config import OptimizerConfig, QuantConfig, TrainConfig
from pangu_hif8.linear import prepare_qat
from pangu_hif8.optimizer import learning_rate, parameter_groups
from pangu_hif8.train import fit, next_token_loss_sum


def settings(steps: int, micro: int = 4, **more) -> TrainConfig:
    return TrainConfig(steps=steps, batch_size=4, micro_batch_size=micro, bf16_warmup_steps=0, **more)


class Successor(nn.Module):
    """Predicts token + 1 with logit `sure`: its next-token loss on a counting text is known."""

    def __init__(self, vocab: int, sure: float) -> None:
        super().__init__()
        self.vocab, self.sure = vocab, nn.Parameter(torch.tensor(sure))

    def forward(self, input_ids, use_cache=False):
        hot = nn.functional.one_hot((input_ids + 1) % self.vocab, self.vocab)
        return type("Output", (), {"logits": hot * self.sure})


def text(step: int, batch: int = 4, seq: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(0, 64, (batch, seq), generator=generator)


def run(model=None, algo=None, steps=4, micro=4, lr=1e-3, warmup=0, **more):
    model = model or tiny_llama()
    scaling = None
    if algo:
        config = QuantConfig(amax_compute_algo=algo, amax_history_len=4, bf16_warmup_steps=warmup, **more)
        scaling = prepare_qat(model, config, 1, 1)
    records = fit(model, text, settings(steps, micro), lr, scaling=scaling)
    return model, scaling, records


def test_labels_are_shifted_once():
    vocab, sure = 16, 5.0
    tokens = torch.arange(10).repeat(3, 1)
    expected = math.log(1 + (vocab - 1) * math.exp(-sure))
    loss = next_token_loss_sum(Successor(vocab, sure), tokens) / (3 * 9)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_loss_equals_the_library_s_own():
    model, tokens = tiny_llama(), text(1)
    ours = next_token_loss_sum(model, tokens) / (4 * 11)
    assert ours.item() == pytest.approx(model(input_ids=tokens, labels=tokens).loss.item(), rel=1e-6)


def test_accumulation_gives_the_loss_and_gradient_of_one_large_batch():
    whole, parts = (run(micro=micro, steps=3)[2] for micro in (4, 1))
    for a, b in zip(whole, parts, strict=True):
        # float32 sums in another order: some ulp (6e-8) of the loss, more of the norm over 30,000 gradients
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)


def test_accumulation_gives_the_amax_history_of_one_large_batch():
    whole, parts = (run(algo="max_window", micro=micro, steps=3, warmup=2) for micro in (4, 1))
    assert torch.allclose(whole[1].history, parts[1].history, rtol=1e-4)
    for a, b in zip(whole[2], parts[2], strict=True):
        # the third step rounds to 8 bits: an ulp in front of it moves some values by 1/16, few enough
        assert a.loss == pytest.approx(b.loss, rel=1e-3)


def test_same_seed_same_bits():
    for algo in (None, "current", "exponential_smoothing"):
        first, second = run(algo=algo)[2], run(algo=algo)[2]
        assert [(r.loss, r.grad_norm) for r in first] == [(r.loss, r.grad_norm) for r in second]


def test_training_lowers_the_loss_and_moves_every_parameter():
    model = tiny_llama()
    before = [p.detach().clone() for p in model.parameters()]
    records = fit(model, lambda _: text(0), settings(20), 1e-2)
    assert records[-1].loss < 0.8 * records[0].loss
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_switch_happens_once_after_the_warm_up_with_a_filled_history():
    _, scaling, records = run(algo="max_window", steps=6, warmup=3)
    assert [r.scaling.quantized for r in records] == [False] * 3 + [True] * 3
    amaxes = torch.stack([r.scaling.amax for r in records])
    assert torch.equal(records[3].scaling.estimate, amaxes[:3].amax(0))
    assert scaling.num_updates == 6


def test_warm_up_steps_equal_the_baseline_bit_for_bit():
    baseline = run(steps=5)[2]
    warmed = run(algo="max_window", steps=5, warmup=3)[2]
    # the fourth step is the first to quantize; its loss is the first to differ
    same = [a.loss == b.loss for a, b in zip(baseline, warmed, strict=True)]
    assert same[:3] == [True] * 3 and same[3] is False


def expected_estimates(algo: str, amaxes: torch.Tensor) -> torch.Tensor:
    """What each step but the first has to be scaled by, from the recorded amaxes [steps, n] alone."""
    if algo == "current":
        return amaxes[1:]
    if algo == "most_recent":
        return amaxes[:-1]
    if algo == "max_window":
        return torch.stack([amaxes[max(0, t - 4) : t].amax(0) for t in range(1, len(amaxes))])
    averages = [amaxes[0]]
    for amax in amaxes[1:-1]:
        averages.append(0.9 * averages[-1] + (1.0 - 0.9) * amax)
    return torch.stack(averages)


def amaxes_before_quantization() -> torch.Tensor:
    """What a run without warm-up looks at before its first step: the amaxes of its batch, unquantized."""
    return run(algo="max_window", steps=2, warmup=1)[2][0].scaling.amax[None]


@pytest.mark.parametrize("algo", ["most_recent", "exponential_smoothing", "max_window", "current"])
def test_every_step_is_scaled_by_what_its_estimator_says(algo):
    steps = [r.scaling for r in run(algo=algo, steps=8, lr=1e-2)[2]]
    amaxes = torch.stack([s.amax for s in steps])
    estimates = torch.stack([s.estimate for s in steps])
    seeded = amaxes[:1] if algo == "current" else amaxes_before_quantization()
    assert torch.equal(estimates[:1], seeded)
    assert torch.equal(estimates[1:], expected_estimates(algo, amaxes))
    assert torch.equal(torch.stack([s.saturated for s in steps]), amaxes > estimates)


def test_learning_rate():
    rates = [learning_rate(s, steps=10, peak=1.0, warmup_steps=2) for s in range(1, 11)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert all(a > b for a, b in zip(rates[2:], rates[3:], strict=False)) and 0 < rates[-1] < 0.1
    assert learning_rate(1, steps=1, peak=0.5, warmup_steps=0) == 0.5


def test_weight_decay_spares_norms_and_biases():
    model = tiny_llama(attention_bias=True)
    decayed, spared = parameter_groups(model, OptimizerConfig())
    assert all(p.ndim == 2 for p in decayed["params"]) and decayed["weight_decay"] == 0.1
    assert all(p.ndim == 1 for p in spared["params"]) and spared["weight_decay"] == 0.0
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))
