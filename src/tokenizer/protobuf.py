"""The wire format of protobuf messages, as far as a SentencePiece model needs it.

Source: https://protobuf.dev/programming-guides/encoding (the fields of a message are a number, a
wire type and a value; unknown fields are skipped by their wire type).
"""

from collections.abc import Iterator
from struct import unpack_from

VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
WIRE_NAMES = {VARINT: "a number", FIXED_64: "8 bytes", BYTES: "bytes", FIXED_32: "4 bytes"}

_LARGEST_FIELD = (1 << 29) - 1
_LONGEST_VARINT = 10
_UINT64 = 1 << 64

# A number, or where the bytes of a field start and end.
Value = int | tuple[int, int]


class WireError(ValueError):
    """Bytes that are no message; the text has the form `expected X, got Y`."""


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, Value]]:
    """Read the fields of a message one after the other.

    Args:
        data: holds the message.
        start: where it starts.
        end: where it ends, 0 <= start <= end <= len(data); nothing is read beyond.

    Yields:
        Field number, wire type, and the value: for bytes, where they start and end; for a number,
        that as unsigned; for 4 and 8 bytes, these as an unsigned little-endian number.

    Raises:
        WireError: for a field that does not end inside, or that is none.
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
    """Read a number of 7 bits per byte; give it and where it ends."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for count, byte in enumerate(data[at : min(end, at + _LONGEST_VARINT)]):
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value >= _UINT64:
                break
            return value, at + count + 1
    raise WireError(f"expected a number of at most 64 bits at byte {at}, got no end of it")
