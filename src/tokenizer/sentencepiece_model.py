"""Read a SentencePiece model of the kind BPE, as the `tokenizer.model` of Llama 2 and Mistral is.

The file is a protobuf message. What it says is checked before it is used; a setting that would
change the ids and is not known is refused by name. Of all neighbours that join to a piece, the pair
with the highest score merges first, the leftmost of equals.

Source: google/sentencepiece src/sentencepiece_model.proto, src/bpe_model.cc, src/normalizer.cc,
v0.2.1; https://protobuf.dev/programming-guides/encoding for the format of messages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from struct import pack, unpack, unpack_from
from typing import Any

from ..untrusted import described, label_of, read_whole, shown
from .added_tokens import AddedToken, AddedTokenFinder, AddedTokensEncoder
from .bpe import spelled_merges
from .config_files import MAX_FILE_BYTES, MAX_TOKEN_LENGTH, MAX_TOKENS, TokenSettings
from .encoders import (
    MetaspaceEncoder,
    PrependScheme,
    character_symbols,
    replace_spaces,
    words_are_independent,
)
from .errors import TokenizerError, mismatch
from .pre_tokenizers import METASPACE
from .tokenizer import Decoding, Tokenizer

# Wire types of protobuf.
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
_WIRE_NAMES = {VARINT: "a number", FIXED_64: "8 bytes", BYTES: "bytes", FIXED_32: "4 bytes"}
_LARGEST_FIELD = (1 << 29) - 1
_LONGEST_VARINT = 10

# SentencePiece.Type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_KINDS = {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE}
_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
_BPE = 2

# The name of each field and its wire type. The model has no other fields; in its parts, others are
# skipped.
_MODEL = {1: "pieces", 2: "trainer_spec", 3: "normalizer_spec", 4: "self_test_data"}
_MODEL |= {5: "denormalizer_spec"}
_PIECE = {1: ("piece", BYTES), 2: ("score", FIXED_32), 3: ("type", VARINT)}
_TRAINER = {
    3: ("model_type", VARINT),
    24: ("treat_whitespace_as_suffix", VARINT),
    35: ("byte_fallback", VARINT),
    46: ("bos_piece", BYTES),
    47: ("eos_piece", BYTES),
}
_NORMALIZER = {
    2: ("precompiled_charsmap", BYTES),
    3: ("add_dummy_prefix", VARINT),
    4: ("remove_extra_whitespaces", VARINT),
    5: ("escape_whitespaces", VARINT),
}

# Where the bytes of a field start and end.
Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of the model: spaces are metaspaces; the higher its score, the earlier it merges."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """What a SentencePiece model says, as far as it concerns ids and text."""

    pieces: tuple[Piece, ...]  # in the order of their ids
    bos_piece: str  # name of the piece that begins a text
    eos_piece: str  # name of the piece that ends a text
    add_dummy_prefix: bool  # whether a space is put before every text

    @property
    def ids(self) -> dict[str, int]:
        """The id of each piece."""
        return {piece.text: number for number, piece in enumerate(self.pieces)}

    @property
    def special(self) -> dict[str, int]:
        """The id of each piece that no text becomes as such."""
        special = (CONTROL, UNKNOWN)
        return {p.text: number for number, p in enumerate(self.pieces) if p.kind in special}


# The format of messages


class WireError(ValueError):
    """Bytes that are not a message; the text has the form `expected X, got Y`."""


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int | Bounds]]:
    """Read the fields of a message one after the other.

    Args:
        data: Holds the message.
        start: Where it starts.
        end: Where it ends, 0 <= start <= end <= len(data); nothing is read beyond.

    Yields:
        Field number, wire type, and the value: for bytes, where they start and end; for a number,
        that as unsigned; for 4 and 8 bytes, these as an unsigned little-endian number.

    Raises:
        WireError: A field is malformed or does not end inside.
    """
    at = start
    while at < end:
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if not 0 < number <= _LARGEST_FIELD:
            raise WireError(f"expected a field number from 1 to {_LARGEST_FIELD}, got {number}")
        if wire == BYTES:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise WireError(
                    f"expected field {number} at byte {at} to end by byte {end}, got {size} bytes"
                )
            yield number, wire, (at, at + size)
            at += size
        elif wire == VARINT:
            value, at = _varint(data, at, end)
            yield number, wire, value
        elif wire in (FIXED_32, FIXED_64):
            size = 4 if wire == FIXED_32 else 8
            if size > end - at:
                raise WireError(f"expected {size} bytes of field {number}, got {end - at}")
            yield number, wire, unpack_from("<I" if size == 4 else "<Q", data, at)[0]
            at += size
        else:
            raise WireError(f"expected wire type 0, 1, 2 or 5 at byte {at}, got {wire}")


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read a number of 7 bits per byte; return it and where it ends."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for count, byte in enumerate(data[at : min(end, at + _LONGEST_VARINT)]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value >= 1 << 64:
                break
            return value, at + count + 1
    raise WireError(f"expected a number of at most 64 bits at byte {at}, got no end of it")


# The file


def is_sentencepiece_file(path: Path) -> bool:
    """Tell a SentencePiece model by its bytes: it begins with a piece, which begins with its text.

    Raises:
        TokenizerError: It cannot be read.
    """
    data = read_whole(path, MAX_FILE_BYTES, TokenizerError)
    try:
        number, wire, value = next(fields(data, 0, len(data)))
        if number != 1 or not isinstance(value, tuple):
            return False
        number, wire, _ = next(fields(data, *value))
    except (WireError, StopIteration):
        return False
    return number == 1 and wire == BYTES


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Read a SentencePiece model of the kind BPE.

    Raises:
        TokenizerError: The file is damaged, of another kind, or asks for something unknown, such
            as a table of normalized characters.
    """
    data = read_whole(path, MAX_FILE_BYTES, TokenizerError)
    try:
        return _read_model(path, data)
    except WireError as error:
        raise TokenizerError(f"{label_of(path)}: message: {error}") from None


def _read_model(path: Path, data: bytes) -> SentencePieceModel:
    piece_bounds, specs = _read_outline(path, data)
    trainer, normalizer, denormalizer = (
        _read_fields(path, name, data, specs.get(name, (0, 0)), known)
        for name, known in (
            ("trainer_spec", _TRAINER),
            ("normalizer_spec", _NORMALIZER),
            ("denormalizer_spec", _NORMALIZER),
        )
    )
    for spec in (normalizer, denormalizer):
        charsmap = spec.get("precompiled_charsmap")
        if charsmap:
            raise mismatch(path, "precompiled_charsmap", "none", f"{len(charsmap)} bytes")
    model_type = trainer.get("model_type", 1)
    if model_type != _BPE:
        raise mismatch(path, "model_type", "BPE", _MODEL_TYPES.get(model_type, model_type))
    for name, value, expected in (
        ("treat_whitespace_as_suffix", trainer.get("treat_whitespace_as_suffix"), False),
        ("byte_fallback", trainer.get("byte_fallback"), True),
        ("remove_extra_whitespaces", normalizer.get("remove_extra_whitespaces", 1), False),
        ("escape_whitespaces", normalizer.get("escape_whitespaces", 1), True),
    ):
        if bool(value) is not expected:
            raise mismatch(path, name, described(expected), described(not expected))
    model = SentencePieceModel(
        pieces=_read_pieces(path, data, piece_bounds),
        bos_piece=_decoded(path, "trainer_spec: bos_piece", trainer.get("bos_piece", b"<s>")),
        eos_piece=_decoded(path, "trainer_spec: eos_piece", trainer.get("eos_piece", b"</s>")),
        add_dummy_prefix=bool(normalizer.get("add_dummy_prefix", 1)),
    )
    check_model(path, model)
    return model


def _read_outline(path: Path, data: bytes) -> tuple[list[Bounds], dict[str, Bounds]]:
    """Find where the pieces and the settings are."""
    pieces: list[Bounds] = []
    specs: dict[str, Bounds] = {}
    for number, wire, value in fields(data, 0, len(data)):
        name = _MODEL.get(number)
        if name is None:
            raise mismatch(path, "field", "a number from 1 to 5", number)
        if not isinstance(value, tuple):
            raise mismatch(path, name, _WIRE_NAMES[BYTES], _WIRE_NAMES[wire])
        if name == "pieces":
            if value[0] == value[1]:
                raise mismatch(path, f"piece {len(pieces)}", "a text", "nothing")
            if len(pieces) == MAX_TOKENS:
                raise mismatch(path, "pieces", f"1 to {MAX_TOKENS}", "more")
            pieces.append(value)
        elif name in specs:
            raise mismatch(path, name, "it once", "it twice")
        else:
            specs[name] = value
    return pieces, specs


def _read_fields(
    path: Path, what: str, data: bytes, bounds: Bounds, known: dict[int, tuple[str, int]]
) -> dict[str, Any]:
    """Read the known fields by name, each at most once: int, or bytes for the wire type BYTES."""
    values: dict[str, Any] = {}
    for number, wire, value in fields(data, *bounds):
        if number not in known:
            continue
        name, expected = known[number]
        if wire != expected:
            raise mismatch(path, f"{what}: {name}", _WIRE_NAMES[expected], _WIRE_NAMES[wire])
        if name in values:
            raise mismatch(path, f"{what}: {name}", "it once", "it twice")
        values[name] = data[slice(*value)] if isinstance(value, tuple) else value
    return values


def _decoded(path: Path, what: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise mismatch(path, what, "UTF-8", f"other bytes at byte {error.start}") from None


def _read_pieces(path: Path, data: bytes, bounds: list[Bounds]) -> tuple[Piece, ...]:
    if not bounds:
        raise mismatch(path, "pieces", f"1 to {MAX_TOKENS}", 0)
    pieces: dict[str, Piece] = {}
    for number, span in enumerate(bounds):
        what = f"piece {number}"
        values = _read_fields(path, what, data, span, _PIECE)
        text = _decoded(path, what, values.get("piece", b""))
        score: float = unpack("<f", pack("<I", values.get("score", 0)))[0]
        kind = values.get("type", NORMAL)
        if not text or len(text) > MAX_TOKEN_LENGTH:
            raise mismatch(path, what, f"1 to {MAX_TOKEN_LENGTH} characters", len(text))
        if not isfinite(score):
            raise mismatch(path, f"{what}: score", "a finite number", score)
        if kind == UNUSED:
            raise mismatch(path, f"{what}: type", "a piece that is used", "an unused one")
        if kind not in _KINDS:
            raise mismatch(path, f"{what}: type", f"a number from {NORMAL} to {BYTE}", kind)
        if text in pieces:
            got = f"{shown(text)} of piece {list(pieces).index(text)} again"
            raise mismatch(path, what, "a new text", got)
        pieces[text] = Piece(text, score, kind)
    return tuple(pieces.values())


def check_model(path: Path, model: SentencePieceModel) -> None:
    """Check that one piece is unknown, and that there is one for each byte."""
    unknown = [piece for piece in model.pieces if piece.kind == UNKNOWN]
    if len(unknown) != 1:
        raise mismatch(path, "pieces", "one of the type unknown", len(unknown))
    wanted = set(map(byte_piece, range(256)))
    present = {piece.text for piece in model.pieces if piece.kind == BYTE}
    for text in sorted(present ^ wanted):
        what = f"pieces: {shown(text)}"
        if text in wanted:
            raise mismatch(path, what, "a byte piece", "none")
        raise mismatch(path, what, "no byte piece of this text", "one")


def byte_piece(byte: int) -> str:
    """Return the text of the piece for a byte."""
    return f"<0x{byte:02X}>"


# The tokenizer


def sentencepiece_tokenizer(
    model: SentencePieceModel, settings: TokenSettings, added: Sequence[AddedToken] = ()
) -> Tokenizer:
    """Form the tokenizer of a SentencePiece model.

    Args:
        model: What the file says.
        settings: What the files beside it say.
        added: The tokens that they add, as `read_added_tokens_of_config` returns them.

    Raises:
        TokenizerError: The settings name a token that the model does not have.
    """
    added_special = {token.text: token.token_id for token in added if token.special}
    pieces = tuple(  # no text becomes a piece that the files beside the model call special
        replace(p, kind=CONTROL)
        if p.text in added_special and p.kind in (NORMAL, USER_DEFINED)
        else p
        for p in model.pieces
    )
    model = replace(model, pieces=pieces)
    ids, special = model.ids, model.special | added_special
    byte_of = {byte_piece(byte): bytes([byte]) for byte in range(256)}
    token_bytes = [
        byte_of[p.text]
        if p.kind == BYTE
        else b""
        if p.kind == UNUSED
        else (p.text if p.text in special else p.text.replace(METASPACE, " ")).encode()
        for p in pieces
    ]
    token_bytes += [token.text.encode() for token in added if token.text not in ids]
    begin, end = (name if name in special else None for name in (model.bos_piece, model.eos_piece))
    unknown_id = next(number for number, piece in enumerate(pieces) if piece.kind == UNKNOWN)
    user_defined = [
        AddedToken(p.text, number, special=False)
        for number, p in enumerate(pieces)
        if p.kind == USER_DEFINED
    ]
    encoder = AddedTokensEncoder(
        _encoder(model, ids), AddedTokenFinder(added), AddedTokenFinder(user_defined)
    )
    return Tokenizer(
        token_bytes,
        special,
        encoder,
        settings.roles(special, len(token_bytes), (begin, end)),
        Decoding(
            drops_first_space=model.add_dummy_prefix,
            unknown_id=unknown_id,
            kept_space_ids=frozenset(n for n, p in enumerate(pieces) if p.kind == BYTE)
            | {token.token_id for token in added},
            replaces_each_byte=True,
        ),
    )


def _encoder(model: SentencePieceModel, ids: dict[str, int]) -> MetaspaceEncoder:
    """Form the encoder: equal scores are equal ranks, the highest score is rank 0."""
    scheme = PrependScheme.ALWAYS if model.add_dummy_prefix else PrependScheme.NEVER
    normal = [piece for piece in model.pieces if piece.kind == NORMAL]
    tokens = {piece.text: ids[piece.text] for piece in normal}
    scores = sorted({piece.score for piece in normal}, reverse=True)
    rank_of_score = {score: rank for rank, score in enumerate(scores)}
    ranks = {piece.text: rank_of_score[piece.score] for piece in normal}
    symbols = character_symbols(tokens, len(ids))
    placeholders = [c for c, number in symbols.items() if number >= len(ids)]
    return MetaspaceEncoder(
        symbols,
        tokens,
        spelled_merges([*ids, *placeholders], ranks, tokens),
        [ids[byte_piece(byte)] for byte in range(256)],
        normalize=lambda text: replace_spaces(text, scheme),
        words=words_are_independent(tokens),
    )
