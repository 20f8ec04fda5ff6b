"""Read a SentencePiece model, as the `tokenizer.model` of Llama 2 and Mistral is one.

It is a protobuf message. What it says is checked before it is used, and what would change the ids
and is not known is refused by name.

Source: google/sentencepiece src/sentencepiece_model.proto, v0.2.1.
"""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from struct import pack, unpack

from .errors import TokenizerError, mismatch, shown
from .files import read_bytes
from .protobuf import BYTES, FIXED_32, VARINT, WIRE_NAMES, WireError, fields

# SentencePiece.Type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Llama 2 has pieces of up to 16 characters and 32 000 of them.
MAX_PIECE_CHARS = 4096
MAX_PIECES = 1 << 20

_MODEL_TYPES = {1: "unigram", 2: "BPE", 3: "word", 4: "char"}
_BPE = 2


@dataclass(frozen=True)
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
        raise TokenizerError(f"{shown(path)}: message: {error}") from None


def _read_model(path: Path, data: bytes) -> SentencePieceModel:
    pieces: list[Piece] = []
    specs: dict[str, tuple[int, int]] = {}
    for number, wire, value in fields(data, 0, len(data)):
        name = _MODEL.get(number)
        if name is None:
            raise mismatch(path, "field", "a number from 1 to 5", number)
        if not isinstance(value, tuple):
            raise mismatch(path, name, WIRE_NAMES[BYTES], WIRE_NAMES[wire])
        if name == "pieces":
            pieces.append(_read_piece(path, data, value, len(pieces)))
        elif name in specs:
            raise mismatch(path, name, "it once", "it twice")
        else:
            specs[name] = value
    trainer = _Message(path, "trainer_spec", data, specs.get("trainer_spec"), _TRAINER)
    normalizer = _Message(path, "normalizer_spec", data, specs.get("normalizer_spec"), _NORMALIZER)
    back = _Message(path, "denormalizer_spec", data, specs.get("denormalizer_spec"), _NORMALIZER)
    for spec in (normalizer, back):
        charsmap = spec.get_bytes("precompiled_charsmap", b"")
        if charsmap:
            raise mismatch(path, "precompiled_charsmap", "none", f"{len(charsmap)} bytes")
    model_type = trainer.get_number("model_type", 1)
    if model_type != _BPE:
        raise mismatch(path, "model_type", "BPE", _MODEL_TYPES.get(model_type, model_type))
    if trainer.get_number("treat_whitespace_as_suffix", 0):
        raise mismatch(path, "treat_whitespace_as_suffix", "false", "true")
    model = SentencePieceModel(
        pieces=tuple(pieces),
        byte_fallback=bool(trainer.get_number("byte_fallback", 0)),
        bos_piece=trainer.get_text("bos_piece", b"<s>"),
        eos_piece=trainer.get_text("eos_piece", b"</s>"),
        add_dummy_prefix=bool(normalizer.get_number("add_dummy_prefix", 1)),
        remove_extra_whitespaces=bool(normalizer.get_number("remove_extra_whitespaces", 1)),
        escape_whitespaces=bool(normalizer.get_number("escape_whitespaces", 1)),
    )
    _check(path, model)
    return model


class _Message:
    """The fields of one message by name, each at most once and of its wire type."""

    def __init__(
        self,
        path: Path,
        what: str,
        data: bytes,
        bounds: tuple[int, int] | None,
        known: dict[int, tuple[str, int]],
    ) -> None:
        self._path, self._what, self._data = path, what, data
        self._values: dict[str, int | tuple[int, int]] = {}
        for number, wire, value in fields(data, *(bounds or (0, 0))):
            if number not in known:
                continue
            name, expected = known[number]
            if wire != expected:
                got = WIRE_NAMES[wire]
                raise mismatch(path, f"{what}: {name}", WIRE_NAMES[expected], got)
            if name in self._values:
                raise mismatch(path, f"{what}: {name}", "it once", "it twice")
            self._values[name] = value

    def get_number(self, name: str, default: int) -> int:
        value = self._values.get(name, default)
        assert isinstance(value, int)
        return value

    def get_bytes(self, name: str, default: bytes) -> bytes:
        value = self._values.get(name)
        return self._data[value[0] : value[1]] if isinstance(value, tuple) else default

    def get_text(self, name: str, default: bytes) -> str:
        data = self.get_bytes(name, default)
        try:
            return data.decode()
        except UnicodeDecodeError:
            where = f"{self._what}: {name}"
            raise mismatch(self._path, where, "UTF-8", f"'{shown(data)}'") from None


def _read_piece(path: Path, data: bytes, bounds: tuple[int, int], number: int) -> Piece:
    what = f"piece {number}"
    message = _Message(path, what, data, bounds, _PIECE)
    text = message.get_text("piece", b"")
    score: float = unpack("<f", pack("<I", message.get_number("score", 0)))[0]
    kind = message.get_number("type", NORMAL)
    if not text or len(text) > MAX_PIECE_CHARS:
        raise mismatch(path, what, f"1 to {MAX_PIECE_CHARS} characters", len(text))
    if not isfinite(score):
        raise mismatch(path, f"{what}: score", "a finite number", score)
    if kind == UNUSED:
        raise mismatch(path, f"{what}: type", "a piece that is used", "an unused one")
    if not NORMAL <= kind <= BYTE:
        raise mismatch(path, f"{what}: type", f"a number from {NORMAL} to {BYTE}", kind)
    return Piece(text, score, kind)


def _check(path: Path, model: SentencePieceModel) -> None:
    """Check the pieces against each other."""
    pieces = model.pieces
    if not pieces or len(pieces) > MAX_PIECES:
        raise mismatch(path, "pieces", f"1 to {MAX_PIECES}", len(pieces))
    ids: dict[str, int] = {}
    for number, piece in enumerate(pieces):
        if piece.text in ids:
            got = f"'{shown(piece.text)}' of piece {ids[piece.text]} again"
            raise mismatch(path, f"piece {number}", "a new text", got)
        ids[piece.text] = number
    unknown = [number for number, piece in enumerate(pieces) if piece.kind == UNKNOWN]
    if len(unknown) != 1:
        raise mismatch(path, "pieces", "one of the type unknown", len(unknown))
    wanted = {byte_piece(byte) for byte in range(256)} if model.byte_fallback else set()
    got_bytes = {piece.text for piece in pieces if piece.kind == BYTE}
    for text in sorted(got_bytes ^ wanted):
        expected = "a byte piece" if text in wanted else "no byte piece of this text"
        where = f"pieces: '{shown(text)}'"
        raise mismatch(path, where, expected, "none" if text in wanted else "one")
    if model.remove_extra_whitespaces and any(p.kind == USER_DEFINED for p in pieces):
        raise mismatch(path, "remove_extra_whitespaces", "false beside user defined pieces", "true")


def byte_piece(byte: int) -> str:
    """Give the text of the piece that stands for a byte."""
    return f"<0x{byte:02X}>"
