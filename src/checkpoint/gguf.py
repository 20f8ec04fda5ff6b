"""GGUF files, read: keys with typed values, the entries of the tensors, and files in several parts.

Every count, length and offset is checked against the size of the file before it is used. Arrays are
kept as the bytes of the file until someone asks for their values: a vocabulary has 400 000 strings.
Tensors are used in place in the mapped file. A shape is stored with its contiguous size first, so
that `[out, in]` is `in, out` in the file.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `ggml/src/gguf.cpp` and `ggml/include/ggml.h` (the
types of tensors), `tools/gguf-split` (the parts).
"""

import contextlib
import math
import re
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NoReturn, TypeAlias

import numpy as np

from .. import ml
from ..untrusted import described, followed_inside, shown, some_of
from .errors import CheckpointError, mismatch
from .mapped_file import MappedFile

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_KEYS = 1 << 14
_MOST_TENSORS = 1 << 16
_MOST_KEY_BYTES = (1 << 16) - 1
_MOST_NAME_BYTES = 64
_MOST_TEXT_BYTES = 16 << 20
_MOST_ARRAY_BYTES = 64 << 20  # the merges of the largest vocabularies take about 10 MB
_MOST_DIMENSIONS = 4
_MOST_SHOWN = 3  # values of an array
_DEFAULT_ALIGNMENT, _LARGEST_ALIGNMENT = 32, 1 << 16
_ALIGNMENT = "general.alignment"

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
_UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_VALUE_NAMES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array",
    "uint64", "int64", "float64",
)  # fmt: skip

_PLAIN = {0: ml.float32, 1: ml.float16, 30: ml.bfloat16}
DTYPES: Mapping[int, ml.DType | ml.BlockDType] = {**_PLAIN, **ml.GGML_DTYPES}
"""The types of tensors that are read, by their numbers in the format."""

_OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
_PART_NAME = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)


def nbytes_of(dtype: ml.DType | ml.BlockDType, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor."""
    size = math.prod(shape)
    return size * dtype.itemsize if isinstance(dtype, ml.DType) else dtype.bytes_of(size)


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of numbers, truth values or strings, still as the bytes of the file."""

    where: str  # file and key, for errors
    kind: int  # the type of its values, a key of `_SCALARS` or that of strings
    count: int  # of its values
    content: bytes = field(repr=False)  # their bytes; before each string its length, all inside
    ends: Sequence[int] = field(repr=False, default=())  # of strings: where each ends in `content`

    def values(self, most: int | None = None) -> list[object]:
        """Decode the first `most` values, or all: int, float, bool or str.

        Raises:
            CheckpointError: A string that is not UTF-8.
        """
        count = self.count if most is None else min(self.count, most)
        if self.kind != _STRING:
            return [*np.frombuffer(self.content, _SCALARS[self.kind], count).tolist()]
        # All are decoded at once: each length becomes one NUL, at which the text is split.
        ends = np.asarray(self.ends[:count], np.int64)
        lengths = np.concatenate(([0], ends[:-1]))[:count]  # where they are
        data = np.frombuffer(self.content, np.uint8, ends[-1] if count else 0).copy()
        data[lengths], kept = 0, np.ones(len(data), np.bool_)
        for place in range(1, _U64.size):
            kept[lengths + place] = False
        with contextlib.suppress(UnicodeDecodeError):
            texts = data[kept].tobytes().decode().split("\0")[1:]
            if len(texts) == count:
                return [*texts]
        found: list[object] = []
        try:  # one holds a NUL, or is not UTF-8
            for start, end in zip((lengths + _U64.size).tolist(), ends.tolist(), strict=True):
                found.append(self.content[start:end].decode())
        except UnicodeDecodeError as error:
            what, got = f"[{len(found)}]", f"other bytes at byte {error.start}"
            raise mismatch(self.where + what, "text", "UTF-8", got) from None
        return found

    def __str__(self) -> str:
        """Show type, count and the first values."""
        head = ", ".join(map(described, self.values(_MOST_SHOWN)))
        more = ", ..." if self.count > _MOST_SHOWN else ""
        return f"{self.count} of {_VALUE_NAMES[self.kind]}: {head}{more}"


GgufValue: TypeAlias = int | float | bool | str | GgufArray


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor as the header describes it; `start` and `stop` are bytes of the file."""

    name: str
    dtype: ml.DType | ml.BlockDType
    shape: tuple[int, ...]
    start: int
    stop: int

    def make(self, file: MappedFile, name: str) -> ml.Weight:
        """Make the tensor: a read-only view of its mapped file, called `name`."""
        buffer, start, dtype = file.buffer, self.start, self.dtype
        if isinstance(dtype, ml.DType):
            return ml.Tensor.from_buffer(buffer, dtype, self.shape, offset=start, name=name)
        blocks = ml.Tensor.from_buffer(buffer, ml.uint8, (self.stop - start,), offset=start)
        return ml.QuantizedTensor(dtype, self.shape, blocks, name=name)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """What the header of one file says; the file is not open."""

    path: Path
    label: str  # the file, as errors show it
    size: int  # in bytes
    version: int  # 2 or 3
    keys: Mapping[str, GgufValue]  # in the order of the file
    tensors: Mapping[str, GgufTensor]  # in its order; inside the file and not overlapping

    def decoded(self, prefix: str) -> dict[str, object]:
        """Return the keys that begin with a prefix, arrays as lists.

        Raises:
            CheckpointError: A string in an array is not UTF-8.
        """
        return {
            key: value.values() if isinstance(value, GgufArray) else value
            for key, value in self.keys.items()
            if key.startswith(prefix)
        }

    def map(self) -> MappedFile:
        """Map the file again, to use its tensors.

        Raises:
            CheckpointError: It cannot be mapped, or has another size now.
        """
        file = MappedFile(self.path)
        if file.size != self.size:
            size = file.size
            file.close()
            raise mismatch(self.label, "size in bytes", f"{self.size} as when it was read", size)
        return file


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file.

    Raises:
        CheckpointError: The file is not one of a known version, or breaks a rule of the format; the
            text says which, and at what key or tensor.
    """
    with contextlib.closing(MappedFile(path)) as file:
        return GgufFile(path, file.label, file.size, *_Reader(file).read_header())


class _Reader:
    """The header of a mapped file, read from its first byte to the last entry."""

    def __init__(self, file: MappedFile) -> None:
        self._file, self._buffer, self._size, self._at = file, file.buffer, file.size, 0

    def read_header(self) -> tuple[int, dict[str, GgufValue], dict[str, GgufTensor]]:
        """Return the version, the keys and the entries."""
        version = self._version()
        tensor_count = self._number("number of tensors", _U64)
        key_count = self._number("number of keys", _U64)
        # The shortest key and the shortest entry that there can be.
        self._check_count("number of tensors", tensor_count, _MOST_TENSORS, 8 + 1 + 4 + 8 + 4 + 8)
        self._check_count("number of keys", key_count, _MOST_KEYS, 8 + 1 + 4 + 1)
        keys: dict[str, GgufValue] = {}
        for number in range(key_count):
            name = self._text(f"key {number}: name", _MOST_KEY_BYTES)
            what = f"key {shown(name)}"
            if name in keys or not name:
                self._refuse(what, "a new name", "it again" if name else "none")
            keys[name] = self._value(what, self._number(f"{what}: type", _U32), name == _ALIGNMENT)
        raw = [self._entry(number) for number in range(tensor_count)]
        return version, keys, self._placed(raw, self._alignment(keys))

    def _refuse(self, what: str, expected: object, got: object) -> NoReturn:
        raise mismatch(self._file.label, what, expected, got)

    def _version(self) -> int:
        if self._buffer[: len(MAGIC)] != MAGIC:
            self._refuse("kind", "a GGUF file", self._file.kind())
        self._at = len(MAGIC)
        version = self._number("version", _U32)
        if version not in _VERSIONS:
            is_swapped = int.from_bytes(_U32.pack(version), "big") in (1, *_VERSIONS)
            got = "a big-endian file" if is_swapped else version
            self._refuse("version", " or ".join(map(str, _VERSIONS)), got)
        return version

    def _check_count(self, what: str, count: int, most: int, least_bytes: int) -> None:
        """Check a number of parts against what is allowed, and what the rest of the file holds."""
        if count > most:
            self._refuse(what, f"at most {most}", count)
        if count * least_bytes > self._size - self._at:
            rule = f"at most {(self._size - self._at) // least_bytes}, which the file has room for"
            self._refuse(what, rule, count)

    def _take(self, what: str, count: int) -> bytes:
        """Return the next bytes, which must be there, and pass over them."""
        start = self._at
        if count > self._size - start:
            self._refuse(what, f"{count} bytes at byte {start}", f"{self._size - start} to the end")
        self._at = start + count
        return self._buffer[start : self._at]

    def _number(self, what: str, kind: struct.Struct) -> int:
        number: int = kind.unpack(self._take(what, kind.size))[0]
        return number

    def _text(self, what: str, most: int) -> str:
        length = self._number(what, _U64)
        if length > most:
            self._refuse(f"{what}: bytes", f"at most {most}", length)
        try:
            return self._take(what, length).decode()
        except UnicodeDecodeError as error:
            self._refuse(what, "UTF-8", f"other bytes at byte {error.start}")

    def _value(self, what: str, kind: int, is_alignment: bool) -> GgufValue:
        if is_alignment and kind != _UINT32:
            got = _VALUE_NAMES[kind] if kind < len(_VALUE_NAMES) else kind
            self._refuse(f"{what}: type", "uint32", got)
        if kind == _STRING:
            return self._text(what, _MOST_TEXT_BYTES)
        if kind == _ARRAY:
            return self._array(what)
        if kind not in _SCALARS:
            self._refuse(f"{what}: type", f"0 to {len(_VALUE_NAMES) - 1}", kind)
        value: int | float | bool = self._numbers(what, kind, 1).tolist()[0]
        return value

    def _numbers(self, what: str, kind: int, count: int) -> "np.ndarray[tuple[int], np.dtype]":
        dtype = np.dtype(_SCALARS[kind])
        found = np.frombuffer(self._take(what, count * dtype.itemsize), dtype)
        if kind == _BOOL and found.view(np.uint8).max(initial=0) > 1:
            self._refuse(what, "0 or 1 for a truth value", int(found.view(np.uint8).max()))
        return found

    def _array(self, what: str) -> GgufArray:
        kind, count = self._number(f"{what}: type", _U32), self._number(f"{what}: length", _U64)
        if kind != _STRING and kind not in _SCALARS:
            got = "an array" if kind == _ARRAY else kind
            self._refuse(f"{what}: type of values", "numbers, truth values or strings", got)
        width = _U64.size if kind == _STRING else np.dtype(_SCALARS[kind]).itemsize
        self._check_count(f"{what}: length", count, _MOST_ARRAY_BYTES // width, width)
        start = self._at
        ends: Sequence[int] = ()
        if kind == _STRING:
            ends = self._skip_strings(what, count)
        else:
            self._numbers(what, kind, count)
        where = f"{self._file.label}: {what}"
        return GgufArray(where, kind, count, self._buffer[start : self._at], ends)

    def _skip_strings(self, what: str, count: int) -> Sequence[int]:
        """Pass over strings; return where each ends, counted from here."""
        buffer, at, unpack = self._buffer, self._at, _U64.unpack_from
        last, start = self._size - _U64.size, at
        ends: list[int] = []
        for _ in range(count):
            if at > last:
                break
            at += _U64.size + unpack(buffer, at)[0]
            ends.append(at)
        if len(ends) < count or at > self._size:
            self._refuse(f"{what}: strings", f"{count} before byte {self._size}", "longer ones")
        if at - start > _MOST_ARRAY_BYTES:
            self._refuse(f"{what}: bytes", f"at most {_MOST_ARRAY_BYTES}", at - start)
        self._at = at
        return array("q", [end - start for end in ends])

    def _alignment(self, keys: Mapping[str, GgufValue]) -> int:
        value = keys.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
        assert isinstance(value, int), "its type is checked"
        if not 8 <= value <= _LARGEST_ALIGNMENT or value & (value - 1):
            rule = f"a power of two in 8..{_LARGEST_ALIGNMENT}"
            self._refuse(f"key {shown(_ALIGNMENT)}", rule, value)
        return value

    def _entry(self, number: int) -> tuple[str, tuple[int, ...], int, int]:
        """Read name, shape, type and offset of a tensor."""
        name = self._text(f"tensor {number}: name", _MOST_NAME_BYTES)
        what = f"tensor {shown(name)}"
        count = self._number(f"{what}: number of dimensions", _U32)
        if not 1 <= count <= _MOST_DIMENSIONS:
            self._refuse(f"{what}: number of dimensions", f"1 to {_MOST_DIMENSIONS}", count)
        sizes = [self._number(f"{what}: shape", _U64) for _ in range(count)]
        if 0 in sizes:
            self._refuse(f"{what}: shape", "no size of 0", sizes[::-1])
        kind = self._number(f"{what}: type", _U32)
        return name, tuple(reversed(sizes)), kind, self._number(f"{what}: offset", _U64)

    def _placed(
        self, raw: list[tuple[str, tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, GgufTensor]:
        """Check types, sizes and places of all tensors; return them by name."""
        data_start = -(-self._at // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in raw:
            what = f"tensor {shown(name)}"
            if name in found:
                self._refuse(what, "a new name", "it again")
            dtype, nbytes = self._type(what, kind, shape)
            if offset % alignment:
                self._refuse(f"{what}: offset", f"a multiple of {alignment}", offset)
            start, stop = data_start + offset, data_start + offset + nbytes
            if stop > self._size:
                room = max(self._size - data_start, 0)
                got = f"{nbytes} at {offset}"
                self._refuse(f"{what}: bytes", f"inside the {room} bytes of the data", got)
            found[name] = GgufTensor(name, dtype, shape, start, stop)
        ordered = sorted(found.values(), key=lambda tensor: tensor.start)
        for before, after in pairwise(ordered):
            if after.start < before.stop:
                rule = f"{before.stop - data_start} or more, the end of {shown(before.name)}"
                self._refuse(f"tensor {shown(after.name)}: offset", rule, after.start - data_start)
        return found

    def _type(
        self, what: str, kind: int, shape: tuple[int, ...]
    ) -> tuple[ml.DType | ml.BlockDType, int]:
        """Return the dtype of a tensor and its bytes."""
        dtype = DTYPES.get(kind)
        if dtype is None:
            rule = f"one of {', '.join(each.name for each in DTYPES.values())}"
            got = _OTHER_TYPES.get(kind)
            self._refuse(f"{what}: type", rule, f"{kind} ({got})" if got else kind)
        if isinstance(dtype, ml.BlockDType) and shape[-1] % dtype.block_size:
            rule = f"a multiple of {dtype.block_size}, a block of {dtype}"
            self._refuse(f"{what}: row length", rule, shape[-1])
        return dtype, nbytes_of(dtype, shape)


# Files in several parts


def read_gguf_parts(path: Path) -> list[GgufFile]:
    """Read the header of a file, and of all its parts where `split.count` says that there are more.

    Args:
        path: A whole file, or the first part, `NAME-00001-of-00003.gguf`.

    Returns:
        The parts in their order. Only the first has the keys of the model.

    Raises:
        CheckpointError: As `read_gguf`; a later part was given, a part is missing, is another
            one than its name says, or is elsewhere; a tensor is in two parts or missing.
    """
    first = read_gguf(path)
    count = _part_number(first, "split.count", 1)
    if count <= 1:
        return [first]
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        rule = f"NAME-00001-of-{count:05d}.gguf, because split.count is {count}"
        raise mismatch(first.label, "file name", rule, shown(path.name))
    paths = [path.with_name(f"{match[1]}-{n:05d}-of-{match[3]}.gguf") for n in range(1, count + 1)]
    if int(match[2]) != 1:
        raise mismatch(first.label, "part", f"the first, {shown(paths[0].name)}", match[2])
    missing = [each.name for each in paths[1:] if not each.exists()]
    if missing:
        got = f"without {some_of(missing)}"
        raise mismatch(first.label, "files", f"{count} parts beside each other", got)
    inside = [followed_inside(each, CheckpointError, path.parent) for each in paths[1:]]
    parts = [first, *map(read_gguf, inside)]
    owners: dict[str, str] = {}
    for number, part in enumerate(parts):
        for key, expected in (("split.no", number), ("split.count", count)):
            found = _part_number(part, key, -1)
            if found != expected:
                raise mismatch(part.label, f"key '{key}'", expected, found)
        for name in part.tensors:
            if name in owners:
                got = f"it in {owners[name]} too"
                raise mismatch(part.label, f"tensor {shown(name)}", "it in one part", got)
            owners[name] = part.label
    total = _part_number(first, "split.tensors.count", len(owners))
    if total != len(owners):
        raise mismatch(first.label, "tensors of all parts", total, len(owners))
    return parts


def _part_number(file: GgufFile, key: str, default: int) -> int:
    value = file.keys.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise mismatch(file.label, f"key '{key}'", "an integer", described(value))
    return value
