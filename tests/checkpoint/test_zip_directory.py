"""The strict reader of zip directories: rows Z1 to Z4, each with its valid twin."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from src.checkpoint.mapped_file import MappedFile
from src.checkpoint.zip_directory import Record, read_directory
from tests.checkpoint.refusals import refusal_of
from tests.checkpoint.zip_parts import Part, build
from tests.support.pth_writer import StoredZipWriter

CRC = zlib.crc32(b"hello")
DESCRIPTOR = struct.pack("<4s3L", b"PK\x07\x08", CRC, 5, 5)


def directory_of(tmp_path: Path, content: bytes) -> dict[str, Record]:
    path = tmp_path / "archive.pth"
    path.write_bytes(content)
    file = MappedFile(path)
    try:
        return read_directory(file)
    finally:
        file.close()


def refused(tmp_path: Path, content: bytes, words: str = "") -> str:
    return refusal_of(directory_of, tmp_path, content, match=words)


def parts(**lies: object) -> list[Part]:
    return [Part(b"a/one", b"hello", **lies), Part(b"a/two", b"world!")]


def both(**said: int) -> list[Part]:
    """Say the same in both headers of the first record."""
    return parts(local=said, central=said)


def described(after: bytes, content: bytes = b"hello", **local: object) -> list[Part]:
    """Let a descriptor follow the first record, whose local header then says nothing."""
    said = {"flags": 8, "crc": 0, "size": 0, "packed": 0}
    first = Part(b"a/one", content, said, {"flags": 8}, after=after, **local)
    return [first, Part(b"a/two", b"world!")]


def archive(end64: dict[str, object], **said: object) -> bytes:
    """Build an archive whose zip64 end record says this."""
    return build(parts(), zip64={"end": end64}, **said)


def located(**said: int) -> bytes:
    return build(parts(), zip64={"locator": said})


def zip64(*values: int) -> bytes:
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values)


def test_a_valid_archive_gives_each_record_with_its_place(tmp_path: Path) -> None:
    content = build(parts())
    records = directory_of(tmp_path, content)
    assert list(records) == ["a/one", "a/two"]
    one = records["a/one"]
    assert content[one.start : one.start + one.size] == b"hello"
    assert one.crc == CRC


def test_the_order_of_the_directory_need_not_be_that_of_the_file(tmp_path: Path) -> None:
    content = build(parts())
    start = content.index(b"PK\x01\x02")
    middle = content.index(b"PK\x01\x02", start + 1)
    stop = content.index(b"PK\x05\x06")
    swapped = (
        content[:start] + content[middle:stop] + content[start:middle] + content[stop:]
    )
    assert list(directory_of(tmp_path, swapped)) == ["a/one", "a/two"]


def test_an_archive_written_by_zipfile_is_accepted(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a/one", b"hello")
        archive.writestr("a/größe", b"world")
    assert list(directory_of(tmp_path, stream.getvalue())) == ["a/one", "a/größe"]


WIDE = {"size": 0xFFFFFFFF, "packed": 0xFFFFFFFF}
LATER = {"flags": 8, "crc": 0} | WIDE
VALID = {
    "descriptor of 32 bits": described(DESCRIPTOR),
    "descriptor of 64 bits": described(struct.pack("<4sL2Q", b"PK\x07\x08", CRC, 5, 5)),
    "descriptor of an empty record": described(b"PK\x07\x08" + bytes(12), b""),
    "zip64 sizes": parts(
        local=WIDE, central=WIDE, local_extra=zip64(5, 5), central_extra=zip64(5, 5)
    ),
    "zip64 sizes of a record with a descriptor, as PyTorch writes them": [
        Part(b"a/one", b"world!"),
        Part(
            b"a/two",
            b"hello",
            LATER,
            {"flags": 8},
            None,
            zip64(5, 0, 41),
            after=DESCRIPTOR,
        ),
    ],
    "local zip64 sizes beside the same sizes of 32 bits": parts(local_extra=zip64(5, 5)),
    "local zip64 offset alone, as PyTorch writes it beyond 4 GiB": [
        Part(b"a/one", b"world!"),
        Part(b"a/two", b"hello", local_extra=zip64(41)),
    ],
    "zip64 offset": parts(central={"header_at": 0xFFFFFFFF}, central_extra=zip64(0)),
    "padding": parts(local_extra=b"FB\x03\x00ZZZ"),
    "UTF-8 flag": both(flags=0x800),
}


@pytest.mark.parametrize("content", VALID.values(), ids=VALID)
def test_each_form_that_writers_use_is_accepted(
    tmp_path: Path, content: list[Part]
) -> None:
    assert list(directory_of(tmp_path, build(content))) == ["a/one", "a/two"]


MANY = {"count": 10**7, "here": 10**7}
# By the rows of the bad inputs; a list of parts is built.
BAD: dict[str, dict[str, bytes | list[Part]]] = {
    "Z1 compressed, encrypted": {
        "deflated": both(method=8),
        "deflated, local header denies it": parts(central={"method": 8}),
        "deflated, directory denies it": parts(local={"method": 8}),
        "stored size is smaller": both(size=9),
        "stored size is larger": both(packed=9),
    },
    "Z2 overlaps, gaps, past the end": {
        "record past the file": parts(central={"size": 9999, "packed": 9999}),
        "record over the directory": [
            Part(b"a/one", b"hello", {"size": 6, "packed": 6}, {"size": 6, "packed": 6})
        ],
        "record over the next": both(size=20, packed=20),
        "both at the same place": [
            Part(b"a/one", b"hello"),
            Part(b"a/one", central={"header_at": 0}),
        ],
        "header inside a record": parts(central={"header_at": 3}),
        "header in the directory": parts(central={"header_at": 90}),
        "a gap": [Part(b"a/one", b"hello"), Part(b"a/two", b"world!", gap=b"hidden")],
        "name of the local header past the file": parts(local={"name_length": 60000}),
    },
    "Z3 names, headers that disagree": {
        "same name twice": [Part(b"a/one", b"hello"), Part(b"a/one", b"world")],
        "two data.pkl": [Part(b"a/data.pkl", b"1"), Part(b"a/data.pkl", b"2")],
        "parent folder": [Part(b"a/../one")],
        "this folder": [Part(b"a/./one")],
        "absolute": [Part(b"/a/one")],
        "backslash": [Part(b"a\\one")],
        "NUL": [Part(b"a/one\0two")],
        "folder entry": [Part(b"a/")],
        "no folder": [Part(b"one")],
        "not UTF-8": [Part(b"a/\xff")],
        "other local name": parts(local_name=b"a/One"),
        "other local flags": parts(local={"flags": 0x800}),
        "other local sizes": parts(local={"size": 4, "packed": 4}),
        "other local CRC": parts(local={"crc": 1}),
        "local signature": parts(local={"signature": b"PK\x03\x05"}),
        "central signature": parts(central={"signature": b"PK\x01\x03"}),
        "Unicode path field": parts(
            central_extra=struct.pack("<2H", 0x7075, 5) + b"\x01abcd"
        ),
        "local Unicode path field": parts(
            local_extra=struct.pack("<2H", 0x7075, 5) + b"\x01abcd"
        ),
        "part of an extra field": parts(central_extra=b"FB\x09"),
        "no descriptor": both(flags=8),
        "descriptor of another size": described(DESCRIPTOR[:-1] + b"\x01"),
        "descriptor that no flag announces": parts(after=DESCRIPTOR),
    },
    "Z4 ends that lie": {
        "junk before": build(parts(), before=b"#!/bin/sh\n"),
        "junk after": build(parts(), after=b"\n"),
        "a comment": build(parts(), end={"comment_length": 3}, after=b"abc"),
        "another end record after": build(parts(), after=build([])),
        "another end record before": build(parts(), between=build([])),
        "count too low": build(parts(), end={"count": 1, "here": 1}),
        "counts that differ": build(parts(), end={"here": 1}),
        "an entry longer than the directory": build(parts(central={"comment_length": 9})),
        "half an entry in the directory": build(
            parts(), between=b"PK\x01\x02", end={"size": 106}
        ),
        "bytes between the records and the directory": build(
            [*parts()[:1], Part(b"a/two", b"world!", after=b"hidden")]
        ),
        "a directory of a record that is not there": build(
            [Part(b"a/one")], end={"start": 0}
        )[35:],
        "10^7 entries": archive(MANY),
        "10^7 entries, consistently": archive(
            MANY, end={"count": 0xFFFF, "here": 0xFFFF}
        ),
        "size too small": build(parts(), end={"size": 46}),
        "start before": build(parts(), end={"start": 0}),
        "another disk": build(parts(), end={"disk": 1}),
        "zip64 disagrees in start": archive({"start": 0}),
        "zip64 start wraps": archive(
            {"start": (1 << 64) - 100}, end={"start": 0xFFFFFFFF}
        ),
        "zip64 record of another length": archive({"length": 1 << 60}),
        "zip64 signature": archive({"signature": b"PK\x06\x05"}),
        "zip64 on another disk": archive({"disk": 1}),
        "zip64 record without its first byte": archive({})[-97:],
        "locator elsewhere": located(record_at=0),
        "locator on another disk": located(disk=7),
        "locator of several disks": located(disks=2),
        "0xffffffff without zip64": build(parts(central=WIDE)),
        "zip64 value left over": build(parts(central_extra=zip64(5, 5, 0))),
        "zip64 field of odd length": build(parts(central_extra=b"\x01\x00\x05\x00abcde")),
        "two zip64 fields": build(
            parts(central={"header_at": 0xFFFFFFFF}, central_extra=zip64(0) + zip64(0))
        ),
        "zip64 size 2^63": build(
            parts(central=WIDE, central_extra=zip64(1 << 63, 1 << 63))
        ),
        "local zip64 disagrees": build(parts(local=WIDE, local_extra=zip64(6, 6))),
        "local zip64 differs from true sizes of 32 bits": build(
            parts(local_extra=zip64(6, 6))
        ),
        "local zip64 wrong in the offset": build(parts(local_extra=zip64(5, 5, 1))),
        "local zip64 of too many values": build(parts(local_extra=zip64(5, 5, 0, 5))),
        "only an end record": build([])[:21],
        "one byte": b"P",
    },
}


@pytest.mark.parametrize(
    "content",
    [pytest.param(c, id=f"{row}: {name}") for row in BAD for name, c in BAD[row].items()],
)
def test_an_archive_that_says_two_things_or_too_much_is_refused(
    tmp_path: Path, content: bytes | list[Part]
) -> None:
    refused(tmp_path, content if isinstance(content, bytes) else build(content))


@pytest.mark.parametrize("flags", [0x0001, 0x0040, 0x2000])
def test_each_bit_of_encryption_is_refused_as_encryption(
    tmp_path: Path, flags: int
) -> None:
    words = rf"'a/one': expected no encryption .* {flags:#06x}"
    refused(tmp_path, build(both(flags=flags)), words)


def test_more_entries_than_the_directory_has_room_for_are_refused(tmp_path: Path) -> None:
    for count in (3, 0xFFFF):
        content = build(parts(), end={"count": count, "here": count})
        refused(tmp_path, content, rf"in 102 bytes, got {count} records")


@pytest.mark.slow
def test_65536_records_are_read_and_one_more_is_refused(tmp_path: Path) -> None:
    for more in (0, 1):
        stream = io.BytesIO()
        archive = StoredZipWriter(stream, "a")
        for number in range((1 << 16) + more):
            archive.record(str(number), 0, [])
        archive.finish()
        if more:
            refused(
                tmp_path, stream.getvalue(), r"at most 65536 records .* got 65537 rec"
            )
        else:
            assert len(directory_of(tmp_path, stream.getvalue())) == 1 << 16


def test_an_archive_without_records_has_only_an_end_record(tmp_path: Path) -> None:
    assert directory_of(tmp_path, build([])) == {}


def test_zip64_end_records_that_tell_the_truth_are_accepted(tmp_path: Path) -> None:
    true = {"end": {}, "locator": {}}
    assert len(directory_of(tmp_path, build(parts(), zip64=true))) == 2
    wide = {"count": 0xFFFF, "here": 0xFFFF, "size": 0xFFFFFFFF, "start": 0xFFFFFFFF}
    assert len(directory_of(tmp_path, build(parts(), zip64=true, end=wide))) == 2


def test_a_compressed_record_is_named_and_never_inflated(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(1 << 20))
    refused(tmp_path, stream.getvalue(), r"'a/data.pkl'.*must be stored uncompressed")
