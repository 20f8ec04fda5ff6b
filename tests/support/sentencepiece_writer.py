"""Write SentencePiece models without SentencePiece: whole ones, and such as no trainer
writes.
"""

import struct
from collections.abc import Iterable, Mapping

NORMAL = 1
UNKNOWN = 2
CONTROL = 3
USER_DEFINED = 4
UNUSED = 5
BYTE = 6
BPE = 2

# What a model begins with that falls back to bytes.
RESERVED = [
    ("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL),
    *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)),
]  # fmt: skip


def varint(value: int) -> bytes:
    """Write a number of 64 bits, seven in each byte."""
    value %= 1 << 64
    head = b""
    while value >= 0x80:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def float_field(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", value)


def piece_message(text: str | bytes, score: float, kind: int) -> bytes:
    fields = bytes_field(1, text) + float_field(2, score)
    return fields + (number_field(3, kind) if kind != NORMAL else b"")


def spec_message(fields: Mapping[int, int | str | bytes]) -> bytes:
    return b"".join(
        number_field(number, value)
        if isinstance(value, int)
        else bytes_field(number, value)
        for number, value in fields.items()
    )


def model_message(
    pieces: Iterable[tuple[str, float, int]],
    trainer: Mapping[int, int | str | bytes] | None = None,
    normalizer: Mapping[int, int | str | bytes] | None = None,
) -> bytes:
    """Write a model of pieces (text, score and type); by default of Llama 2's settings.

    Fields of the trainer's settings are replaced by number: 3 model type, 24 whitespace
    as suffix, 35 byte fallback, 46 and 47 names of the begin and end of text; of the
    normalizer's: 2 table of characters, 3 dummy prefix, 4 extra whitespaces removed, 5
    whitespaces escaped.
    """
    trainer = {3: BPE, 35: 1, **(trainer or {})}
    normalizer = {1: "identity", 2: b"", 3: 1, 4: 0, **(normalizer or {})}
    messages = [bytes_field(1, piece_message(*piece)) for piece in pieces]
    messages += [
        bytes_field(2, spec_message(trainer)),
        bytes_field(3, spec_message(normalizer)),
    ]
    return b"".join(messages)


def ranked(*texts: str) -> list[tuple[str, float, int]]:
    """Give pieces scores as a trainer does: the first merges first."""
    return [(text, -float(rank), NORMAL) for rank, text in enumerate(texts)]
