import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from src.tokenizer.config_files import is_sentencepiece_file
from src.tokenizer.sentencepiece_model import fields, read_sentencepiece_model
from tests.support.sentencepiece_writer import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    RESERVED,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    bytes_field,
    float_field,
    model_message,
    number_field,
    piece_message,
    ranked,
    spec_message,
    varint,
)
from tests.tokenizer.conftest import check_refused, encode

Write = Callable[[bytes], Path]

PIECES = [*RESERVED, *ranked("th", "▁th", "▁the", "▁", "t", "h", "e")]
TH = 259
THE = 261
MARK = 262
T = 263
H = 264
E = 265
VALID = model_message(PIECES)


Load = Callable[..., Tokenizer]


@pytest.fixture
def load(write_model: Write) -> Load:
    """Load the tokenizer of a model that consists of these pieces and settings."""

    def load(pieces: list[Any] = PIECES, *settings: Any, **more: Any) -> Tokenizer:
        return load_tokenizer(
            write_model(model_message(pieces, *settings, **more)).parent
        )

    return load


def test_a_model_is_told_by_its_bytes_and_loads(load):
    tokenizer = load()
    assert encode(tokenizer, "the the") == [THE, THE]
    assert tokenizer.encode("the", bos=True, eos=True) == [1, THE, 2]
    assert tokenizer.decode([THE, THE]) == "the the"
    assert tokenizer.vocab_size == len(PIECES)
    assert tokenizer.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.adds_bos) == (1, 2, True)
    assert tokenizer.stop_ids == {2}


def test_the_highest_score_merges_first_and_of_equals_the_leftmost(load):
    letters = [*RESERVED, *ranked(*"▁abc")]
    high_right = [*letters, ("ab", -9.0, NORMAL), ("bc", -8.0, NORMAL)]
    assert encode(load(high_right), "abc") == [259, 260, 264]
    equal = [*letters, ("bc", -8.0, NORMAL), ("ab", -8.0, NORMAL)]
    assert encode(load(equal), "abc") == [259, 264, 262]


def test_a_character_that_is_no_piece_becomes_its_bytes(load):
    tokenizer = load()
    assert encode(tokenizer, "é\n") == [MARK, 3 + 0xC3, 3 + 0xA9, 3 + 0x0A]
    assert tokenizer.decode(encode(tokenizer, "é\n")) == "é\n"


def test_text_never_becomes_a_control_piece_or_a_byte(load):
    tokenizer = load([*PIECES, *ranked(*"<s>/0xA<>"[:-2])])
    for text in ("<s>", "</s>", "<unk>", "<0x0A>"):
        ids = encode(tokenizer, text)
        assert tokenizer.decode(ids) == text
        assert not any(map(tokenizer.is_special, ids))
        assert 3 + 0x0A not in ids


def test_user_defined_pieces_are_found_in_text_and_merge_with_nothing(load):
    tokenizer = load(
        [*PIECES, ("<think>", 0.0, USER_DEFINED), ("the", 0.0, USER_DEFINED)]
    )
    assert encode(tokenizer, "the<think>th") == [MARK, 267, 266, TH]


def model_with_normalizer(fields: dict[int, int] | None) -> bytes:
    """A model whose normalizer says these fields and no other;
    None for no such settings.
    """
    pieces = b"".join(bytes_field(1, piece_message(*piece)) for piece in PIECES)
    normalizer = b"" if fields is None else bytes_field(3, spec_message(fields))
    return pieces + bytes_field(2, spec_message({3: BPE, 35: 1})) + normalizer


@pytest.mark.parametrize("fields", [None, {}, {3: 1}, {5: 1}])
def test_settings_that_are_missing_are_on(write_model, fields):
    with pytest.raises(
        TokenizerError, match="remove_extra_whitespaces: expected false, got true"
    ):
        load_tokenizer(write_model(model_with_normalizer(fields)).parent)
    model = model_with_normalizer({4: 0} | (fields or {}))
    tokenizer = load_tokenizer(write_model(model).parent)
    assert encode(tokenizer, " the  the ") == [MARK, THE, MARK, THE, MARK]


def test_the_dummy_prefix_can_be_off(load):
    tokenizer = load(normalizer={3: 0})
    assert encode(tokenizer, "the the") == [TH, E, THE]
    assert tokenizer.decode([THE]) == " the"


def test_other_names_of_begin_and_end_are_found(load):
    pieces = [("<unk>", 0.0, UNKNOWN), ("[B]", 0.0, CONTROL), ("[E]", 0.0, CONTROL)]
    pieces += [*RESERVED[3:], *ranked("▁")]
    tokenizer = load(pieces, {46: "[B]", 47: "[E]"})
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    with pytest.raises(TokenizerError, match="must have a token that begins a text"):
        load(pieces).encode("", bos=True, eos=False)


def test_fields_that_are_not_known_are_skipped_by_their_wire_type(write_model):
    strange = (
        float_field(200, 1.5)
        + varint(201 << 3 | 1)
        + b"\0" * 8
        + bytes_field(202, b"\xff")
    )
    piece = piece_message("x", -9.0, NORMAL) + strange + number_field(203, 1 << 63)
    model = read_sentencepiece_model(write_model(with_piece(piece)))
    assert len(model.pieces) == len(PIECES) + 1


def test_a_piece_without_a_score_and_a_type_is_a_normal_one_of_score_0(write_model):
    piece = read_sentencepiece_model(write_model(with_piece(bytes_field(1, "x")))).pieces[
        -1
    ]
    assert (piece.text, piece.score, piece.kind) == ("x", 0.0, NORMAL)


def with_piece(*fields: bytes) -> bytes:
    return VALID + bytes_field(1, b"".join(fields))


def with_row(text: str | bytes, kind: int = NORMAL, score: float = -9.0) -> bytes:
    return with_piece(piece_message(text, score, kind))


X = bytes_field(1, "x")
MALFORMED = [
    ("unigram", model_message(PIECES, {3: 1}), "model_type: expected BPE, got unigram"),
    ("word", model_message(PIECES, {3: 3}), "model_type: expected BPE, got word"),
    ("another type", model_message(PIECES, {3: 99}), "model_type: expected BPE, got 99"),
    (
        "no settings",
        bytes_field(1, piece_message("a", 0, NORMAL)),
        "expected BPE, got unigram",
    ),
    (
        "suffix",
        model_message(PIECES, {24: 1}),
        "treat_whitespace_as_suffix: expected false",
    ),
    (
        "characters",
        model_message(PIECES, normalizer={2: b"xyz"}),
        "charsmap: expected none, got 3",
    ),
    (
        "denormalizer",
        VALID + bytes_field(5, bytes_field(2, b"xy")),
        "expected none, got 2 bytes",
    ),
    ("no pieces", model_message([]), "pieces: expected one unknown piece, got 0"),
    ("same piece", with_row("th"), "'th' of piece 259 again"),
    ("empty piece", with_row(""), "1 to 4096 characters, got 0"),
    ("long piece", with_row("x" * 4097), "characters, got 4097"),
    ("nothing in a piece", with_piece(), "pieces: expected .*, got an empty one"),
    ("no text", with_piece(float_field(2, 1.0)), "1 to 4096 characters, got 0"),
    ("not UTF-8", with_row(b"\xff\xfe"), "UTF-8, got an invalid byte at offset 0"),
    ("NaN", with_row("x", score=float("nan")), "score: expected a finite number"),
    ("infinite", with_row("x", score=float("inf")), "a finite number, got inf"),
    ("unused", with_row("x", UNUSED), "type: expected 1, 2, 3, 4 or 6, .*, got 5"),
    ("type 0", with_row("x", 0), "type: expected 1, 2, 3, 4 or 6, .*, got 0"),
    ("type 7", with_row("x", 7), "type: expected 1, 2, 3, 4 or 6, .*, got 7"),
    ("two unknown", with_row("x", UNKNOWN), "one unknown piece, got 2"),
    ("no unknown", model_message(PIECES[1:]), "one unknown piece, got 0"),
    (
        "byte missing",
        model_message([*RESERVED[:-1], *ranked("▁")]),
        "'<0xFF>': expected a byte",
    ),
    ("byte of no byte", with_row("<0xZZ>", BYTE), "expected no byte piece, got one"),
    (
        "no bytes",
        model_message(PIECES[259:], {35: 0}),
        "byte_fallback: expected true, got false",
    ),
    (
        "text twice",
        with_piece(bytes_field(1, "a"), bytes_field(1, "b")),
        "piece: expected one value",
    ),
    (
        "text a number",
        with_piece(number_field(1, 5)),
        "piece: expected bytes, got an integer",
    ),
    ("score a number", with_piece(X, number_field(2, 5)), "4 bytes, got an integer"),
    (
        "settings twice",
        VALID + bytes_field(2, b""),
        "trainer_spec: expected one value, got two",
    ),
    (
        "piece a number",
        VALID + number_field(1, 5),
        "pieces: expected bytes, got an integer",
    ),
    (
        "unknown field",
        VALID + bytes_field(6, b""),
        "field: expected a number from 1 to 5, got 6",
    ),
    (
        "spaces dropped",
        model_message(PIECES, normalizer={4: 1}),
        "remove.*: expected false, got",
    ),
    (
        "spaces kept",
        model_message(PIECES, normalizer={5: 0}),
        "escape.*: expected true, got fal",
    ),
    ("group", VALID + varint(9 << 3 | 3), "wire type 0, 1, 2 or 5 at byte .*, got 3"),
    ("field 0", VALID + bytes_field(0, b""), "a field number from 1 to 536870911, got 0"),
    (
        "length beyond",
        VALID + varint(1 << 3 | 2) + varint(1 << 40),
        "got 1099511627776 bytes",
    ),
    (
        "length within",
        with_piece(varint(1 << 3 | 2) + varint(9) + b"x"),
        "field 1 .*, got 9 bytes",
    ),
    (
        "short float",
        with_piece(X + varint(2 << 3 | 5) + b"\0"),
        "field 2 .*, got 4 bytes",
    ),
    ("endless number", VALID + b"\xff" * 11, "at most 64 bits"),
    (
        "number of 65 bits",
        VALID + varint(9 << 3) + b"\xff" * 9 + b"\x02",
        "at most 64 bits",
    ),
    (
        "number of 11 bytes",
        VALID + varint(9 << 3) + b"\x80" * 10 + b"\x01",
        "at most 64 bits",
    ),
    (
        "zero of 11 bytes",
        VALID + varint(9 << 3) + b"\x80" * 10 + b"\x00",
        "at most 64 bits",
    ),
    ("number cut off", VALID + b"\x80", "got no end of it"),
]


@pytest.mark.parametrize(
    ("data", "words"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED]
)
def test_a_bad_model_is_refused_by_what_is_wrong(write_model, data, words):
    path = write_model(data)
    with pytest.raises(TokenizerError, match=words) as caught:
        read_sentencepiece_model(path)
    assert re.fullmatch(r".*tokenizer\.model: .+: expected .+, got .+", str(caught.value))


def test_a_model_cut_off_is_refused(write_model):
    """The settings stand last: without them the kind of the model is unknown."""
    settings_start = len(VALID) - len(model_message([]))
    path = write_model(VALID)
    for end in [*range(0, settings_start, 41), *range(settings_start, len(VALID))]:
        path.write_bytes(VALID[:end])
        with pytest.raises(TokenizerError):
            read_sentencepiece_model(path)


HOSTILE = {
    "empty texts": b"\n\x02\n\x00" * (1 << 18) + bytes_field(2, number_field(3, 2)),
    "same piece": bytes_field(1, piece_message("x", 0, NORMAL)) * 80_000,
    "no settings": b"".join(
        bytes_field(1, bytes_field(1, f"{n:x}")) for n in range(120_000)
    ),
    "empty pieces": b"\n\x00" * (1 << 19),
    "normalizers": b"\x1a\x00" * (1 << 19),
    "self-test": VALID + bytes_field(4, b"\x80" * (1 << 20)) + b"\xff",
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_model_of_1_mib_is_refused_within_a_second_and_64_mib(
    write_model, data
):
    check_refused(read_sentencepiece_model, write_model(data))


def test_neither_ranks_nor_another_message_are_taken_for_a_model(write_model):
    """A model begins with a piece, and this with its text."""
    text = bytes_field(1, "a")
    ranks = [b"\nIQ== 0\n", b"\n", b"IQ== 0\n", b"\n\x0a", b""]
    messages = [bytes_field(2, text), number_field(1, 5)]
    pieces = [bytes_field(2, "a"), number_field(1, 5), float_field(2, 1.0)]
    for data in [*ranks, *messages, *(bytes_field(1, other) for other in pieces)]:
        assert not is_sentencepiece_file(write_model(data))
    for data in (VALID, bytes_field(1, text)):
        assert is_sentencepiece_file(write_model(data))


# The format of messages


def read(data: bytes) -> list[tuple[int, int, object]]:
    return list(fields(Path("x"), "", data))


def test_every_wire_type_is_read_and_nothing_beyond_the_end():
    data = number_field(1, 300) + bytes_field(2, "ab") + float_field(3, 1.0)
    data += varint(4 << 3 | 1) + bytes(range(8))
    expected = [(1, 0, 300), (2, 2, b"ab"), (3, 5, b"\0\0\x80?"), (4, 1, bytes(range(8)))]
    assert read(data) == expected
    assert read(data[:3]) == [(1, 0, 300)]
    with pytest.raises(TokenizerError, match="got no end of it"):
        read(data[:2])


@pytest.mark.parametrize("value", [0, 127, 128, 127 << 7, 1 << 32, (1 << 64) - 1])
def test_numbers_of_up_to_64_bits_are_read(value):
    assert read(number_field(5, value)) == [(5, 0, value)]
