"""Read safetensors files and their index.

A file consists of an eight-byte header length, a JSON object, and a byte buffer. Each
item in the object has the form `"name": {"dtype": "BF16", "shape": [2, 3],
"data_offsets": [begin, end]}`, with offsets relative to the start of the buffer.
`"__metadata__"` maps strings to strings. All rules of the format are enforced.

The file is mapped, and each tensor is a view of the mapping. Writers usually align
tensors, but the format does not guarantee it. A misaligned tensor, as in old or
handcrafted files, is copied to aligned memory, because the kernels read whole elements.
`Checkpoint.copied` lists these tensors.

A file that an index names is opened only if it is in the model directory. It must have a
plain file name, and must not be a symbolic link to another directory, except within the
Hugging Face Hub cache.

Source: huggingface/safetensors, README.md (Format) and `safetensors/src/tensor.rs`
(`validate`); transformers 5.23, `modeling_utils.py` (`save_pretrained`); huggingface_hub,
`file_download.py` (the cache).
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import ml
from ..ml.errors import declared_lack_of_memory
from ..untrusted import (
    described,
    followed_inside,
    is_integer,
    label_of,
    parse_strict_json,
    read_json_object,
    shown,
    some_of,
)
from .errors import CheckpointError, FileMemoryError, mismatch
from .mapped_file import MappedFile
from .params import ANY, OBJECT, Rule, check_object, value_of

_LENGTH_BYTES = 8
# Maximum header size. The format allows 100 MB, but even the maximum number of tensors,
# with long names, needs only 13 MB.
_MOST_HEADER_BYTES = 16 << 20
_MOST_TENSORS = 1 << 16
# Maximum weighted number of JSON values. `parse_strict_json` counts 20 per matrix.
_MOST_VALUES = 24 * _MOST_TENSORS
_MOST_DIMENSIONS = 8
_LARGEST = 1 << 48
_METADATA = "__metadata__"
_ENTRY_KEYS = {"dtype", "shape", "data_offsets"}
_MOST_INDEX_BYTES = 16 << 20
_MOST_FILES = 1000
_INDEX_RULES: Mapping[str, Rule] = {
    "metadata": ANY,
    "weight_map": (
        "a map of names to files",
        lambda value: value != {} and OBJECT[1](value),
    ),
}

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits per element for each dtype in the format, including unsupported dtypes."""

DTYPES: Mapping[str, ml.DType] = {
    row.file_name: row for row in ml.DTYPES if row.file_name
}
"""The supported dtypes, keyed by their names in the format."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's header entry. `start` and `stop` are byte offsets in the file."""

    file: MappedFile
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def is_misaligned(self) -> bool:
        """Whether the tensor's file offset is not a multiple of its item size."""
        dtype = DTYPES.get(self.dtype)
        return dtype is not None and self.start % dtype.itemsize != 0

    def make(self, name: str = "") -> ml.Tensor:
        """Return the tensor as a view of the mapped file, or as a copy if misaligned.

        Raises:
            CheckpointError: The dtype is not supported.
        """
        dtype = DTYPES.get(self.dtype)
        buffer = self.file.buffer
        start = self.start
        if dtype is None:
            raise self.refusal(f"a dtype among {', '.join(DTYPES)}", self.dtype)
        if self.is_misaligned:
            content = np.frombuffer(buffer, np.uint8, self.stop - start, start).copy()
            return ml.Tensor.from_buffer(
                content, dtype, self.shape, name=name or self.name
            )
        return ml.Tensor.from_buffer(
            buffer, dtype, self.shape, offset=start, name=name or self.name
        )

    def refusal(self, expected: object, actual: object) -> CheckpointError:
        """Return an error about this tensor."""
        return mismatch(self.file.label, f"tensor {shown(self.name)}", expected, actual)


class SafetensorsFile:
    """A mapped safetensors file, with its metadata and its entries in byte order."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        try:
            self._read_header()
        except CheckpointError:
            self.file.close()
            raise

    def _read_header(self) -> None:
        content, self._data_start = self._header_bytes()
        try:
            header = parse_strict_json(content, _MOST_VALUES)
        except ValueError as error:
            raise CheckpointError(f"{self.file.label}: header: {error}") from None
        assert isinstance(header, dict), "its first byte is '{'"
        self.metadata = self._metadata(header.pop(_METADATA, {}))
        if len(header) > _MOST_TENSORS:
            self.file.refuse("tensors", f"at most {_MOST_TENSORS}", len(header))
        entries = [self._entry(name, item) for name, item in header.items()]
        entries.sort(key=lambda entry: (entry.start, entry.stop))
        position = origin = self._data_start
        for entry in entries:
            if entry.start != position:
                kind = "a gap" if entry.start > position else "an overlap"
                key = f"tensor {shown(entry.name)}: begin"
                got = f"{entry.start - origin} ({kind})"
                self.file.refuse(
                    key, f"{position - origin}, the end of the previous one", got
                )
            position = entry.stop
        if position != self.file.size:
            rule = f"tensors up to its end, {self.file.size - origin} bytes"
            self.file.refuse("buffer", rule, position - origin)
        self.entries = {entry.name: entry for entry in entries}

    def _metadata(self, value: object) -> dict[str, str]:
        """Validate the metadata, which must map strings to strings or be null."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.file.refuse(_METADATA, "a map of text to text", described(value))
        for item in value.values():
            if not isinstance(item, str):
                self.file.refuse(_METADATA, "a map of text to text", described(item))
        return value

    def _header_bytes(self) -> tuple[bytes, int]:
        """Return the header's JSON, and the file offset of the buffer."""
        file = self.file
        head = file.buffer[: _LENGTH_BYTES + 1]
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        first = head[_LENGTH_BYTES:][:length]
        most = min(_MOST_HEADER_BYTES, file.size - _LENGTH_BYTES)
        if first != b"{" or length > most:
            if len(head) < _LENGTH_BYTES or not file.kind().startswith(
                ("bytes", "a safetensors")
            ):
                file.refuse("kind", "a safetensors file", file.kind())
            if length > most:
                file.refuse("header length", f"at most {most} bytes", length)
            file.refuse("header", "'{' as first byte", repr(first))
        # Writers pad the header with spaces to align the buffer.
        stop = _LENGTH_BYTES + length
        return file.bytes_at(_LENGTH_BYTES, stop).rstrip(b" "), stop

    def _entry(self, name: str, item: object) -> TensorEntry:
        """Validate one entry, including that its dtype and shape match its byte range."""
        key = f"tensor {shown(name)}"
        if not isinstance(item, dict) or item.keys() != _ENTRY_KEYS:
            got = some_of(item) if isinstance(item, dict) else described(item)
            self.file.refuse(key, "dtype, shape and data_offsets", got)
        dtype = item["dtype"]
        bits = DTYPE_BITS.get(dtype) if isinstance(dtype, str) else None
        if bits is None:
            self.file.refuse(f"{key}: dtype", "a dtype of the format", described(dtype))
        shape = self._integers(f"{key}: shape", item["shape"])
        if len(shape) > _MOST_DIMENSIONS:
            self.file.refuse(
                f"{key}: shape", f"at most {_MOST_DIMENSIONS} sizes", len(shape)
            )
        offsets = self._integers(f"{key}: data_offsets", item["data_offsets"])
        room = self.file.size - self._data_start
        if len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
            rule = f"[begin, end], begin <= end <= {room} bytes"
            self.file.refuse(f"{key}: data_offsets", rule, offsets[:5])
        start, stop = (self._data_start + offset for offset in offsets)
        needed = math.prod(shape) * bits
        if needed != 8 * (stop - start):
            rule = f"{shape} x {bits} bits = {needed} bits"
            self.file.refuse(f"{key}: bytes", rule, f"{8 * (stop - start)} bits")
        return TensorEntry(self.file, name, dtype, tuple(shape), start, stop)

    def _integers(self, key: str, value: object) -> list[int]:
        if not isinstance(value, list):
            self.file.refuse(key, "a list", described(value))
        for item in value:
            if not is_integer(item, 0, _LARGEST):
                self.file.refuse(key, f"integers in 0..{_LARGEST}", described(item))
        return value


@declared_lack_of_memory("read_safetensors", FileMemoryError)
def read_safetensors(path: Path) -> dict[str, ml.Tensor]:
    """Read a safetensors file.

    Returns:
        The tensors by name, in byte order. They are read-only views of the mapped file,
        except that misaligned tensors are copied.

    Raises:
        CheckpointError: The file is not a safetensors file, violates the format, or
            contains a tensor with an unsupported dtype. The message names the location.
        FileMemoryError: Memory for a copy cannot be allocated.
    """
    source = SafetensorsFile(path)
    try:
        return {name: entry.make() for name, entry in source.entries.items()}
    except CheckpointError:
        source.file.close()
        raise


def read_index(path: Path) -> dict[Path, list[str]]:
    """Read `model.safetensors.index.json`.

    Returns:
        A mapping from each file, in the order of file names, to the names of its tensors.
    """
    label = label_of(path)
    directory = path.parent
    value = read_json_object(path, _MOST_INDEX_BYTES, CheckpointError)
    check_object(label, value, _INDEX_RULES, ["weight_map"])
    files: dict[str, list[str]] = {}
    for tensor, name in value_of(value, "weight_map", dict[str, object]()).items():
        if not isinstance(name, str) or not _is_plain(name):
            key = f"file of tensor {shown(tensor)}"
            rule = "a plain name that ends in .safetensors"
            raise mismatch(label, key, rule, described(name))
        files.setdefault(name, []).append(tensor)
    if len(files) > _MOST_FILES:
        raise mismatch(label, "files", f"at most {_MOST_FILES}", len(files))
    missing = [name for name in files if not os.path.exists(directory / name)]
    if missing:
        got = f"without {some_of(missing)}"
        raise mismatch(label, "files", f"{len(files)} files next to it", got)
    return {
        followed_inside(directory / name, CheckpointError, directory): files[name]
        for name in sorted(files)
    }


def _is_plain(name: str) -> bool:
    """Return whether a file name cannot refer to another directory on any system.

    Such a name contains no path separator, drive or NUL.
    """
    return (
        name.endswith(".safetensors")
        and name.isprintable()
        and not set(name) & set("/\\:")
    )
