"""The rebuilt tokenizer against the sentencepiece library, which shares no code with it."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from openpangu_layout import SPECIAL, sentencepiece_model, tokenizer_config, write_tokenizer
from transformers import AutoTokenizer

from pangu_hif8.errors import UserError
from pangu_hif8.models import bos_rule
from pangu_hif8.sentencepiece_model import UNUSED, read_model
from pangu_hif8.sentencepiece_tokenizer import load_sentencepiece_tokenizer
from pangu_hif8.world import people_text

TRAINERS: dict[str, dict[str, Any]] = {
    "openpangu": {},
    "digits": {"split_digits": True, "allow_whitespace_only_pieces": True},
    "nfkc": {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True, "vocab_size": 430},
    "no-fallback": {"byte_fallback": False, "vocab_size": 200},
    "no-prefix": {"add_dummy_prefix": False},
}


def texts(marks: str = "\u0301") -> list[str]:
    """Documents the tokenizer was not trained on, and random strings over many scripts."""
    choose = random.Random(0)
    alphabet = "abcxyz  ..,\n\t0123éß中文日本語한да😀▁-" + marks
    noise = ["".join(choose.choices(alphabet, k=40)) for _ in range(300)]
    return [*islice(people_text(6, 1), 30), *noise]


@pytest.mark.parametrize("name", TRAINERS)
def test_ids_are_sentencepieces(tmp_path: Path, name: str) -> None:
    processor = write_tokenizer(tmp_path, sentencepiece_model(**TRAINERS[name]))
    tokenizer = load_sentencepiece_tokenizer(tmp_path)
    # `tokenizers` normalizes by grapheme, sentencepiece by character: a lone mark on a digit may differ
    for text in texts(marks="" if name == "nfkc" else "\u0301"):
        assert tokenizer(text, add_special_tokens=False).input_ids == processor.encode(text), text


def test_symbols_that_only_the_model_file_knows_are_never_merged_over(tmp_path: Path) -> None:
    """User-defined pieces that tokenizer_config.json does not list keep sentencepiece's own rules."""
    symbols = ",".join([*SPECIAL, "\n", "home", "[+*]"])
    processor = write_tokenizer(tmp_path, sentencepiece_model(user_defined_symbols=symbols))
    tokenizer = load_sentencepiece_tokenizer(tmp_path)
    for text in [*texts(), "a[+*]b\n\nthehomehome of", "home", "\n"]:
        assert tokenizer(text, add_special_tokens=False).input_ids == processor.encode(text), text


def test_merges_follow_scores_and_not_ids(tmp_path: Path) -> None:
    """Vocabularies are merged and sorted after training: ids then say nothing about the order of merges."""
    from sentencepiece import SentencePieceProcessor

    model = shuffled(sentencepiece_model())
    write_tokenizer(tmp_path, model)
    processor = SentencePieceProcessor(model_proto=model)
    tokenizer = load_sentencepiece_tokenizer(tmp_path)
    for text in texts():
        assert tokenizer(text, add_special_tokens=False).input_ids == processor.encode(text), text


def shuffled(model: bytes) -> bytes:
    """The same model with its learnt pieces in another order of ids (field 1 of the message, repeated)."""
    pieces, rest, at = [], b"", 0
    while at < len(model):
        start, key = at, model[at]
        size, shift, at = 0, 0, at + 1
        while True:
            byte, at = model[at], at + 1
            size, shift = size | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                break
        at += size
        if key == 1 << 3 | 2:
            pieces.append(model[start:at])
        else:
            rest += model[start:at]
    fixed, learnt = pieces[:263], pieces[263:]
    random.Random(1).shuffle(learnt)
    return b"".join([*fixed, *learnt]) + rest


def test_bos_is_added_and_text_comes_back(tmp_path: Path) -> None:
    processor = write_tokenizer(tmp_path, sentencepiece_model())
    tokenizer = load_sentencepiece_tokenizer(tmp_path)
    assert bos_rule(tokenizer)
    assert tokenizer("The home").input_ids == [1, *processor.encode("The home")]
    assert tokenizer("a", "b").input_ids == [1, *processor.encode("a"), *processor.encode("b")]
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (1, 0)
    assert tokenizer.eos_token_id == processor.piece_to_id("[unused10]")
    for text in ["The home of Ana Bek is Oslo.", "  odd  spaces\n", "naïve – 数 😀"]:
        assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_a_special_token_is_cut_out_of_a_text_first(tmp_path: Path) -> None:
    processor = write_tokenizer(tmp_path, sentencepiece_model())
    tokenizer = load_sentencepiece_tokenizer(tmp_path)
    user = processor.piece_to_id("<|User|>:")
    found = tokenizer("an<|User|>:other<s>", add_special_tokens=False).input_ids
    assert found == [*processor.encode("an"), user, *processor.encode("other"), 1]


def test_a_saved_copy_gives_the_same_ids(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "a", sentencepiece_model())
    tokenizer = load_sentencepiece_tokenizer(tmp_path / "a")
    tokenizer.save_pretrained(tmp_path / "b")
    (tmp_path / "b" / "config.json").write_text('{"model_type": "llama"}')
    again = AutoTokenizer.from_pretrained(tmp_path / "b", local_files_only=True)
    for text in [*texts(), "an<|User|>:other"]:
        assert again(text).input_ids == tokenizer(text).input_ids
    assert again.eos_token_id == tokenizer.eos_token_id


def test_what_the_file_says_is_read() -> None:
    import tempfile

    from sentencepiece import SentencePieceProcessor

    data = sentencepiece_model(**TRAINERS["nfkc"])
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(data)
        model = read_model(Path(file.name))
    processor = SentencePieceProcessor(model_proto=data)
    assert model.pieces == [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    assert model.scores == [processor.get_score(i) for i in range(processor.get_piece_size())]
    assert model.byte_fallback and model.remove_extra_whitespaces and model.charsmap
    assert [t == UNUSED for t in model.types] == [processor.is_unused(i) for i in range(len(model.types))]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"legacy": False}, "legacy: false"),
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs"),
        ({"added_tokens_decoder": {"5": {"content": "<s>"}}}, "disagree on ids.*'<s>'"),
        ({"added_tokens_decoder": {"1": {"content": "<s>", "lstrip": True}}}, "'<s>' has lstrip"),
    ],
)
def test_a_setting_that_is_not_reproduced_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    processor = write_tokenizer(tmp_path, sentencepiece_model())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(processor) | change))
    with pytest.raises(UserError, match=message):
        load_sentencepiece_tokenizer(tmp_path)


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, sentencepiece_model(model_type="unigram", vocab_size=330))
    with pytest.raises(UserError, match="not BPE"):
        load_sentencepiece_tokenizer(tmp_path)


def test_a_tokenizer_that_differs_from_sentencepiece_is_refused(tmp_path: Path) -> None:
    """Normalization turns a line end into a space before sentencepiece looks for the symbol, ours after."""
    symbols = ",".join([*SPECIAL, "\n"])
    model = sentencepiece_model(**TRAINERS["nfkc"] | {"user_defined_symbols": symbols})
    write_tokenizer(tmp_path, model)
    with pytest.raises(UserError, match=r"differs from sentencepiece on .*convert it to tokenizer\.json"):
        load_sentencepiece_tokenizer(tmp_path)


@pytest.mark.parametrize("size", [0, 3, 1000])
def test_a_damaged_file_is_a_user_error(tmp_path: Path, size: int) -> None:
    write_tokenizer(tmp_path, sentencepiece_model())
    path = tmp_path / "tokenizer.model"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(UserError, match=r"tokenizer\.model .*fetch it again"):
        load_sentencepiece_tokenizer(tmp_path)


def test_a_file_of_another_kind_is_a_user_error(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, sentencepiece_model())
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    with pytest.raises(UserError, match="holds no SentencePiece pieces"):
        load_sentencepiece_tokenizer(tmp_path)
