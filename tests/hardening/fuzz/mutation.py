"""Change valid inputs a little: bits, bytes and lengths,
and the words of their formats.
"""

import random
import struct
from collections.abc import Sequence
from typing import TypeVar

MOST_BYTES = 1 << 14
NUMBERS = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
LARGE = (1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
Value = TypeVar("Value")
COUNTS = (1, 1, 1, 2, 3, 8)
JSON_WORDS = (
    b"null",
    b"true",
    b"false",
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"1.0",
    b"{}",
    b"[]",
    b'""',
    b"\\ud800",
    b'"\\u0000"',
    b"9" * 40,
    b"9" * 5000,
    b"x" * 300,
    b"16777216",
    b"[[[[",
    b"}",
    b",",
    b":",
    b'"a"',
    b"\xff",
    b"1e-400",
)
PICKLE_WORDS = (
    b"\x80\x02",
    b"(",
    b"t",
    b"}",
    b"]",
    b")",
    b"R",
    b"b",
    b"Q",
    b"u",
    b"s",
    b"a",
    b"e",
    b"q\x00",
    b"h\x00",
    b"j\xff\xff\xff\xff",
    b"X\xff\xff\xff\xff",
    b"\x8a\x08" + b"\xff" * 8,
    b"N",
    b"\x88",
    b"\x85",
    b"\x86",
    b"\x87",
    b"ccollections\nOrderedDict\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"cos\nsystem\n",
    b"ios\nsystem\n",
    b"\x93",
    b"\x81",
)
ZIP_WORDS = (
    b"PK\x01\x02",
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"PK\x06\x06",
    b"PK\x06\x07",
    b"PK\x07\x08",
)
WIRE_WORDS = (
    b"\x0a\x00",
    b"\x0a\x80\x80\x80\x80\x10",
    b"\x12\x02\x18\x02",
    b"\xff" * 10,
    b"\x0b",
)
TEMPLATE_WORDS = (
    b"{{",
    b"}}",
    b"{%",
    b"%}",
    b"\\n",
    b"\n",
    b"'",
    b'"',
    b"message.role",
    b"message['content']",
    b"<|im_start|>",
    b"<<SYS>>",
    b"bos_token",
    b" " * 200,
    b"\t",
    b"+",
    b"|",
    b"\xff",
    b"\\",
    b"message.content" * 20,
    b"+ " * 100,
)
WORDS = {
    "pkl": PICKLE_WORDS,
    "zip": ZIP_WORDS,
    "pth": (*ZIP_WORDS, *PICKLE_WORDS),
    "model": WIRE_WORDS,
    "ranks": (b"\n", b" ", b"=", b"-1", b"QQ== ", b"\r", b"\xef\xbb\xbf", b"9" * 5000),
    "jinja": TEMPLATE_WORDS,
    "escape": (
        b"\x1b[",
        b"\x9b",
        b"\xe2\x80\xae",
        b"\xc2\x9b",
        b"\x07",
        b"\xed\xa0\x80",
        b"\xff",
    ),
}


class Mutator:
    """Make inputs out of `seeds`; the same seed makes the same inputs.

    The end of the target's name says which words they are made of.
    """

    def __init__(self, name: str, seeds: Sequence[bytes], seed: int) -> None:
        self._seeds = list(seeds)
        kind = name.rpartition(".")[2]
        self._words = WORDS.get(kind, JSON_WORDS)
        self._has_records = kind == "pth"
        self._has_header = kind == "safetensors"
        # Ten times as fast as `randrange` and `choice`, which would take longer than some
        # parsers.
        self._uniform = random.Random(f"{name} {seed}").random

    def next(self) -> bytes:
        return self.changed(self._one_of(self._seeds))

    def changed(self, content: bytes, longest: int = MOST_BYTES) -> bytes:
        """Return an input of at most so many bytes with a few changes."""
        if self._has_header and self._uniform() < 0.7:
            return self._with_changed_header(content)[:longest]
        data = self._changed(content)
        del data[longest:]
        if self._has_records and self._uniform() < 0.8:
            return without_crc(bytes(data))
        return bytes(data)

    def _one_of(self, values: Sequence[Value]) -> Value:
        return values[int(self._uniform() * len(values))]

    def _changed(self, content: bytes) -> bytearray:
        data = bytearray(content)
        for _ in range(self._one_of(COUNTS)):
            self._change(data)
        return data

    def _with_changed_header(self, content: bytes) -> bytes:
        """Change the header of a safetensors file alone, and let its length be right
        again.
        """
        stop = 8 + int.from_bytes(content[:8], "little")
        header = self._changed(content[8:stop])
        return struct.pack("<Q", len(header)) + header + content[stop:]

    def _change(self, data: bytearray) -> None:
        uniform = self._uniform
        at = int(uniform() * (len(data) + 1))
        end = min(len(data), at + self._one_of((1, 2, 4, 8, 30)))
        kind = int(uniform() * 8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(uniform() * 8)
        elif kind == 1 and at < len(data):
            data[at] = int(uniform() * 256)
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end] * self._one_of((1, 2, 50))
        elif kind == 4:
            other = self._one_of(self._seeds)
            start = int(uniform() * (len(other) + 1))
            data[at:end] = other[start : start + 1 + int(uniform() * 39)]
        elif kind == 5:
            data[at:end] = self._one_of(self._words)
        elif kind == 6:
            number = self._one_of((*NUMBERS, *LARGE, len(data), len(data) - at))
            form = "<Q" if number > 0xFFFFFFFF else self._one_of(("<H", "<I", "<Q"))
            packed = struct.pack(form, number & 0xFFFF if form == "<H" else number)
            data[at : at + len(packed)] = packed
        else:
            data[at:at] = self._one_of(self._words)


def without_crc(archive: bytes) -> bytes:
    """Set the check sums of an archive to 0, which stands for "not computed".

    Else nearly every change to a record ends at its check sum and tests nothing behind
    it.
    """
    data = bytearray(archive)
    for signature, at in ((b"PK\x03\x04", 14), (b"PK\x07\x08", 4), (b"PK\x01\x02", 16)):
        start = data.find(signature)
        while start >= 0:
            data[start + at : start + at + 4] = bytes(4)
            start = data.find(signature, start + 4)
    return bytes(data)
