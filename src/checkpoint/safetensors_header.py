"""The header of a safetensors file: which tensor lies where, with every rule of the format held.

Eight bytes of header length, a JSON object, and the byte buffer. An entry of the object is
`"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}`; offsets count from the
start of the buffer. `"__metadata__"` is a map of text to text.

Source: huggingface/safetensors, README.md (Format) and `safetensors/src/tensor.rs` (`validate`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..outside import parse_strict_json
from .errors import NotACheckpointError, SafetensorsError, mismatch, shown
from .file_kinds import HEAD_BYTES, found_kind
from .mapped_file import MappedFile

__all__ = ["DTYPE_BITS", "Header", "TensorEntry", "read_header"]

_LENGTH_BYTES = 8
# The format allows 100 MB. As many tensors as are allowed here, with long names, need 13 MB.
_MOST_HEADER_BYTES = 16 << 20
_MOST_TENSORS = 1 << 16
_MOST_VALUES = 24 * _MOST_TENSORS  # as `parse_strict_json` counts them, a matrix has 20
_MOST_DIMENSIONS = 8
_LARGEST = 1 << 48
_METADATA = "__metadata__"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}

DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element of each dtype that the format knows, whether or not `ml` has it."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor as the header describes it; `start` and `stop` are bytes of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Header:
    """The tensors of a file in the order of their bytes, and its metadata."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]


def read_header(file: MappedFile) -> Header:
    """Read and check the header of a mapped file.

    Raises:
        NotACheckpointError: the file does not begin as a safetensors file does.
        SafetensorsError: a rule of the format is broken; the text says which, and at what tensor.
    """
    content, data_start = _header_bytes(file)
    # Counted before anything is built; an entry whose keys hide behind escapes is counted after.
    count = content.count(b'"data_offsets"')
    if count > _MOST_TENSORS:
        raise _refused(file, "tensors", f"at most {_MOST_TENSORS}", count)
    try:
        value = parse_strict_json(content, _MOST_VALUES)
    except ValueError as error:
        raise SafetensorsError(f"{file.label}: header: {error}") from None
    assert isinstance(value, dict), "its first byte is '{'"
    metadata = _metadata(file, value.pop(_METADATA, {}))
    if len(value) > _MOST_TENSORS:
        raise _refused(file, "tensors", f"at most {_MOST_TENSORS}", len(value))
    entries = [_entry(file, name, item, data_start) for name, item in value.items()]
    entries.sort(key=lambda entry: (entry.start, entry.stop))
    _check_coverage(file, entries, data_start)
    return Header({entry.name: entry for entry in entries}, metadata)


def _refused(file: MappedFile, what: str, expected: object, got: object) -> SafetensorsError:
    return SafetensorsError(mismatch(file.label, what, expected, got))


def _header_bytes(file: MappedFile) -> tuple[bytes, int]:
    """Give the JSON text of the header and the byte where the buffer begins."""
    head = file.buffer[:HEAD_BYTES]
    if len(head) < _LENGTH_BYTES:
        found = "an empty file" if not head else f"{len(head)} bytes"
        raise NotACheckpointError(f"{file.label}: not a safetensors file (found {found})")
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    stop = _LENGTH_BYTES + length
    if length > _MOST_HEADER_BYTES or stop > file.size or head[_LENGTH_BYTES:stop][:1] != b"{":
        kind = found_kind(head)
        if not kind.startswith(("bytes", "a safetensors")):
            raise NotACheckpointError(f"{file.label}: not a safetensors file (found {kind})")
        if length > _MOST_HEADER_BYTES:
            raise _refused(file, "header length", f"at most {_MOST_HEADER_BYTES} bytes", length)
        if stop > file.size:
            rule = f"at most the {file.size - _LENGTH_BYTES} bytes after it"
            raise _refused(file, "header length", rule, length)
        got = f"byte {head[_LENGTH_BYTES]:#04x}" if length else "an empty header"
        raise _refused(file, "header", "'{' as first byte", got)
    # The end of a header is padded with spaces, so that the buffer is aligned.
    return file.bytes_at(_LENGTH_BYTES, stop).rstrip(b" "), stop


def _metadata(file: MappedFile, value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _refused(file, _METADATA, "a map of text to text", type(value).__name__)
    for key, item in value.items():
        if not isinstance(item, str):
            what = f"{_METADATA} {shown(key)}"
            raise _refused(file, what, "text", f"a value of type {type(item).__name__}")
    return value


def _entry(file: MappedFile, name: str, item: object, data_start: int) -> TensorEntry:
    """Check one entry by itself: its keys, its dtype, its sizes, and that they fit its bytes."""
    what = f"tensor {shown(name)}"
    if not isinstance(item, dict) or item.keys() != _ENTRY_KEYS:
        keys = ", ".join(shown(key) for key in list(item)[:5]) if isinstance(item, dict) else ""
        got = keys or f"a value of type {type(item).__name__}"
        raise _refused(file, what, "dtype, shape and data_offsets", got)
    dtype, bits = item["dtype"], None
    if isinstance(dtype, str):
        bits = DTYPE_BITS.get(dtype)
    if bits is None:
        got = shown(dtype) if isinstance(dtype, str) else f"a value of type {type(dtype).__name__}"
        raise _refused(file, f"{what}: dtype", "one that the format knows", got)
    shape = _integers(file, f"{what}: shape", item["shape"])
    if len(shape) > _MOST_DIMENSIONS:
        raise _refused(file, f"{what}: shape", f"at most {_MOST_DIMENSIONS} sizes", len(shape))
    offsets = _integers(file, f"{what}: data_offsets", item["data_offsets"])
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _refused(
            file, f"{what}: data_offsets", "[begin, end], begin <= end", list(offsets)[:5]
        )
    begin, end = offsets
    if data_start + end > file.size:
        rule = f"inside the {file.size - data_start} bytes of the buffer"
        raise _refused(file, f"{what}: data_offsets", rule, [begin, end])
    needed = math.prod(shape) * bits
    if needed != 8 * (end - begin):
        rule = f"{list(shape)} x {bits} bits = {needed} bits"
        raise _refused(file, f"{what}: bytes", rule, f"{8 * (end - begin)} bits")
    return TensorEntry(name, dtype, shape, data_start + begin, data_start + end)


def _integers(file: MappedFile, what: str, value: object) -> tuple[int, ...]:
    """Check a list of sizes or offsets; `true` and `1.0` are no integers here."""
    if not isinstance(value, list):
        raise _refused(file, what, "a list", f"a value of type {type(value).__name__}")
    for item in value:
        if type(item) is not int:
            raise _refused(file, what, "integers", f"a value of type {type(item).__name__}")
        if not 0 <= item <= _LARGEST:
            raise _refused(file, what, f"0..{_LARGEST}", item)
    return tuple(value)


def _check_coverage(file: MappedFile, entries: list[TensorEntry], data_start: int) -> None:
    """Check that the tensors follow each other without gap or overlap up to the end of the file."""
    position = data_start
    for entry in entries:
        if entry.start != position:
            kind = "a hole before it" if entry.start > position else "an overlap"
            got = f"{entry.start - data_start}, {kind}"
            what = f"tensor {shown(entry.name)}: begin"
            raise _refused(file, what, f"{position - data_start}, the end of the one before", got)
        position = entry.stop
    if position != file.size:
        rule = f"tensors up to its end, {file.size - data_start} bytes"
        raise _refused(file, "buffer", rule, f"{position - data_start}")
