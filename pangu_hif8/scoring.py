"""lm-eval's model wrapper, with an item's common prompt computed once instead of once a choice.

A four-choice item asks for four likelihoods that share a prompt. lm-eval's HFLM runs prompt and choice
anew for each, and a softmax over the whole vocabulary at every position. Here the prompt and all choices
are laid out in one row; a mask lets a choice see the prompt and itself, and positions restart at the
prompt's end, so every token sees exactly what it saw before. Logits are taken at the choices' positions
only. Same numbers up to float32 rounding (a test compares them), in a third to half of the time on a CPU.
With current scaling the items of one batch share a scale, as they do in any batched evaluation; so whole
batches are dealt to the processes of a job, never their rows. Generation is greedy (`generation.py`).
Tasks, prompts, stop words, tokenization and metrics stay lm-eval's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, postprocess_generated_text
from torch import Tensor
from torch.nn import functional as F

from pangu_hif8.batches import over_ranks
from pangu_hif8.errors import UserError
from pangu_hif8.generation import greedy

if TYPE_CHECKING:
    from pangu_hif8.ranks import Ranks

T = TypeVar("T")
Request = tuple[tuple[str, str], list[int], list[int]]


@dataclass(frozen=True)
class Row:
    """One prompt and its choices, as [prompt, choice 1 without its last token, choice 2 ..., ...]."""

    prompt: list[int]
    requests: list[int]  # positions in the list of all requests
    choices: list[list[int]]

    def __len__(self) -> int:
        return len(self.prompt) + sum(len(choice) - 1 for choice in self.choices)


class SharedPrefixLM(HFLM):  # type: ignore[misc]
    """HFLM for decoders with full causal attention (Llama and its kin). `batch_size` counts items.

    With `ranks`, every process makes all requests, computes its share of the batches and returns all answers;
    `num_truncated` counts the requests whose prompt lost its start, here as in HFLM.
    """

    def __init__(
        self, *, ranks: Ranks | None = None, max_generated_tokens: int = 256, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.ranks, self.max_generated_tokens, self.num_truncated = ranks, max_generated_tokens, 0

    def _loglikelihood_tokens(
        self, requests: list[Request], disable_tqdm: bool = False, override_bs: int | None = None
    ) -> list[tuple[float, bool]]:
        self.num_truncated += sum(len(p) + len(c) > self.max_length + 1 for _, p, c in requests)
        rows = sorted(group_by_prompt(requests, self.max_length), key=len, reverse=True)
        answers: list[tuple[float, bool] | None] = [None] * len(requests)
        batches = in_batches(rows, override_bs or int(self.batch_size))
        scored = over_ranks(batches, self._score_batch, self.ranks, what="scoring", quiet=disable_tqdm)
        for index, answer in (pair for batch in scored for pair in batch):
            answers[index] = answer
        missing = answers.count(None)
        if missing:
            raise RuntimeError(f"{missing} of {len(answers)} requests were not scored")
        return [answer for answer in answers if answer is not None]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The greedy continuation of every request, cut before its first stop word."""
        room = self.max_length - self.max_generated_tokens
        if room < 1:
            raise UserError(
                f"max_generated_tokens {self.max_generated_tokens} leaves no room for a prompt in a model of "
                f"{self.max_length} positions; lower it"
            )
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        self.num_truncated += sum(len(prompt) > room for prompt in prompts)
        stops = [self._stop_words(request) for request in requests]
        order = sorted(range(len(requests)), key=lambda i: len(prompts[i]), reverse=True)
        batches = in_batches([(i, prompts[i][-room:], stops[i]) for i in order], int(self.batch_size))
        made = over_ranks(batches, self._generate_batch, self.ranks, what="generating", quiet=disable_tqdm)
        texts = dict(pair for batch in made for pair in batch)
        return [texts[i] for i in range(len(requests))]

    def _stop_words(self, request: Instance) -> list[str]:
        eos = self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        return [
            word for word in handle_stop_sequences(list(request.args[1].get("until", [])), eos=eos) if word
        ]

    def _generate_batch(self, batch: list[tuple[int, list[int], list[str]]]) -> list[tuple[int, str]]:
        ends = [Ending(self.tokenizer, stops) for _, _, stops in batch]
        made = greedy(self.model, [prompt for _, prompt, _ in batch], ends, self.max_generated_tokens)
        found = []
        for (index, _, stops), tokens in zip(batch, made, strict=True):
            text = self.tok_decode(tokens)
            found.append((index, postprocess_generated_text(text, stop=stops, think_end_token=None)))
        return found

    def _score_batch(self, rows: list[Row]) -> list[tuple[int, tuple[float, bool]]]:
        return list(self._score(rows))

    def _score(self, rows: list[Row]) -> Iterator[tuple[int, tuple[float, bool]]]:
        """Log-likelihood (nats) of every choice in `rows`, and whether it is the greedy continuation."""
        tokens, positions, mask = lay_out(rows)
        with torch.no_grad():
            decoder = self.model.get_decoder()
            hidden = decoder(
                input_ids=tokens.to(self.device),
                position_ids=positions.to(self.device),
                attention_mask=mask.to(self.device),
                use_cache=False,
            ).last_hidden_state
            for number, row in enumerate(rows):
                yield from self._score_row(hidden[number], row)

    def _score_row(self, hidden: Tensor, row: Row) -> Iterator[tuple[int, tuple[float, bool]]]:
        places = [place for choice in choice_places(row) for place in choice]
        targets = torch.tensor([t for choice in row.choices for t in choice], device=hidden.device)
        logits = self.model.get_output_embeddings()(hidden[places]).float()
        log_probs = F.log_softmax(logits, dim=-1)
        picked = log_probs.gather(1, targets[:, None])[:, 0]
        greedy = log_probs.argmax(dim=-1) == targets
        lengths = [len(choice) for choice in row.choices]
        parts = zip(row.requests, torch.split(picked, lengths), torch.split(greedy, lengths), strict=True)
        for index, values, is_greedy in parts:
            yield index, (float(values.sum()), bool(is_greedy.all()))


class Ending:
    """Whether a continuation has reached EOS or a stop word."""

    def __init__(self, tokenizer: Any, stops: list[str]) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        longest = max((len(tokenizer.encode(word, add_special_tokens=False)) for word in stops), default=0)
        self.num_looked_at = longest + 2  # lm-eval's margin: a word may be cut into other tokens

    def __call__(self, tokens: list[int]) -> bool:
        if tokens[-1] == self.tokenizer.eos_token_id:
            return True
        tail = self.tokenizer.decode(tokens[-self.num_looked_at :])
        return any(word in tail for word in self.stops)


def in_batches(values: list[T], size: int) -> list[list[T]]:
    """Consecutive batches of `size`; the last one may be shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def group_by_prompt(requests: list[Request], max_length: int) -> list[Row]:
    """Requests with one prompt in one row. A prompt that is too long loses its start, as in HFLM."""
    grouped: dict[tuple[int, ...], list[int]] = {}
    for index, (_, prompt, choice) in enumerate(requests):
        kept = max(1, max_length + 1 - len(choice))
        grouped.setdefault(tuple(prompt[-kept:]), []).append(index)
    return [Row(list(prompt), ids, [requests[i][2] for i in ids]) for prompt, ids in grouped.items()]


def choice_places(row: Row) -> list[list[int]]:
    """For every choice, the row positions whose logits predict its tokens."""
    places, start = [], len(row.prompt)
    for choice in row.choices:
        places.append([len(row.prompt) - 1, *range(start, start + len(choice) - 1)])
        start += len(choice) - 1
    return places


def lay_out(rows: list[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens and positions [batch, width], additive float32 mask [batch, 1, width, width] (0 = may see).

    Padding repeats the row's first token at position 0: it computes what that token computes, so it can't
    raise the amax of a tensor that is scaled by itself.
    """
    width = max(map(len, rows))
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    positions = torch.zeros(len(rows), width, dtype=torch.int64)
    # Padding sees itself, so that no softmax is over nothing; see the docstring for what it holds.
    allowed = torch.eye(width, dtype=torch.bool).repeat(len(rows), 1, 1)
    for number, row in enumerate(rows):
        length = len(row.prompt)
        tokens[number] = row.prompt[0]
        _place(tokens[number], positions[number], slice(0, length), row.prompt, 0)
        allowed[number, :length, :length] = _causal(length)
        start = length
        for choice in row.choices:
            span = slice(start, start + len(choice) - 1)
            _place(tokens[number], positions[number], span, choice[:-1], length)
            allowed[number, span, :length] = True
            allowed[number, span, span] = _causal(len(choice) - 1)
            start = span.stop
    mask = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min)
    return tokens, positions, mask[:, None]


def _causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def _place(tokens: Tensor, positions: Tensor, span: slice, values: list[int], first: int) -> None:
    tokens[span] = torch.tensor(values, dtype=torch.int64)
    positions[span] = torch.arange(first, first + len(values))
