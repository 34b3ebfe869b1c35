"""Loss on text that was never trained on, of the training text's domain and of a second one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from pangu_hif8.batches import over_ranks
from pangu_hif8.corpus import TokenShards
from pangu_hif8.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from pangu_hif8.ranks import Ranks

DOMAINS = {"same_domain": "heldout", "second_domain": "second_domain"}
HELDOUT_COLUMNS = ["domain", "sequence", "loss", "num_tokens"]


def heldout_losses(
    model: PreTrainedModel, shards: TokenShards, batch_size: int, ranks: Ranks | None = None
) -> pd.DataFrame:
    """Mean next-token loss (nats) of every held-out sequence of both domains, one row a sequence.

    With `ranks` every process computes its share of the batches; a collective call.
    """
    rows: list[list[Any]] = []
    for domain, split in DOMAINS.items():
        tokens = getattr(shards, split)

        def losses_from(start: int, tokens: Any = tokens) -> list[float]:
            batch = torch.from_numpy(tokens[start : start + batch_size].astype("int64"))
            return list(sequence_losses(model, batch).tolist())

        found = over_ranks(range(0, len(tokens), batch_size), losses_from, ranks)
        losses = [loss for batch in found for loss in batch]
        rows += [[domain, number, loss, tokens.shape[1] - 1] for number, loss in enumerate(losses)]
    frame = pd.DataFrame(rows, columns=HELDOUT_COLUMNS)
    if not np.isfinite(frame["loss"].to_numpy()).all():
        raise UserError("the held-out loss is not finite for some sequences; the model's weights are damaged")
    return frame


@torch.no_grad()
def sequence_losses(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss in nats of tokens [batch, seq] -> float64 [batch]; the labels are shifted once."""
    tokens = tokens.to(model.device)
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
    losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return losses.double().mean(dim=1).cpu()


def summarize_heldout(frame: pd.DataFrame) -> dict[str, Any]:
    """Mean loss and sizes by domain.

    Sequences have equal lengths, so the mean over sequences is the mean over tokens.
    """
    return {
        str(domain): {
            "loss": float(group["loss"].mean()),
            "num_tokens": int(group["num_tokens"].sum()),
            "num_sequences": len(group),
        }
        for domain, group in frame.groupby("domain", sort=True)
    }
