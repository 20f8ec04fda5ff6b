"""The directory of a zip archive of stored records, read strictly.

A zip file can be read in several ways that disagree: forwards by local headers or backwards by the
central directory, with gaps, overlaps and sizes in up to four places. Here an archive is accepted
only where all of them agree and every byte of the file is accounted for, one record after another,
which is how `torch.save` writes them. Nothing is inflated: a compressed record is refused.

Source: PKWARE APPNOTE 6.3.9, sections 4.3 to 4.5; the layout written by PyTorch 2.13
(`caffe2/serialize/inline_container.cc`): version flags 0x0800 and 0x0008, a data descriptor after
each record that is not empty, padding in an extra field `FB`, and zip64 end records always.
"""

import struct
from dataclasses import dataclass
from typing import NoReturn

from ..untrusted import shown
from .errors import mismatch
from .mapped_file import MappedFile

_MOST_RECORDS = 1 << 16
_UINT16_MAX = 0xFFFF
_UINT32_MAX = 0xFFFFFFFF

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")

_DESCRIPTOR = struct.Struct("<4s3L")
_DESCRIPTOR64 = struct.Struct("<4sL2Q")

_FLAG_DESCRIPTOR = 0x0008
_FLAG_UTF8 = 0x0800
_ENCRYPTED = 0x2041  # Bits 0 (encrypted), 6 (strong encryption), 13 (masked headers).
_EXTRA_ZIP64 = 0x0001
_EXTRA_OTHER_NAME = 0x7075


@dataclass(frozen=True, slots=True)
class Record:
    """One stored record: its bytes are [start, start + size) of the file."""

    name: str
    start: int
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the central directory says of one record."""

    raw_name: bytes
    name: str
    flags: int
    crc: int
    size: int
    header_at: int


def read_directory(file: MappedFile) -> dict[str, Record]:
    """Read and check the directory of a stored zip archive; nothing else of it is touched.

    Returns:
        The records by name, in the order of the file.

    Raises:
        CheckpointError: Anything but stored, unencrypted, uniquely named records that follow each
            other without gap or overlap from byte 0 to the directory, in agreement everywhere.
    """
    return _DirectoryReader(file).read()


class _DirectoryReader:
    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._buffer = file.buffer

    def read(self) -> dict[str, Record]:
        count, start, stop = self._end_records()
        entries, at = [], start
        for _ in range(count):
            entry, at = self._entry(at, stop)
            entries.append(entry)
        if at != stop:
            self._refuse("central directory", f"to end at byte {stop}", f"{at}")
        records: dict[str, Record] = {}
        at = 0
        for entry in sorted(entries, key=lambda entry: entry.header_at):
            if entry.header_at != at:
                kind = "an overlap" if entry.header_at < at else "a gap"
                rule = f"a local header at byte {at}"
                self._refuse_record(entry.name, rule, f"{entry.header_at} ({kind})")
            if entry.name in records:
                self._refuse("record names", "each once", f"{shown(entry.name)} again")
            records[entry.name], at = self._local_record(entry, start)
        if at != start:
            self._refuse("records", f"to fill the file up to byte {start}", f"up to {at}")
        return records

    def _refuse(self, what: str, expected: str, got: str) -> NoReturn:
        raise mismatch(self._file.label, what, expected, got)

    def _refuse_record(self, name: str, expected: str, got: str) -> NoReturn:
        self._refuse(f"record {shown(name)}", expected, got)

    # The end of the file: end record, and the zip64 end record and its locator before it

    def _end_records(self) -> tuple[int, int, int]:
        """Return (number of entries, start, stop) of the central directory."""
        end_at = self._file.size - _END.size
        if end_at < 0 or self._buffer[end_at : end_at + 4] != b"PK\x05\x06":
            rule = f"in the last {_END.size} bytes of the file"
            self._refuse("end record", rule, "something else (a truncated file, or bytes after it)")
        fields = _END.unpack_from(self._buffer, end_at)
        _, disk, start_disk, here, count, size, start, comment = fields
        if disk or start_disk or here != count or comment:
            self._refuse("end record", "one disk, one count and no comment", "other values")
        stop = end_at
        locator_at = end_at - _LOCATOR.size
        if locator_at >= 0 and self._buffer[locator_at : locator_at + 4] == b"PK\x06\x07":
            stop, wide = self._zip64_end(locator_at)
            narrow = (count, size, start)
            limits = (_UINT16_MAX, _UINT32_MAX, _UINT32_MAX)
            for small, large, limit in zip(narrow, wide, limits, strict=True):
                if small != large and small != limit:
                    self._refuse("zip64 end record", f"{small} as in the end record", str(large))
            count, size, start = wide
        if start + size != stop:
            rule = f"start + size = {stop}"
            self._refuse("central directory", rule, f"{start} + {size} = {start + size}")
        if count > _MOST_RECORDS or count * _CENTRAL.size > size:
            rule = f"at most {_MOST_RECORDS} records in {size} bytes"
            self._refuse("central directory", rule, f"{count} records")
        return count, start, stop

    def _zip64_end(self, locator_at: int) -> tuple[int, tuple[int, int, int]]:
        """Return the zip64 end record's position and its (count, size, start)."""
        _, disk, record_at, disks = _LOCATOR.unpack_from(self._buffer, locator_at)
        if disk or disks > 1 or record_at != locator_at - _END64.size:
            rule = f"disk 0 and byte {locator_at - _END64.size}"
            self._refuse("zip64 locator", rule, f"disk {disk} and byte {record_at}")
        fields = _END64.unpack_from(self._buffer, record_at)
        signature, length, _, _, disk, start_disk, here, count, size, start = fields
        if signature != b"PK\x06\x06" or length != _END64.size - 12:
            self._refuse("zip64 end record", "its signature and length 44", "something else")
        if disk or start_disk or here != count:
            self._refuse("zip64 end record", "one disk and one count", "other values")
        return record_at, (count, size, start)

    # The central directory

    def _entry(self, at: int, stop: int) -> tuple[_Entry, int]:
        if at + _CENTRAL.size > stop:
            self._refuse("central directory", f"an entry at byte {at}", "the directory's end")
        fields = _CENTRAL.unpack_from(self._buffer, at)
        signature, _, _, flags, method, _, _, crc, packed, size = fields[:10]
        name_length, extra_length, comment_length, disk, _, _, header_at = fields[10:]
        name_at = at + _CENTRAL.size
        extra_at = name_at + name_length
        end = extra_at + extra_length + comment_length
        if signature != b"PK\x01\x02" or end > stop:
            self._refuse("central directory", f"a whole entry at byte {at}", "something else")
        raw_name = self._buffer[name_at:extra_at]
        name = self._name(raw_name)
        if method != 0 or flags & _ENCRYPTED:
            rule = "no encryption and method 0 (records must be stored uncompressed)"
            self._refuse_record(name, rule, f"flags {flags:#06x} and method {method}")
        if flags & ~(_FLAG_DESCRIPTOR | _FLAG_UTF8) or disk:
            rule = "flags within 0x0808 and disk 0"
            self._refuse_record(name, rule, f"{flags:#06x} and {disk}")
        extra = self._buffer[extra_at : extra_at + extra_length]
        wide = self._zip64_values(name, extra)
        claimed = [size, packed, header_at]
        for position, value in enumerate(claimed):
            if value == _UINT32_MAX:
                if not wide:
                    self._refuse_record(name, "a zip64 value for each 0xffffffff", "none")
                claimed[position] = wide.pop(0)
        size, packed, header_at = claimed
        if wide or size != packed:
            self._refuse_record(name, "equal sizes, given once", f"{packed} stored of {size}")
        return _Entry(raw_name, name, flags, crc, size, header_at), end

    def _name(self, raw: bytes) -> str:
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            name = raw.decode("latin-1")
            self._refuse_record(name, "a name in UTF-8", "other bytes")
        parts = name.split("/")
        if len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
            self._refuse_record(name, "a relative path below one folder", "another path")
        if "\\" in name or "\0" in name:
            self._refuse_record(name, "a name without backslash and NUL", "one with it")
        return name

    def _zip64_values(self, name: str, extra: bytes) -> list[int]:
        """Return the 64-bit values of the zip64 extra field; check the form of all extra fields."""
        values: list[int] | None = None
        at = 0
        while at < len(extra):
            if at + 4 > len(extra):
                self._refuse_record(name, "whole extra fields", "a part of one")
            identifier, length = struct.unpack_from("<2H", extra, at)
            body = extra[at + 4 : at + 4 + length]
            if len(body) != length or identifier == _EXTRA_OTHER_NAME:
                self._refuse_record(name, "whole extra fields, none of them another name", "others")
            if identifier == _EXTRA_ZIP64:
                if values is not None or length % 8 or not length:
                    self._refuse_record(name, "one zip64 field of 64-bit values", "another form")
                values = [value for (value,) in struct.iter_unpack("<Q", body)]
            at += 4 + length
        return values or []

    # The local headers

    def _local_record(self, entry: _Entry, limit: int) -> tuple[Record, int]:
        """Check a record's local header against its entry; return it and where it ends."""
        at = entry.header_at
        if at + _LOCAL.size > limit:
            self._refuse_record(entry.name, "a local header before the directory", f"byte {at}")
        fields = _LOCAL.unpack_from(self._buffer, at)
        signature, _, flags, method, _, _, crc, packed, size, name_length, extra_length = fields
        name_at = at + _LOCAL.size
        start = name_at + name_length + extra_length
        stop = start + entry.size
        if stop > limit:
            self._refuse_record(entry.name, f"to end by byte {limit} (the directory)", f"{stop}")
        raw_name = self._buffer[name_at : name_at + name_length]
        if signature != b"PK\x03\x04" or raw_name != entry.raw_name:
            self._refuse_record(entry.name, "the same name in both headers", "another")
        if flags != entry.flags or method != 0:
            self._refuse_record(entry.name, "the same flags and method in both headers", "others")
        extra = self._buffer[name_at + name_length : start]
        wide = self._zip64_values(entry.name, extra)
        # A zip64 field holds both sizes, the offset of the header, or all three; PyTorch writes 0
        # for one of the sizes, which the standard does not.
        sizes, offset = (wide[:2], wide[2:]) if len(wide) > 1 else ([], wide)
        follows = entry.flags & _FLAG_DESCRIPTOR  # sizes follow the record; here they may be 0
        given = {entry.size, 0} if follows else {entry.size}
        agree = (
            {size, packed} <= given | ({_UINT32_MAX} if sizes else set())
            and given.issuperset(sizes)
            and offset in ([], [entry.header_at])
            and (follows or crc == entry.crc)
        )
        if follows:
            stop = self._after_descriptor(entry, stop, limit)
        if not agree:
            self._refuse_record(entry.name, "equal sizes in both headers", "sizes that disagree")
        return Record(entry.name, start, entry.size, entry.crc), stop

    def _after_descriptor(self, entry: _Entry, stop: int, limit: int) -> int:
        """Return where the data descriptor of a record ends; its 32- or 64-bit form must fit."""
        expected = (b"PK\x07\x08", entry.crc, entry.size, entry.size)
        for form in (_DESCRIPTOR, _DESCRIPTOR64):
            end = stop + form.size
            if end <= limit and form.unpack_from(self._buffer, stop) == expected:
                break
        else:
            self._refuse_record(entry.name, "a data descriptor as in the directory", "another")
        return end
