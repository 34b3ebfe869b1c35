"""Greedy generation: as transformers' own, whatever the batch, the padding and the rows that end early."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from frozen_models import frozen_llama
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from tiny import tiny_profile

from pangu_hif8 import scoring
from pangu_hif8.errors import UserError
from pangu_hif8.generation import greedy
from pangu_hif8.models import load_base
from pangu_hif8.prepare import prepare_profile

PROMPTS = [[5, 9, 1, 30, 22], [7], [3, 3, 60, 41, 2, 8, 19, 33, 50], [11, 12]]


def never(_: list[int]) -> bool:
    return False


def alone(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """The most likely token again and again: no cache, no padding."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        with torch.no_grad():
            tokens.append(
                int(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax())
            )
    return tokens[len(prompt) :]


@pytest.mark.parametrize("algo", ["max_window", "most_recent"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_each_row_is_what_it_would_be_alone(algo: str, batch_size: int) -> None:
    model = frozen_llama(algo)
    batches = scoring.in_batches(PROMPTS, batch_size)
    found = [row for batch in batches for row in greedy(model, batch, [never] * len(batch), 12)]
    expected = [alone(model, prompt, 12) for prompt in PROMPTS]
    assert found == expected
    assert len({tuple(row) for row in expected}) == 4  # the prompts matter


def test_a_row_that_ends_leaves_the_batch() -> None:
    model, shapes = frozen_llama(), []
    model.model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    expected = [alone(frozen_llama(), prompt, 6) for prompt in PROMPTS]
    ends = [lambda made: len(made) == 2, never, lambda made: len(made) == 1, lambda made: len(made) == 4]
    found = greedy(model, PROMPTS, ends, 6)
    assert found == [expected[0][:2], expected[1], expected[2][:1], expected[3][:4]]
    assert shapes == [(4, 9), (3, 1), (2, 1), (2, 1), (1, 1), (1, 1)]


def test_padding_does_not_change_a_scale_of_the_moment() -> None:
    """A padded position may not raise an amax of the moment: it computes what the first token does."""
    model = frozen_llama("current")
    inputs: list[torch.Tensor] = []
    layer = model.model.layers[1].mlp.gate_proj
    layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach().clone()))
    greedy(model, PROMPTS, [never] * 4, 1)
    width = max(map(len, PROMPTS))
    for row, prompt in zip(inputs[0], PROMPTS, strict=True):
        first = width - len(prompt)
        assert torch.allclose(row[:first], row[first].expand(first, -1), rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model with large random weights, and its tokenizer."""
    model, tokenizer = load_base(prepare_profile(tiny_profile()).model_dir)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model, tokenizer


TEXTS = [
    "The home of Ana",
    "Q",
    "In spring there is rain and the road is muddy. It sells",
    "wool and salt",
    "A",
]


def requests(until: list[str]) -> list[Instance]:
    settings = {"until": until, "do_sample": False, "temperature": 0.0}
    return [Instance("generate_until", {}, (text, settings), i) for i, text in enumerate(TEXTS)]


def generated(base: tuple[Any, Any], batch_size: int, until: list[str], num_tokens: int = 20) -> list[str]:
    scorer = scoring.SharedPrefixLM(
        pretrained=base[0], tokenizer=base[1], batch_size=batch_size, max_generated_tokens=num_tokens
    )
    return scorer.generate_until(requests(until), disable_tqdm=True)


def lm_eval_s(base: tuple[Any, Any], until: list[str]) -> list[str]:
    settings = [
        Instance("generate_until", {}, (r.args[0], r.args[1] | {"max_gen_toks": 20}), r.idx)
        for r in requests(until)
    ]
    found: list[str] = HFLM(pretrained=base[0], tokenizer=base[1], batch_size=1).generate_until(settings)
    return found


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_texts_are_those_of_lm_eval_s_wrapper(base: tuple[Any, Any], batch_size: int) -> None:
    whole = lm_eval_s(base, [])
    assert generated(base, batch_size, []) == whole
    assert len(set(whole)) == len(TEXTS)
    stops = [whole[0][5:7], whole[2][8:10]]
    cut = lm_eval_s(base, stops)
    assert generated(base, batch_size, stops) == cut
    assert cut[0] == whole[0][: whole[0].index(stops[0])] and cut != whole


def test_a_stop_word_ends_the_work(base: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = generated(base, 1, [])
    made: list[list[list[int]]] = []
    original = scoring.greedy
    monkeypatch.setattr(scoring, "greedy", lambda *args: made.append(original(*args)) or made[-1])
    generated(base, 1, [text[3] for text in whole])
    assert all(len(tokens) < 20 for batch in made for tokens in batch)


def test_eos_ends_a_text(base: tuple[Any, Any]) -> None:
    ending = scoring.Ending(base[1], ["\n\n"])
    eos = base[1].eos_token_id
    assert ending([5, eos]) and not ending([eos, 5])
    newline = base[1].encode("a\n\nb", add_special_tokens=False)
    assert [ending(newline[: i + 1]) for i in range(len(newline))][-2:] == [True, True]


def test_a_prompt_that_is_too_long_loses_its_start_and_is_counted(base: tuple[Any, Any]) -> None:
    model, tokenizer = base
    scorer = scoring.SharedPrefixLM(
        pretrained=model, tokenizer=tokenizer, batch_size=1, max_generated_tokens=8
    )
    text = "wool and salt " * 60
    ids = tokenizer(text).input_ids
    assert len(ids) > 120
    long = [Instance("generate_until", {}, (text, {"until": []}), 0)]
    found = scorer.generate_until(long, disable_tqdm=True)
    assert scorer.num_truncated == 1
    assert found == [tokenizer.decode(alone(model, ids[-120:], 8), skip_special_tokens=True)]


def test_no_room_for_a_prompt_is_an_error(base: tuple[Any, Any]) -> None:
    with pytest.raises(
        UserError, match="max_generated_tokens 128 leaves no room for a prompt in a model of 128"
    ):
        generated(base, 1, [], 128)
