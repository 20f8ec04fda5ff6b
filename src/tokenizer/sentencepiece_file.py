"""Read a SentencePiece model, as the `tokenizer.model` of Llama 2 and Mistral is one.

It is a protobuf message. What it says is checked before it is used, and what would change the ids
and is not known is refused by name.

Source: google/sentencepiece src/sentencepiece_model.proto, v0.2.1.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from struct import pack, unpack
from typing import cast

from .errors import TokenizerError, label, mismatch, shown
from .files import MAX_TOKENS, read_bytes
from .protobuf import BYTES, FIXED_32, VARINT, WIRE_NAMES, Value, WireError, fields

# SentencePiece.Type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Llama 2 has pieces of up to 16 characters.
MAX_PIECE_CHARS = 4096

_KINDS = {NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE}
_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
_BPE = 2


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of the model.

    Attributes:
        text: its text, with U+2581 for spaces.
        score: the higher, the earlier it is merged.
        kind: its type.
    """

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """What a SentencePiece model says, as far as it bears on ids and text.

    Attributes:
        pieces: in the order of their ids.
        byte_fallback: whether a character that is no piece becomes the pieces of its bytes.
        bos_piece: name of the piece that begins a text.
        eos_piece: name of the piece that ends a text.
        add_dummy_prefix: whether a space goes before every text.
        remove_extra_whitespaces: whether spaces at the ends and doubled ones are dropped.
        escape_whitespaces: whether spaces become U+2581.
    """

    pieces: tuple[Piece, ...]
    byte_fallback: bool
    bos_piece: str
    eos_piece: str
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool

    @property
    def ids(self) -> dict[str, int]:
        """The id of each piece."""
        return {piece.text: number for number, piece in enumerate(self.pieces)}

    @property
    def special(self) -> dict[str, int]:
        """The id of each piece that no text becomes as such."""
        special = (CONTROL, UNKNOWN)
        return {p.text: number for number, p in enumerate(self.pieces) if p.kind in special}


# The number of each field that is read, and its wire type; of a message, others are skipped.
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


_Bounds = tuple[int, int]


def is_sentencepiece_file(path: Path) -> bool:
    """Tell a SentencePiece model by its bytes: it begins with a piece, which begins with its text.

    Args:
        path: the file.

    Raises:
        TokenizerError: where it cannot be read.
    """
    data = read_bytes(path)
    try:
        number, wire, value = next(fields(data, 0, len(data)))
        if number != 1 or wire != BYTES or not isinstance(value, tuple):
            return False
        number, wire, _ = next(fields(data, *value))
    except (WireError, StopIteration):
        return False
    return number == 1 and wire == BYTES


def read_sentencepiece_model(path: Path) -> SentencePieceModel:
    """Read a SentencePiece model of the kind BPE.

    Args:
        path: the file.

    Raises:
        TokenizerError: for a file that is damaged, of another kind, or that asks for what is not
            known, such as a table of normalized characters.
    """
    data = read_bytes(path)
    try:
        return _read_model(path, data)
    except WireError as error:
        raise TokenizerError(f"{label(path)}: message: {error}") from None


def _read_model(path: Path, data: bytes) -> SentencePieceModel:
    piece_bounds, specs = _read_outline(path, data)
    trainer = _Settings(path, "trainer_spec", data, specs.get("trainer_spec"), _TRAINER)
    normalizer = _Settings(path, "normalizer_spec", data, specs.get("normalizer_spec"), _NORMALIZER)
    back = _Settings(path, "denormalizer_spec", data, specs.get("denormalizer_spec"), _NORMALIZER)
    for spec in (normalizer, back):
        charsmap = spec.bytes("precompiled_charsmap")
        if charsmap:
            raise mismatch(path, "precompiled_charsmap", "none", f"{len(charsmap)} bytes")
    model_type = trainer.number("model_type", 1)
    if model_type != _BPE:
        raise mismatch(path, "model_type", "BPE", _MODEL_TYPES.get(model_type, model_type))
    if trainer.number("treat_whitespace_as_suffix", 0):
        raise mismatch(path, "treat_whitespace_as_suffix", "false", "true")
    model = SentencePieceModel(
        pieces=_read_pieces(path, data, piece_bounds),
        byte_fallback=bool(trainer.number("byte_fallback", 0)),
        bos_piece=trainer.text("bos_piece", "<s>"),
        eos_piece=trainer.text("eos_piece", "</s>"),
        add_dummy_prefix=bool(normalizer.number("add_dummy_prefix", 1)),
        remove_extra_whitespaces=bool(normalizer.number("remove_extra_whitespaces", 1)),
        escape_whitespaces=bool(normalizer.number("escape_whitespaces", 1)),
    )
    _check(path, model)
    return model


def _read_outline(path: Path, data: bytes) -> tuple[list[_Bounds], dict[str, _Bounds]]:
    """Find where the pieces and the settings are."""
    pieces: list[_Bounds] = []
    specs: dict[str, _Bounds] = {}
    for number, wire, value in fields(data, 0, len(data)):
        name = _MODEL.get(number)
        if name is None:
            raise mismatch(path, "field", "a number from 1 to 5", number)
        if not isinstance(value, tuple):
            raise mismatch(path, name, WIRE_NAMES[BYTES], WIRE_NAMES[wire])
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
    path: Path, what: str, data: bytes, bounds: _Bounds, known: dict[int, tuple[str, int]]
) -> dict[str, Value]:
    """Read the known fields of a message by name, each at most once and of its wire type."""
    values: dict[str, Value] = {}
    for number, wire, value in fields(data, *bounds):
        if number not in known:
            continue
        name, expected = known[number]
        if wire != expected:
            got = WIRE_NAMES[wire]
            raise mismatch(path, f"{what}: {name}", WIRE_NAMES[expected], got)
        if name in values:
            raise mismatch(path, f"{what}: {name}", "it once", "it twice")
        values[name] = value
    return values


class _Settings:
    """The fields of a message of settings, with their defaults."""

    def __init__(
        self,
        path: Path,
        what: str,
        data: bytes,
        bounds: _Bounds | None,
        known: dict[int, tuple[str, int]],
    ) -> None:
        self._path, self._what, self._data = path, what, data
        self._values = _read_fields(path, what, data, bounds or (0, 0), known)

    def number(self, name: str, default: int) -> int:
        value = self._values.get(name, default)
        assert isinstance(value, int)
        return value

    def bytes(self, name: str) -> bytes | None:
        value = self._values.get(name)
        return self._data[value[0] : value[1]] if isinstance(value, tuple) else None

    def text(self, name: str, default: str) -> str:
        data = self.bytes(name)
        return default if data is None else _decoded(self._path, f"{self._what}: {name}", data)


def _decoded(path: Path, what: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise mismatch(path, what, "UTF-8", f"'{shown(data)}'") from None


def _read_pieces(path: Path, data: bytes, bounds: list[_Bounds]) -> tuple[Piece, ...]:
    if not bounds:
        raise mismatch(path, "pieces", f"1 to {MAX_TOKENS}", 0)
    pieces: dict[str, Piece] = {}
    for number, span in enumerate(bounds):
        piece = _read_piece(path, data, span, number)
        if piece.text in pieces:
            got = f"'{shown(piece.text)}' of piece {list(pieces).index(piece.text)} again"
            raise mismatch(path, f"piece {number}", "a new text", got)
        pieces[piece.text] = piece
    return tuple(pieces.values())


def _read_piece(path: Path, data: bytes, bounds: _Bounds, number: int) -> Piece:
    what = f"piece {number}"
    values = _read_fields(path, what, data, bounds, _PIECE)
    start, end = cast(_Bounds, values.get("piece", (0, 0)))
    text = _decoded(path, what, data[start:end])
    score: float = unpack("<f", pack("<I", values.get("score", 0)))[0]
    kind = values.get("type", NORMAL)
    if not text or len(text) > MAX_PIECE_CHARS:
        raise mismatch(path, what, f"1 to {MAX_PIECE_CHARS} characters", len(text))
    if not isfinite(score):
        raise mismatch(path, f"{what}: score", "a finite number", score)
    if kind == UNUSED:
        raise mismatch(path, f"{what}: type", "a piece that is used", "an unused one")
    if kind not in _KINDS:
        raise mismatch(path, f"{what}: type", f"a number from {NORMAL} to {BYTE}", kind)
    return Piece(text, score, kind)


def _check(path: Path, model: SentencePieceModel) -> None:
    """Check the pieces against each other and the settings."""
    pieces = model.pieces
    unknown = [number for number, piece in enumerate(pieces) if piece.kind == UNKNOWN]
    if len(unknown) != 1:
        raise mismatch(path, "pieces", "one of the type unknown", len(unknown))
    wanted = {byte_piece(byte) for byte in range(256)} if model.byte_fallback else set()
    present = {piece.text for piece in pieces if piece.kind == BYTE}
    for text in sorted(present ^ wanted):
        where = f"pieces: '{shown(text)}'"
        if text in wanted:
            raise mismatch(path, where, "a byte piece", "none")
        raise mismatch(path, where, "no byte piece of this text", "one")
    if model.remove_extra_whitespaces and any(p.kind == USER_DEFINED for p in pieces):
        expected = "false beside user defined pieces"
        raise mismatch(path, "remove_extra_whitespaces", expected, "true")


def byte_piece(byte: int) -> str:
    """Give the text of the piece that stands for a byte."""
    return f"<0x{byte:02X}>"
