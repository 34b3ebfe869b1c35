"""Reading a SentencePiece `tokenizer.model`: the dozen fields of its protobuf message that matter here.

The sentencepiece library gives pieces and scores, but neither their types nor how the text is normalized, and
its protobuf classes need the protobuf package. The wire format is a page of rules, so it is read directly;
field numbers are those of sentencepiece's published `sentencepiece_model.proto`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pangu_hif8.errors import UserError

NORMAL, USER_DEFINED, UNUSED = 1, 4, 5  # SentencePiece.Type
BPE_TYPE = 2  # TrainerSpec.ModelType


@dataclass
class SentencePieceModel:
    """What the rebuilding needs of a `tokenizer.model`; the defaults are those of sentencepiece's proto."""

    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    model_type: int = 1
    byte_fallback: bool = False
    whitespace_as_suffix: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True

    def of_type(self, kind: int) -> list[str]:
        """The pieces of one type, by id."""
        return [piece for piece, its in zip(self.pieces, self.types, strict=True) if its == kind]


def _varint(buffer: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at


def _fields(buffer: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protobuf message: an int, a float (32 bit) or bytes."""
    at = 0
    while at < len(buffer):
        key, at = _varint(buffer, at)
        if key & 7 == 0:
            value, at = _varint(buffer, at)
            yield key >> 3, value
            continue
        size, at = _varint(buffer, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
        if at + size > len(buffer):
            raise ValueError("cut short")
        raw = buffer[at : at + size]
        yield key >> 3, struct.unpack("<f", raw)[0] if key & 7 == 5 else raw
        at += size


def read_model(path: Path) -> SentencePieceModel:
    """Read a `tokenizer.model`. Raises UserError when it is damaged or no SentencePiece model."""
    model = SentencePieceModel()
    try:
        for number, value in _fields(path.read_bytes()):
            if number == 1:
                _add_piece(model, dict(_fields(value)))
            elif number == 2:
                _set_trainer(model, dict(_fields(value)))
            elif number == 3:
                _set_normalizer(model, dict(_fields(value)))
    except (IndexError, KeyError, ValueError, struct.error, AttributeError, TypeError) as error:
        raise UserError(f"{path} is damaged or no SentencePiece model ({error}); fetch it again") from error
    if not model.pieces:
        raise UserError(f"{path} holds no SentencePiece pieces; fetch it again")
    return model


def _add_piece(model: SentencePieceModel, fields: dict[int, Any]) -> None:
    model.pieces.append(fields[1].decode())
    model.scores.append(float(fields.get(2, 0.0)))
    model.types.append(int(fields.get(3, NORMAL)))


def _set_trainer(model: SentencePieceModel, fields: dict[int, Any]) -> None:
    model.model_type = int(fields.get(3, model.model_type))
    model.whitespace_as_suffix = bool(fields.get(24, False))
    model.byte_fallback = bool(fields.get(35, False))


def _set_normalizer(model: SentencePieceModel, fields: dict[int, Any]) -> None:
    model.charsmap = bytes(fields.get(2, b""))
    model.add_dummy_prefix = bool(fields.get(3, True))
    model.remove_extra_whitespaces = bool(fields.get(4, True))
    model.escape_whitespaces = bool(fields.get(5, True))
