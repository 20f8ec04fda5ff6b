"""Read a SentencePiece BPE model, such as Llama 2's `tokenizer.model`.

The file is a protobuf message that is validated before use. An unsupported setting that
would change the ids is rejected with an error that names it. Among all adjacent pairs
that form a piece, the pair with the highest score merges first, and the leftmost pair
wins a tie.

Source: google/sentencepiece src/sentencepiece_model.proto, src/bpe_model.cc,
src/normalizer.cc, v0.2.1; https://protobuf.dev/programming-guides/encoding for the
message format.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from struct import unpack
from typing import Any

from ..untrusted import described, read_whole, shown
from .added_tokens import AddedToken, spaces_taken
from .bpe import spelled_merges
from .config_files import MAX_FILE_BYTES, MAX_TOKEN_LENGTH, MAX_TOKENS, TokenSettings
from .encoders import (
    MetaspaceEncoder,
    MetaspacePipeline,
    PrependScheme,
    byte_token_text,
    character_symbols,
)
from .errors import TokenizerError, mismatch
from .pre_tokenizers import METASPACE
from .tokenizer import Decoding, Tokenizer

# Protobuf wire types.
VARINT = 0
FIXED_64 = 1
BYTES = 2
FIXED_32 = 5
_WIRE_NAMES = {
    VARINT: "an integer",
    FIXED_64: "8 bytes",
    BYTES: "bytes",
    FIXED_32: "4 bytes",
}
_WIRE_OF = {
    bool: VARINT,
    int: VARINT,
    bytes: BYTES,
    list: BYTES,
    str: BYTES,
    float: FIXED_32,
}
_LARGEST_FIELD = (1 << 29) - 1
_LONGEST_VARINT = 10


class Kind:
    """Piece types in SentencePiece models and GGUF files (SentencePiece.Type)."""

    NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
BPE = 2

# The known fields of each message: field number -> (name, default). A field whose default
# is a list may be repeated. Unknown fields are skipped, except in the model message,
# because its pieces determine the ids.
KnownFields = dict[int, tuple[str, Any]]
_MODEL: KnownFields = {
    1: ("pieces", []),
    2: ("trainer_spec", b""),
    3: ("normalizer_spec", b""),
    4: ("self_test_data", b""),
    5: ("denormalizer_spec", b""),
}
_PIECE: KnownFields = {1: ("piece", ""), 2: ("score", 0.0), 3: ("type", Kind.NORMAL)}
_TRAINER: KnownFields = {
    3: ("model_type", 1),
    24: ("treat_whitespace_as_suffix", False),
    35: ("byte_fallback", False),
    46: ("bos_piece", "<s>"),
    47: ("eos_piece", "</s>"),
}
_NORMALIZER: KnownFields = {
    2: ("precompiled_charsmap", b""),
    3: ("add_dummy_prefix", True),
    4: ("remove_extra_whitespaces", True),
    5: ("escape_whitespaces", True),
}
# The only values of these settings that the encoder supports.
_REQUIRED = {
    "treat_whitespace_as_suffix": False,
    "byte_fallback": True,
    "remove_extra_whitespaces": False,
    "escape_whitespaces": True,
}


@dataclass(frozen=True, slots=True)
class Piece:
    """A token in the model, spelled with metaspaces. Higher scores merge earlier."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a SentencePiece model that affect ids and text."""

    pieces: tuple[Piece, ...]  # indexed by id
    bos_piece: str  # the beginning-of-text piece
    eos_piece: str  # the end-of-text piece
    add_dummy_prefix: bool  # whether a space is prepended to text

    @property
    def ids(self) -> dict[str, int]:
        """A mapping from each piece to its id."""
        return {piece.text: number for number, piece in enumerate(self.pieces)}

    @property
    def special(self) -> dict[str, int]:
        """A mapping from each special piece, which text never encodes to, to its id."""
        special = (Kind.CONTROL, Kind.UNKNOWN)
        return {
            p.text: number for number, p in enumerate(self.pieces) if p.kind in special
        }


# The file


def fields(path: Path, where: str, data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield the number, wire type and value (64-bit integer or bytes) of each field.

    Args:
        path: The file, for error messages.
        where: A prefix that identifies the message in error messages.
        data: The encoded message.

    Raises:
        TokenizerError: A field is malformed or extends beyond the message.
    """
    message = f"{where}message"
    at = 0
    end = len(data)
    while at < end:
        tag, at = _varint(path, message, data, at)
        number = tag >> 3
        wire = tag & 7
        if not 0 < number <= _LARGEST_FIELD:
            raise mismatch(
                path, message, f"a field number from 1 to {_LARGEST_FIELD}", number
            )
        if wire not in _WIRE_NAMES:
            raise mismatch(path, message, f"wire type 0, 1, 2 or 5 at byte {at}", wire)
        if wire == VARINT:
            value, at = _varint(path, message, data, at)
            yield number, wire, value
            continue
        size = 4 if wire == FIXED_32 else 8
        if wire == BYTES:
            size, at = _varint(path, message, data, at)
        if size > end - at:
            rule = f"field {number} at byte {at} to end by byte {end}"
            raise mismatch(path, message, rule, f"{size} bytes")
        yield number, wire, data[at : at + size]
        at += size


def _varint(path: Path, key: str, data: bytes, at: int) -> tuple[int, int]:
    """Decode a varint (7 bits per byte), and return its value and its end offset."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for count, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80 and value < 1 << 64:
            return value, at + count + 1
    raise mismatch(
        path, key, f"an integer of at most 64 bits at byte {at}", "no end of it"
    )


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Read a SentencePiece BPE model.

    Raises:
        TokenizerError: The file is damaged, contains another model type, or requires an
            unsupported feature, such as a character normalization table.
    """
    file = _read_fields(
        path, "", read_whole(path, MAX_FILE_BYTES, TokenizerError), _MODEL
    )
    trainer, normalizer, denormalizer = (
        _read_fields(path, f"{name}: ", file[name], known)
        for name, known in (
            ("trainer_spec", _TRAINER),
            ("normalizer_spec", _NORMALIZER),
            ("denormalizer_spec", _NORMALIZER),
        )
    )
    for spec in (normalizer, denormalizer):
        if charsmap := spec["precompiled_charsmap"]:
            raise mismatch(path, "precompiled_charsmap", "none", f"{len(charsmap)} bytes")
    model_type = trainer["model_type"]
    if model_type != BPE:
        raise mismatch(
            path, "model_type", "BPE", _MODEL_TYPES.get(model_type, model_type)
        )
    settings = trainer | normalizer
    for name, expected in _REQUIRED.items():
        if settings[name] is not expected:
            raise mismatch(path, name, described(expected), described(not expected))
    model = SentencePieceModel(
        pieces=_read_pieces(path, file["pieces"]),
        bos_piece=trainer["bos_piece"],
        eos_piece=trainer["eos_piece"],
        add_dummy_prefix=normalizer["add_dummy_prefix"],
    )
    check_model(path, model)
    return model


def _read_fields(
    path: Path, where: str, data: bytes, known: KnownFields
) -> dict[str, Any]:
    """Decode the known fields of a message.

    Returns:
        The values by field name, each with the type of its default.
    """
    values: dict[str, Any] = {}
    for number, wire, value in fields(path, where, data):
        if number not in known:
            if known is _MODEL:
                raise mismatch(path, "field", "a number from 1 to 5", number)
            continue
        name, default = known[number]
        kind: type = type(default)
        if wire != _WIRE_OF[kind]:
            raise mismatch(
                path, where + name, _WIRE_NAMES[_WIRE_OF[kind]], _WIRE_NAMES[wire]
            )
        if kind is list:
            listed = values.setdefault(name, [])
            if not value or len(listed) == MAX_TOKENS:
                expected = f"at most {MAX_TOKENS} without an empty one"
                raise mismatch(path, name, expected, "more" if value else "an empty one")
            listed.append(value)
            continue
        if name in values:
            raise mismatch(path, where + name, "one value", "two")
        if kind is float:
            (value,) = unpack("<f", value)
        elif kind is str:
            try:
                value = value.decode()
            except UnicodeDecodeError as error:
                got = f"an invalid byte at offset {error.start}"
                raise mismatch(path, where + name, "UTF-8", got) from None
        values[name] = kind(value)
    return dict(known.values()) | values


def _read_pieces(path: Path, messages: list[bytes]) -> tuple[Piece, ...]:
    pieces: dict[str, Piece] = {}
    for number, message in enumerate(messages):
        key = f"piece {number}: "
        piece = Piece(*_read_fields(path, key, message, _PIECE).values())
        if not 0 < len(piece.text) <= MAX_TOKEN_LENGTH:
            rule = f"1 to {MAX_TOKEN_LENGTH} characters"
            raise mismatch(path, f"{key}text", rule, len(piece.text))
        if piece.kind not in (1, 2, 3, 4, 6):
            rule = "1, 2, 3, 4 or 6, the types of used pieces"
            raise mismatch(path, f"{key}type", rule, piece.kind)
        if piece.text in pieces:
            got = f"{shown(piece.text)} of piece {list(pieces).index(piece.text)} again"
            raise mismatch(path, f"{key}text", "a new text", got)
        pieces[piece.text] = piece
    return tuple(pieces.values())


def check_model(path: Path, model: SentencePieceModel) -> None:
    """Check that scores are finite, one piece is unknown, and each byte has a piece."""
    for number, piece in enumerate(model.pieces):
        if not isfinite(piece.score):
            raise mismatch(path, f"piece {number}: score", "a finite number", piece.score)
    unknown = [piece for piece in model.pieces if piece.kind == Kind.UNKNOWN]
    if len(unknown) != 1:
        raise mismatch(path, "pieces", "one unknown piece", len(unknown))
    expected = set(map(byte_token_text, range(256)))
    present = {piece.text for piece in model.pieces if piece.kind == Kind.BYTE}
    for text in sorted(present ^ expected):
        rule, got = (
            ("a byte piece", "none") if text in expected else ("no byte piece", "one")
        )
        raise mismatch(path, f"pieces: {shown(text)}", rule, got)


# The tokenizer


def sentencepiece_tokenizer(
    model: SentencePieceModel, settings: TokenSettings, added: Sequence[AddedToken] = ()
) -> Tokenizer:
    """Build the tokenizer for a SentencePiece model.

    Args:
        model: The model.
        settings: The token roles from the files next to the model.
        added: The added tokens from the files next to the model.

    Raises:
        TokenizerError: The settings name a token that does not exist.
    """
    added_special = {token.text: token.token_id for token in added if token.special}
    # Text must not encode to a piece that the files next to the model declare as special.
    pieces = tuple(
        replace(p, kind=Kind.CONTROL)
        if p.text in added_special and p.kind in (Kind.NORMAL, Kind.USER_DEFINED)
        else p
        for p in model.pieces
    )
    model = replace(model, pieces=pieces)
    ids = model.ids
    special = model.special | added_special
    byte_ids = [ids[byte_token_text(byte)] for byte in range(256)]
    token_bytes = [
        b""
        if p.kind == Kind.UNUSED
        else (p.text if p.text in special else p.text.replace(METASPACE, " ")).encode()
        for p in pieces
    ]
    for byte, number in enumerate(byte_ids):
        token_bytes[number] = bytes([byte])
    token_bytes += [token.text.encode() for token in added if token.text not in ids]
    begin, end = (
        name if name in special else None for name in (model.bos_piece, model.eos_piece)
    )
    user_defined = [
        AddedToken(p.text, number, special=False)
        for number, p in enumerate(pieces)
        if p.kind == Kind.USER_DEFINED
    ]
    encoder = _encoder(model, ids, byte_ids)
    encoder.find(added, user_defined)
    return Tokenizer(
        token_bytes,
        special,
        encoder,
        settings.roles(special, len(token_bytes), (begin, end)),
        Decoding(
            drops_first_space=model.add_dummy_prefix,
            unknown_id=next(
                n for n, piece in enumerate(pieces) if piece.kind == Kind.UNKNOWN
            ),
            kept_space_ids=frozenset(byte_ids) | {token.token_id for token in added},
            replaces_each_byte=True,
        ),
        spaces_taken(added),
    )


def _encoder(
    model: SentencePieceModel, ids: dict[str, int], byte_ids: Sequence[int]
) -> MetaspaceEncoder:
    """Return the encoder, with merges ranked from the highest score to the lowest.

    Merges with equal scores have equal ranks.
    """
    normal = [piece for piece in model.pieces if piece.kind == Kind.NORMAL]
    tokens = {piece.text: ids[piece.text] for piece in normal}
    scores = sorted({piece.score for piece in normal}, reverse=True)
    rank_of_score = {score: rank for rank, score in enumerate(scores)}
    ranks = {piece.text: rank_of_score[piece.score] for piece in normal}
    symbols = character_symbols(tokens, len(ids))
    placeholders = [c for c, number in symbols.items() if number >= len(ids)]
    merges = spelled_merges([*ids, *placeholders], ranks, tokens)
    scheme = PrependScheme.ALWAYS if model.add_dummy_prefix else PrependScheme.NEVER
    pipeline = MetaspacePipeline(True, scheme, False, model.add_dummy_prefix)
    return MetaspaceEncoder(symbols, tokens, merges, byte_ids, pipeline, whole=False)
