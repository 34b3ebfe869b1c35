"""Score an exported HiF8 checkpoint as its run was scored: the same items, prompts and held-out text."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from pangu_hif8.config import load_profile
from pangu_hif8.errors import UserError
from pangu_hif8.evaluate import Evaluation, evaluate_model
from pangu_hif8.export import load_hif8
from pangu_hif8.export_files import AGAIN
from pangu_hif8.launch import Parallel, first_process_first
from pangu_hif8.models import load_tokenizer
from pangu_hif8.prepare import prepare
from pangu_hif8.ranks import Ranks


def evaluate_export(directory: Path | str, profile: str, *, parallel: Parallel = "none") -> Evaluation:
    """The evaluation that `profile` describes, of the model that `export` wrote to `directory`.

    Raises UserError for a damaged export, one without its tokenizer, or one whose tokenizer is not that of
    the profile's held-out text. With `parallel` other than "none" every process of the job calls this.
    """
    where, ranks = Path(directory), Ranks(parallel)
    model = load_hif8(where).to(ranks.device)
    with first_process_first():
        prepared = prepare(profile)
    tokenizer, expected = _exported_tokenizer(where), load_tokenizer(prepared.model_dir)
    if tokenizer.get_vocab() != expected.get_vocab():
        raise UserError(
            f"{where} has another tokenizer than profile {profile}; name the profile it was trained with"
        )
    return evaluate_model(model, tokenizer, load_profile(profile).evaluation, prepared, ranks)


def _exported_tokenizer(where: Path) -> PreTrainedTokenizerBase:
    try:
        return load_tokenizer(where)
    except UserError as error:
        raise UserError(f"the tokenizer in {where} is missing or damaged; {AGAIN}") from error
