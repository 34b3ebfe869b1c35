"""A SentencePiece `tokenizer.model` as a fast tokenizer, without the tokenizer code that came with it.

openPangu ships `tokenizer.model` and Python code that calls the sentencepiece library. That code does not
import in transformers 5, and code from a checkpoint is not run here anyway. The model file is rebuilt with
`tokenizers` (transformers' own converter needs the protobuf package, and orders merges by id where
sentencepiece orders them by score), and then compared with sentencepiece itself, id by id, on texts of many
scripts and on every special token. A difference is an error: a tokenizer that is nearly right would train on
other tokens than the model knows. (Where the model file normalizes to NFKC, `tokenizers` does so by grapheme
and sentencepiece by character: odd sequences of combining marks may differ. Without, nothing is known to.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pangu_hif8.errors import UserError
from pangu_hif8.files import read_json
from pangu_hif8.sentencepiece_model import (
    BPE_TYPE,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    read_model,
)

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

MODEL_FILE, CONFIG_FILE = "tokenizer.model", "tokenizer_config.json"
SPACE = "▁"
PROBES = (
    "The capital of France is Paris, isn't it?",
    "  two  spaces,\ttab\nline\n\n  end  ",
    "def f(x): return x**2 + 3.14e-5  # 1234567890 %^&*()_+-=[]{}|;':\",./<>?`~",
    "naïve café, Zürich, Straße, ﬁne, e\u0301, ½, № 5, Ⅷ, ①",
    "中文分词：今天天气很好。日本語のテキスト 한국어 ไทย हिन्दी",
    "Здравствуйте, мир! שלום مرحبا Ελληνικά",
    "emoji 😀👩‍👩‍👧 𝔘𝔫𝔦 \U0001f9ec \u200b zero width \ufeff mark",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa supercalifragilisticexpialidocious HTTPServerError2",
    "▁ literal ▁▁ marks",
    " ",
    "",
)


def load_sentencepiece_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of `directory` from its tokenizer.model and tokenizer_config.json.

    Raises UserError when a setting is not supported, an id contradicts the configuration, or the rebuilt
    tokenizer gives other tokens than sentencepiece.
    """
    from sentencepiece import SentencePieceProcessor
    from transformers import PreTrainedTokenizerFast

    path, config = directory / MODEL_FILE, read_json(directory / CONFIG_FILE)
    model = read_model(path)
    _refuse_unsupported(path, model, config)
    backend = _build(model, config)
    names = {
        key: _content(config[key])
        for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        if config.get(key) is not None
    }
    settings = {key: config[key] for key in ("model_max_length", "chat_template") if key in config}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **names, **settings
    )
    _check_ids(path, tokenizer, model, config)
    _check_against(path, tokenizer, SentencePieceProcessor(model_file=str(path)), model, config)
    return tokenizer


def _content(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _added(config: dict[str, Any]) -> dict[str, int]:
    """Text to id of the tokens that are cut out of a text before anything else."""
    return {_content(token): int(number) for number, token in config.get("added_tokens_decoder", {}).items()}


def _refuse_unsupported(path: Path, model: SentencePieceModel, config: dict[str, Any]) -> None:
    faults = {
        "its type is not BPE": model.model_type != BPE_TYPE,
        "treat_whitespace_as_suffix is set": model.whitespace_as_suffix,
        "escape_whitespaces is off": not model.escape_whitespaces,
        "it has unused pieces": UNUSED in model.types,
        f"{CONFIG_FILE} has legacy: false": config.get("legacy", True) is False,
        f"{CONFIG_FILE} has sp_model_kwargs": bool(config.get("sp_model_kwargs")),
    }
    for token in config.get("added_tokens_decoder", {}).values():
        odd = [key for key in ("lstrip", "rstrip", "single_word", "normalized") if token.get(key)]
        faults[f"token {_content(token)!r} has {', '.join(odd)}"] = bool(odd)
    if found := [fault for fault, is_so in faults.items() if is_so]:
        raise UserError(f"{path} can't be rebuilt exactly: {'; '.join(found)}; convert it to tokenizer.json")


def _merges(model: SentencePieceModel) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, best score first: what sentencepiece's BPE does."""
    normal = set(model.of_type(NORMAL))
    found: list[tuple[float, int, str, str]] = []
    for number, (piece, score) in enumerate(zip(model.pieces, model.scores, strict=True)):
        if piece in normal:
            splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
            found += [(-score, number, a, b) for a, b in splits if a in normal and b in normal]
    return [(left, right) for _, _, left, right in sorted(found)]


def _build(model: SentencePieceModel, config: dict[str, Any]) -> Tokenizer:
    from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers
    from tokenizers.models import BPE

    added = _added(config)
    isolated = sorted(set(model.of_type(USER_DEFINED)) - added.keys(), key=len, reverse=True)
    vocabulary = {piece: number for number, piece in enumerate(model.pieces)}
    unknown = _content(config.get("unk_token", "<unk>"))
    tokenizer = Tokenizer(
        BPE(
            vocabulary,
            _merges(model),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=model.byte_fallback,
            ignore_merges=bool(isolated),
        )
    )
    tokenizer.normalizer = _normalizer(model)
    if isolated:  # sentencepiece never merges across them
        pattern = Regex("|".join("".join(f"\\x{{{ord(c):x}}}" for c in piece) for piece in isolated))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    tokenizer.decoder = _decoder(model)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in added])
    tokenizer.post_processor = _template(tokenizer, config)
    return tokenizer


def _normalizer(model: SentencePieceModel) -> Any:
    from tokenizers import Regex, normalizers

    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    steps += [normalizers.Prepend(SPACE)] if model.add_dummy_prefix else []
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _decoder(model: SentencePieceModel) -> Any:
    from tokenizers import decoders

    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if model.add_dummy_prefix else []))


def _template(tokenizer: Tokenizer, config: dict[str, Any]) -> Any:
    """BOS in front and EOS behind, as the configuration says (openPangu: BOS only)."""
    from tokenizers.processors import TemplateProcessing

    wanted = {
        key: str(config.get(f"add_{key}_token", key == "bos")).lower() == "true" for key in ("bos", "eos")
    }
    names = {key: _content(config[f"{key}_token"]) for key, is_on in wanted.items() if is_on}
    before, after = ([names[key]] if key in names else [] for key in ("bos", "eos"))
    return TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", "$B:1", *after],
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in names.values()],
    )


def _check_ids(
    path: Path, tokenizer: PreTrainedTokenizerBase, model: SentencePieceModel, config: dict[str, Any]
) -> None:
    expected = {piece: number for number, piece in enumerate(model.pieces)} | _added(config)
    found = tokenizer.get_vocab()
    wrong = sorted(text for text in expected.keys() | found.keys() if expected.get(text) != found.get(text))
    if wrong:
        shown = ", ".join(f"{t!r} ({expected.get(t)}, rebuilt {found.get(t)})" for t in wrong[:3])
        raise UserError(f"{path} and {CONFIG_FILE} disagree on ids: {shown}; fetch both again")


def _check_against(
    path: Path,
    tokenizer: PreTrainedTokenizerBase,
    processor: SentencePieceProcessor,
    model: SentencePieceModel,
    config: dict[str, Any],
) -> None:
    """Raise UserError at the first text whose ids differ from sentencepiece's."""
    added = _added(config)
    expected = {text: processor.encode(text) for text in PROBES}
    for piece in set(model.of_type(USER_DEFINED)) - added.keys():
        expected[f"a{piece}b {piece}c"] = processor.encode(f"a{piece}b {piece}c")
    for text, number in added.items():
        expected[f"an{text}other"] = [*processor.encode("an"), number, *processor.encode("other")]
    for text, ids in expected.items():
        found = list(tokenizer(text, add_special_tokens=False).input_ids)
        if found != ids:
            raise UserError(
                f"{path}: the rebuilt tokenizer differs from sentencepiece on {text!r} ({found} for {ids}); "
                "convert it to tokenizer.json"
            )
