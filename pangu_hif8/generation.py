"""Greedy continuation of a batch of prompts, with cached keys and values.

lm-eval's own wrapper pads with the tokenizer's pad token, and goes on computing rows that have ended. What
such positions compute would count in the scale of a tensor that is scaled by itself. Here padding repeats the
row's first token at position 0, as in `scoring.lay_out`, and a row that has ended leaves the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

HasEnded = Callable[[list[int]], bool]


@dataclass
class _Rows:
    """The rows still going: their numbers, which cached positions they see, and their next position."""

    numbers: list[int]
    visible: Tensor  # [rows, width] bool
    positions: Tensor  # [rows, 1]

    def grow(self) -> None:
        self.visible = torch.nn.functional.pad(self.visible, (0, 1), value=True)

    def keep(self, places: Tensor) -> None:
        self.numbers = [self.numbers[place] for place in places.tolist()]
        self.visible, self.positions = self.visible[places], self.positions[places] + 1


@torch.no_grad()
def greedy(
    model: Any, prompts: list[list[int]], has_ended: Sequence[HasEnded], max_new_tokens: int
) -> list[list[int]]:
    """The tokens that follow each prompt, until `has_ended` of them is true or there are `max_new_tokens`."""
    tokens, mask, rows = _lay_out(prompts, model.device)
    made: list[list[int]] = [[] for _ in prompts]
    cache = DynamicCache(config=model.config)
    positions = (rows.visible.cumsum(dim=1) - 1).clamp(min=0)
    for _ in range(max_new_tokens):
        tokens = _next(model, tokens, positions, mask, cache)
        for number, token in zip(rows.numbers, tokens[:, 0].tolist(), strict=True):
            made[number].append(token)
        going = [place for place, n in enumerate(rows.numbers) if not has_ended[n](made[n])]
        if not going:
            break
        if len(going) < len(rows.numbers):
            cache.batch_select_indices(torch.tensor(going, device=model.device))
        tokens = tokens[going]
        rows.keep(torch.tensor(going, device=model.device))
        rows.grow()
        positions, mask = rows.positions, _additive(rows.visible[:, None, None])
    return made


def _next(model: Any, tokens: Tensor, positions: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
    """The most likely token after each row [rows, 1]; logits are computed at the last position only."""
    hidden = model.get_decoder()(
        input_ids=tokens, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True
    ).last_hidden_state
    return model.get_output_embeddings()(hidden[:, -1]).float().argmax(dim=-1, keepdim=True)


def _lay_out(prompts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor, _Rows]:
    """Prompts padded on the left: tokens [rows, width], additive mask [rows, 1, width, width], the rows."""
    width = max(map(len, prompts))
    padded = [[prompt[0]] * (width - len(prompt)) + prompt for prompt in prompts]
    lengths = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    visible = torch.arange(width, device=device) >= width - lengths
    causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    # padding sees itself alone: it computes what the first token computes
    allowed = (causal & visible[:, None, :]) | torch.eye(width, dtype=torch.bool, device=device)
    rows = _Rows(list(range(len(prompts))), visible, lengths - 1)
    return torch.tensor(padded, device=device), _additive(allowed[:, None]), rows


def _additive(allowed: Tensor) -> Tensor:
    mask = torch.zeros(allowed.shape, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(torch.float32).min)
