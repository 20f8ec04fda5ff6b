"""A strict reader for the directory of an uncompressed zip archive.

A zip file can be interpreted in contradictory ways. It can be read forwards from local
headers or backwards from the central directory, it may have gaps and overlaps, and it
states each size in up to four positions. This reader accepts an archive only if all of
these agree and the records are contiguous, which is how `torch.save` writes them. A
compressed record is rejected.

Source: PKWARE APPNOTE 6.3.9, sections 4.3 to 4.5. PyTorch 2.13
(`caffe2/serialize/inline_container.cc`) writes the flags 0x0800 and 0x0008, a data
descriptor after each non-empty record, padding in an extra field `FB`, and zip64 end
records in every file.
"""

import struct
from typing import NamedTuple

from ..untrusted import shown
from .mapped_file import MappedFile

_MOST_RECORDS = 1 << 16
_UINT32_MAX = 0xFFFFFFFF
# A field of the end record has its value here if the actual value is in the zip64 record.
_LIMITS = (0xFFFF, _UINT32_MAX, _UINT32_MAX)

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")

_DESCRIPTORS = (struct.Struct("<4s3L"), struct.Struct("<4sL2Q"))

_FLAG_DESCRIPTOR = 0x0008
_FLAG_UTF8 = 0x0800
_EXTRA_ZIP64 = 0x0001
_EXTRA_OTHER_NAME = 0x7075


class Record(NamedTuple):
    """A stored record, whose content is at [start, start + size) in the file."""

    header_at: int
    name: str
    flags: int
    crc: int
    size: int
    start: int = 0  # only known after the local header is read


def read_directory(file: MappedFile) -> dict[str, Record]:
    """Return the records in a zip archive by name, in file order."""
    count, start, stop = _end_records(file)
    entries = []
    at = start
    for _ in range(count):
        entry, at = _entry(file, at, stop)
        entries.append(entry)
    if at != stop:
        file.refuse("central directory", f"to end at byte {stop}", at)
    records: dict[str, Record] = {}
    at = 0
    for entry in sorted(entries):
        if entry.header_at != at:
            kind = "an overlap" if entry.header_at < at else "a gap"
            key = f"record {shown(entry.name)}"
            got = f"{entry.header_at} ({kind})"
            file.refuse(key, f"a local header at byte {at}", got)
        if entry.name in records:
            file.refuse("record names", "each once", f"{shown(entry.name)} again")
        records[entry.name], at = _local_record(file, entry, start)
    if at != start:
        file.refuse("records", f"to fill the file up to byte {start}", f"up to {at}")
    return records


# The records at the end of the file: zip64 end record, zip64 locator and end record


def _end_records(file: MappedFile) -> tuple[int, int, int]:
    """Return the central directory's number of entries, start offset and stop offset."""
    end_at = file.size - _END.size
    if end_at < 0 or file.buffer[end_at : end_at + 4] != b"PK\x05\x06":
        rule = f"in the last {_END.size} bytes of the file"
        file.refuse(
            "end record", rule, "something else (a truncated file, or bytes after it)"
        )
    *_, count, size, start, _ = _END.unpack_from(file.buffer, end_at)
    small = (count, size, start)
    wide = b""
    stop = end_at - _LOCATOR.size - _END64.size
    if stop >= 0 and file.buffer[end_at - _LOCATOR.size :][:4] == b"PK\x06\x07":
        _, _, made, version, _, _, _, count, size, start = _END64.unpack_from(
            file.buffer, stop
        )
        fields = (44, made, version, 0, 0, count, count, size, start)
        wide = _END64.pack(b"PK\x06\x06", *fields) + _LOCATOR.pack(
            b"PK\x06\x07", 0, stop, 1
        )
    else:
        stop = end_at
    for value, large, limit in zip(small, (count, size, start), _LIMITS, strict=True):
        if value not in (large, limit):
            file.refuse("zip64 end record", f"{value} as in the end record", large)
    end = _END.pack(b"PK\x05\x06", 0, 0, small[0], *small, 0)
    if file.buffer[stop:] != wide + end:
        rule = (
            f"one disk, one count, no comment, and {count} records in {size} bytes at "
            f"{start}"
        )
        file.refuse("end records", rule, "other values")
    if start + size != stop:
        file.refuse("central directory", f"start + size = {stop}", f"{start} + {size}")
    if count > _MOST_RECORDS or count * _CENTRAL.size > size:
        rule = f"at most {_MOST_RECORDS} records in {size} bytes"
        file.refuse("central directory", rule, f"{count} records")
    return count, start, stop


# The central directory


def _entry(file: MappedFile, at: int, stop: int) -> tuple[Record, int]:
    """Parse the directory entry at an offset, and return it with its end offset."""
    if at + _CENTRAL.size > stop:
        file.refuse("central directory", f"an entry at byte {at}", "the directory's end")
    fields = _CENTRAL.unpack_from(file.buffer, at)
    signature, _, _, flags, method, _, _, crc, packed, size = fields[:10]
    name_length, extra_length, comment_length, disk, _, _, header_at = fields[10:]
    extra_at = at + _CENTRAL.size + name_length
    end = extra_at + extra_length + comment_length
    if signature != b"PK\x01\x02" or end > stop:
        file.refuse("central directory", f"a whole entry at byte {at}", "something else")
    raw = file.buffer[at + _CENTRAL.size : extra_at]
    name = raw.decode("utf-8", "replace")
    key = f"record {shown(name)}"
    parts = name.split("/")
    is_relative = len(parts) > 1 and not {"", ".", ".."}.intersection(parts)
    if name.encode() != raw or not is_relative or {"\\", "\0"}.intersection(name):
        rule = "in UTF-8, a relative path below one folder without backslash and NUL"
        file.refuse(f"{key}: name", rule, "another one")
    if method or disk or flags & ~(_FLAG_DESCRIPTOR | _FLAG_UTF8):
        rule = "no encryption or flags except 0x0808, disk 0, method 0"
        got = f"{flags:#06x}, {disk} and {method} (records must be stored uncompressed)"
        file.refuse(key, rule, got)
    # Each 0xffffffff stands for the next 64-bit value in the zip64 extra field.
    wide = iter(_zip64_values(file, key, extra_at, extra_at + extra_length))
    size, packed, header_at = (
        next(wide, -1) if value == _UINT32_MAX else value
        for value in (size, packed, header_at)
    )
    if size != packed or -1 in (size, header_at) or [*wide]:
        rule = "equal sizes, and exactly one zip64 value for each 0xffffffff"
        file.refuse(key, rule, f"{packed} stored of {size}")
    return Record(header_at, name, flags, crc, size), end


def _zip64_values(file: MappedFile, key: str, start: int, stop: int) -> list[int]:
    """Return the 64-bit values in the zip64 extra field, after checking all fields."""
    values: list[int] = []
    at = 0
    extra = file.buffer[start:stop]
    while at < len(extra):
        # If fewer than four bytes remain, padding makes the length exceed the data.
        identifier, length = struct.unpack("<2H", extra[at : at + 4].ljust(4, b"\xff"))
        body = extra[at + 4 : at + 4 + length]
        if len(body) != length or identifier == _EXTRA_OTHER_NAME:
            file.refuse(
                key, "complete extra fields that do not rename the entry", "others"
            )
        if identifier == _EXTRA_ZIP64:
            if values or length % 8 or not length:
                file.refuse(key, "one zip64 field of 64-bit values", "another form")
            values = [value for (value,) in struct.iter_unpack("<Q", body)]
        at += 4 + length
    return values


# The local headers


def _local_record(file: MappedFile, entry: Record, limit: int) -> tuple[Record, int]:
    """Check a record's local header against its directory entry.

    Return the record with its start offset, and the offset at which it ends.
    """
    at = entry.header_at
    key = f"record {shown(entry.name)}"
    # Reading stays inside the file, because at least a directory entry follows.
    fields = _LOCAL.unpack_from(file.buffer, at)
    signature, _, flags, method, _, _, crc, packed, size, name_length, extra_length = (
        fields
    )
    extra_at = at + _LOCAL.size + name_length
    start = extra_at + extra_length
    stop = start + entry.size
    if stop > limit:
        file.refuse(key, f"to end by byte {limit} (the directory)", stop)
    raw_name = file.buffer[at + _LOCAL.size : extra_at]
    expected = (b"PK\x03\x04", entry.name.encode(), entry.flags, 0)
    if (signature, raw_name, flags, method) != expected:
        file.refuse(key, "the same name, flags and method in both headers", "others")
    wide = _zip64_values(file, key, extra_at, start)
    # A zip64 field contains both sizes, the header offset, or all three. Contrary to the
    # standard, PyTorch writes 0 for one of the sizes.
    sizes, offset = (wide[:2], wide[2:]) if len(wide) > 1 else ([], wide)
    # If a data descriptor follows the record, the sizes in the header may be 0.
    follows = entry.flags & _FLAG_DESCRIPTOR
    allowed_sizes = {entry.size, 0} if follows else {entry.size}
    agree = (
        {size, packed} <= allowed_sizes | ({_UINT32_MAX} if sizes else set())
        and allowed_sizes.issuperset(sizes)
        and offset in ([], [entry.header_at])
        and (follows or crc == entry.crc)
    )
    if not agree:
        file.refuse(key, "equal sizes in both headers", "sizes that disagree")
    ends = [stop]
    if follows:  # the data descriptor has either 32-bit or 64-bit sizes
        expected_values = (b"PK\x07\x08", entry.crc, entry.size, entry.size)
        forms = (form for form in _DESCRIPTORS if stop + form.size <= limit)
        ends = [
            stop + form.size
            for form in forms
            if form.unpack_from(file.buffer, stop) == expected_values
        ]
    if not ends:
        file.refuse(key, "a data descriptor equal to the directory", "another")
    return entry._replace(start=start), ends[0]
