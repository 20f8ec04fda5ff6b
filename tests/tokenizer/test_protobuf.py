import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer.protobuf import WireError, fields
from tests.support.sentencepiece_writer import bytes_field, float_field, number_field, varint


def read(data: bytes) -> list[tuple[int, int, object]]:
    return list(fields(data, 0, len(data)))


def test_every_wire_type_is_read() -> None:
    data = number_field(1, 300) + bytes_field(2, "ab") + float_field(3, 1.0)
    data += varint(4 << 3 | 1) + bytes(range(8))
    eight = int.from_bytes(bytes(range(8)), "little")
    assert read(data) == [(1, 0, 300), (2, 2, (5, 7)), (3, 5, 0x3F800000), (4, 1, eight)]


def test_nothing_is_read_beyond_the_end() -> None:
    data = number_field(1, 300) + number_field(2, 1)
    assert list(fields(data, 0, 3)) == [(1, 0, 300)]
    with pytest.raises(WireError, match="got no end of it"):
        list(fields(data, 0, 2))


@pytest.mark.parametrize("value", [0, 127, 128, 127 << 7, 1 << 32, (1 << 64) - 1])
def test_numbers_of_up_to_64_bits_are_read(value: int) -> None:
    assert read(number_field(5, value)) == [(5, 0, value)]


@pytest.mark.parametrize(
    "digits", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\x80" * 10 + b"\x00"]
)
def test_a_longer_number_is_refused(digits: bytes) -> None:
    with pytest.raises(WireError, match="at most 64 bits"):
        read(varint(1 << 3) + digits)


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_inside_or_refused(data: bytes) -> None:
    try:
        found = read(data)
    except WireError:
        return
    for _, _, value in found:
        if isinstance(value, tuple):
            assert 0 <= value[0] <= value[1] <= len(data)
