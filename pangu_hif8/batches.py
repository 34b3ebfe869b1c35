"""Whole batches dealt to the processes of a job: their number changes no score.

With current scaling a batch shares one scale, and a float's last bit may depend on a batch's shape. So
batches are made as one process would make them, and each is computed whole by one rank; then every rank has
all results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tqdm.auto import tqdm

if TYPE_CHECKING:
    from pangu_hif8.ranks import Ranks

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def over_ranks(
    batches: Sequence[Batch],
    compute: Callable[[Batch], Result],
    ranks: Ranks | None = None,
    *,
    what: str = "",
    quiet: bool = True,
) -> list[Result]:
    """`compute` of every batch, in the order of `batches`; a collective call where there are several ranks.

    Batches go round robin, so that those sorted by length give every rank about the same work.
    """
    rank, world = (0, 1) if ranks is None else (ranks.rank, ranks.world)
    bar = tqdm(range(rank, len(batches), world), desc=what, unit="batch", disable=quiet or rank > 0)
    own = [(number, compute(batches[number])) for number in bar]
    if ranks is None or world == 1:
        return [result for _, result in own]
    found = dict(pair for part in ranks.all(own) for pair in part)
    return [found[number] for number in range(len(batches))]
