"""Scores that agree with lm-eval's own wrapper and with a by-hand computation; incomplete ones are errors."""

from __future__ import annotations

import json
import math
import random
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tiny import tiny_profile

from pangu_hif8 import scoring
from pangu_hif8.config import EvalConfig, TaskConfig
from pangu_hif8.errors import UserError
from pangu_hif8.evaluate import Evaluation, check_tasks, evaluate_model, sequence_losses, summarize_task
from pangu_hif8.models import load_base
from pangu_hif8.prepared import Prepared

SETTINGS = tiny_profile().evaluation


@pytest.fixture(scope="module")
def base(tiny_parts: Prepared) -> tuple[Any, Any]:
    return load_base(tiny_parts.model_dir)


@pytest.fixture(scope="module")
def result(tiny_parts: Prepared, base: tuple[Any, Any]) -> Evaluation:
    return evaluate_model(*base, SETTINGS, tiny_parts)


@pytest.fixture
def sharp(base: tuple[Any, Any]) -> Any:
    """A model with large random weights: its likelihoods differ much from token to token."""
    model, _ = load_base(Path(base[0].config._name_or_path))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def plain_nll(model: Any, tokenizer: Any, prompt: str, choice: str) -> float:
    """Negative log-likelihood of a choice, token by token, one sequence at a time."""
    whole, start = tokenizer(prompt + choice).input_ids, len(tokenizer(prompt).input_ids)
    with torch.no_grad():
        log_probs = model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
    return -sum(float(log_probs[i - 1, whole[i]]) for i in range(start, len(whole)))


def requests(prompts: dict[str, list[str]]) -> list[Instance]:
    pairs = [(prompt, choice) for prompt, choices in prompts.items() for choice in choices]
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


PROMPTS = {
    "The home of Ana Bek is": [" Oslo", " Lima", " Cairo and Porto", " a very long answer, in many words."],
    "Q": [" a", " b"],
    "A much longer prompt than the others, so that padding is needed. The pet of Tom is a": [" cat", " dog"],
    "In spring there is rain and the road is": [" muddy", " muddy", " steep. It sells wool and salt"],
}


@pytest.mark.parametrize("batch_size", [1, 3, 16])
@pytest.mark.parametrize("add_bos_token", [False, True])
def test_shared_prompts_score_as_lm_eval_does(
    sharp: Any, base: tuple[Any, Any], batch_size: int, add_bos_token: bool
) -> None:
    settings: dict[str, Any] = {"pretrained": sharp, "tokenizer": base[1], "add_bos_token": add_bos_token}
    expected = HFLM(batch_size=1, **settings).loglikelihood(requests(PROMPTS), disable_tqdm=True)
    found = scoring.SharedPrefixLM(batch_size=batch_size, **settings).loglikelihood(
        requests(PROMPTS), disable_tqdm=True
    )
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    # float32 sums of up to 40 terms near 10 nats: 1e-4 is some 10 units in the last place
    assert np.allclose([x for x, _ in found], [x for x, _ in expected], rtol=0, atol=1e-4)
    assert np.ptp([x for x, _ in expected]) > 1  # the likelihoods are not all alike


def test_a_greedy_continuation_is_seen(sharp: Any, base: tuple[Any, Any]) -> None:
    tokenizer = base[1]
    prompt = "The home of Ana Bek is"
    with torch.no_grad():
        best = int(sharp(input_ids=torch.tensor([tokenizer(prompt).input_ids])).logits[0, -1].argmax())
    row = scoring.Row(tokenizer(prompt).input_ids, [0, 1], [[best], [(best + 1) % 300]])
    scorer = scoring.SharedPrefixLM(pretrained=sharp, tokenizer=tokenizer, batch_size=1)
    answers = dict(scorer._score([row]))
    assert answers[0][1]
    assert not answers[1][1]


def test_a_prompt_that_is_too_long_loses_its_start() -> None:
    rows = scoring.group_by_prompt([(("", ""), list(range(20)), [1, 2])], max_length=8)
    assert rows[0].prompt == list(range(13, 20))
    assert len(rows[0]) == 8


def test_items_agree_with_a_plain_computation(
    result: Evaluation, base: tuple[Any, Any], tiny_parts: Prepared
) -> None:
    lines = (tiny_parts.benchmarks_dir / "people.jsonl").read_text().splitlines()
    for item, row in zip(map(json.loads, lines), result.items.to_dict("records"), strict=True):
        nll = [plain_nll(*base, item["question"], f" {choice}") for choice in item["choices"]]
        assert row["item_id"] == item["item_id"]
        assert row["nll_correct"] == pytest.approx(nll[item["answer"]], abs=1e-4)
        assert row["acc"] == float(int(np.argmin(nll)) == item["answer"])
        by_length = [n / len(choice) for n, choice in zip(nll, item["choices"], strict=True)]
        assert row["acc_norm"] == float(int(np.argmin(by_length)) == item["answer"])


def test_summary_has_the_agreed_shape(result: Evaluation) -> None:
    assert list(result.items.columns) == ["task", "item_id", "acc", "acc_norm", "nll_correct"]
    assert list(result.heldout.columns) == ["domain", "sequence", "loss", "num_tokens"]
    assert result.summary["batch_size"] == 4
    assert result.summary["add_bos_token"] is False
    people = result.summary["tasks"]["people"]
    assert people["value"] == people["acc"] == result.items["acc"].mean()
    assert people["num_items"] == 10
    assert result.summary["heldout"]["same_domain"]["num_tokens"] == 5 * 31
    assert result.summary["heldout"]["second_domain"]["num_sequences"] == 3
    assert set(result.seconds) == {"people", "heldout"}
    json.dumps(result.summary, allow_nan=False)


def test_the_same_model_gives_the_same_bytes(
    result: Evaluation, base: tuple[Any, Any], tiny_parts: Prepared
) -> None:
    again = evaluate_model(*base, SETTINGS, tiny_parts)
    assert json.dumps(again.summary) == json.dumps(result.summary)
    pd.testing.assert_frame_equal(again.items, result.items, check_exact=True)
    pd.testing.assert_frame_equal(again.heldout, result.heldout, check_exact=True)


def test_nothing_is_changed_by_an_evaluation(base: tuple[Any, Any], tiny_parts: Prepared) -> None:
    model, tokenizer = base
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = random.getstate(), torch.get_rng_state()
    evaluate_model(model, tokenizer, SETTINGS, tiny_parts)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert not model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_no_network_is_looked_at(
    base: tuple[Any, Any], tiny_parts: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was looked at")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    evaluate_model(*base, SETTINGS, tiny_parts)


def test_training_mode_is_refused(base: tuple[Any, Any], tiny_parts: Prepared) -> None:
    model, tokenizer = base
    model.train()
    try:
        with pytest.raises(ValueError, match="eval mode"):
            evaluate_model(model, tokenizer, SETTINGS, tiny_parts)
    finally:
        model.eval()


def test_sequence_losses_shift_labels_once(base: tuple[Any, Any]) -> None:
    model = base[0]
    tokens = torch.randint(0, 250, (3, 20), generator=torch.Generator().manual_seed(1))
    losses = sequence_losses(model, tokens)
    assert losses.dtype == torch.float64
    for row, loss in zip(tokens, losses, strict=True):
        expected = 0.0
        with torch.no_grad():
            log_probs = model(input_ids=row[None]).logits[0].double().log_softmax(-1)
        for position in range(19):
            expected -= float(log_probs[position, row[position + 1]]) / 19
        assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_loss_of_a_uniform_model_is_the_log_of_the_vocabulary(
    sharp: Any, base: tuple[Any, Any], tiny_parts: Prepared
) -> None:
    with torch.no_grad():
        sharp.get_output_embeddings().weight.zero_()
    found = evaluate_model(sharp, base[1], SETTINGS, tiny_parts)
    for domain in found.summary["heldout"].values():
        assert domain["loss"] == pytest.approx(math.log(sharp.config.vocab_size), abs=1e-6)


def test_a_model_with_a_nan_is_an_error(sharp: Any, base: tuple[Any, Any], tiny_parts: Prepared) -> None:
    with torch.no_grad():
        sharp.model.layers[1].mlp.up_proj.weight[0, 0] = math.nan
    with pytest.raises(UserError, match="not finite"):
        evaluate_model(sharp, base[1], SETTINGS, tiny_parts)


def test_an_absent_task_is_an_error(
    base: tuple[Any, Any], tiny_parts: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lm_eval.evaluate", lambda **_: {"results": {}, "samples": {}})
    with pytest.raises(UserError, match="people is absent"):
        evaluate_model(*base, SETTINGS, tiny_parts)


def test_too_few_items_are_an_error(
    base: tuple[Any, Any], tiny_parts: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    import lm_eval

    original = lm_eval.evaluate
    monkeypatch.setattr("lm_eval.evaluate", lambda **kw: original(**kw, limit=7))
    with pytest.raises(UserError, match="scored 7 items, not 10"):
        evaluate_model(*base, SETTINGS, tiny_parts)


def test_preflight_passes_what_can_be_scored(tiny_parts: Prepared) -> None:
    check_tasks(SETTINGS, tiny_parts)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (TaskConfig(name="piqa", num_items=10, metric="acc"), r"piqa.*missing|unknown benchmark"),
        (TaskConfig(name="arc_easy", num_items=10, metric="acc"), r"arc_easy\.jsonl is missing"),
        (TaskConfig(name="people", num_items=11, metric="acc"), "another number of items than 11"),
    ],
)
def test_preflight_names_what_cannot(tiny_parts: Prepared, task: TaskConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_tasks(EvalConfig(tasks=[task], batch_size=4), tiny_parts)


def test_preflight_finds_a_dataset_that_does_not_load(
    tiny_parts: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("Dataset scripts are no longer supported")

    monkeypatch.setattr("datasets.load_dataset", broken)
    with pytest.raises(UserError, match="people cannot be loaded: Dataset scripts"):
        check_tasks(SETTINGS, tiny_parts)


def test_stderr_is_that_of_a_mean() -> None:
    task = TaskConfig(name="people", num_items=4, metric="acc")
    frame = pd.DataFrame({"acc": [1.0, 0, 1, 1], "acc_norm": [math.nan] * 4, "nll_correct": [1.0, 2, 3, 4]})
    found = summarize_task(task, frame)
    assert found["stderr"] == pytest.approx(0.5 / 2)  # sample deviation 0.5, four items
    assert found["acc_norm"] is None
    assert found["nll_correct"] == 2.5
