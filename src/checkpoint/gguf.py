"""Read the typed keys and tensor entries in GGUF files, which may be split.

Every count, length and offset is checked against the file size before use. Because a
vocabulary can have 400,000 strings, array values are decoded only on request. Tensors are
used in place in the mapped file. Shapes are stored with the contiguous dimension first,
so `[out, in]` is stored as `in, out`.

Source: ggml-org/ggml, docs/gguf.md; llama.cpp `ggml/src/gguf.cpp`, `ggml/include/ggml.h`
(tensor types) and `tools/gguf-split` (split files).
"""

import contextlib
import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from .. import ml
from ..untrusted import described, followed_inside, shown, some_of
from .errors import CheckpointError, mismatch
from .mapped_file import MappedFile
from .params import check_object, integer_in, one_of, value_of

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_KEYS = 1 << 14
_MOST_TENSORS = 1 << 16
_MOST_KEY_BYTES = (1 << 16) - 1
_MOST_NAME_BYTES = 64
_MOST_TEXT_BYTES = 16 << 20
# Maximum array size. The merges for the largest vocabularies take about 10 MB.
_MOST_ARRAY_BYTES = 64 << 20
_MOST_DIMENSIONS = 4
_MOST_SHOWN = 3  # maximum number of values in the string form of an array
_DEFAULT_ALIGNMENT = 32
_LARGEST_ALIGNMENT = 1 << 16
_ALIGNMENT = "general.alignment"
VOCABULARY = "tokenizer.ggml.tokens"

_UINT32 = 4
_BOOL = 7
_STRING = 8
_ARRAY = 9
_SCALARS = {
    0: np.uint8,
    1: np.int8,
    2: np.uint16,
    3: np.int16,
    _UINT32: np.uint32,
    5: np.int32,
    6: np.float32,
    _BOOL: np.bool_,
    10: np.uint64,
    11: np.int64,
    12: np.float64,
}
_LENGTH = struct.Struct("<Q")  # the length that precedes each string

DTYPES: Mapping[int, ml.DType | ml.BlockDType] = {
    0: ml.float32,
    1: ml.float16,
    30: ml.bfloat16,
    **ml.GGML_DTYPES,
}
"""The supported dtypes, keyed by their type codes in the file format."""

_OTHER_TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
    41: "Q1_0",
}
_SPLIT_RULES = {  # the part numbers in file names have five digits
    "split.count": integer_in(0, 99_999),
    "split.tensors.count": integer_in(0, 1 << 31),
}


def nbytes_of(dtype: ml.DType | ml.BlockDType, shape: tuple[int, ...]) -> int:
    """Return the size of a tensor in bytes."""
    size = math.prod(shape)
    return size * dtype.itemsize if isinstance(dtype, ml.DType) else dtype.bytes_of(size)


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array of numbers, bools or strings whose values are still in the file.

    Attributes:
        path: The file.
        label: The file and the key, for error messages.
        kind: The type of the values: a key of `_SCALARS`, or `_STRING`.
        count: The number of values.
        start: The file offset of the first value. For strings, this is the offset of the
            first string's length.
        stop: The file offset after the last value.
    """

    path: Path
    label: str
    kind: int
    count: int
    start: int
    stop: int

    def values(self, most: int | None = None) -> list[object]:
        """Read the first `most` values, or all values by default.

        Returns:
            The values, as int, float, bool or str.

        Raises:
            CheckpointError: A string is not valid UTF-8, or the file has changed since
                its header was read.
        """
        count = self.count if most is None else min(self.count, most)
        with contextlib.closing(MappedFile(self.path)) as file:
            if file.size < self.stop:
                file.refuse(
                    "size in bytes",
                    f"at least {self.stop} as when it was read",
                    file.size,
                )
            if self.kind == _STRING:
                return self._strings(file.buffer, count)
            dtype = np.dtype(_SCALARS[self.kind])
            content = file.bytes_at(self.start, self.start + count * dtype.itemsize)
            return [*np.frombuffer(content, dtype).tolist()]

    def _strings(self, buffer: mmap.mmap | bytes, count: int) -> list[object]:
        # A vocabulary can have more than 100,000 strings, so this loop must be fast.
        strings: list[object] = []
        append = strings.append
        length_at = _LENGTH.unpack_from
        width = _LENGTH.size
        content = buffer[self.start : self.stop]
        size = len(content)
        at = 0
        try:
            for _ in range(count):
                start = at + width
                at = start + length_at(content, at)[0]
                if at > size:
                    break
                append(content[start:at].decode())
        except UnicodeDecodeError as error:
            got = f"an invalid byte at offset {error.start}"
            raise mismatch(
                f"{self.label}[{len(strings)}]", "text", "UTF-8", got
            ) from None
        except struct.error:  # the length is cut off
            at = size + 1
        if at > size:
            rule = f"inside byte {self.stop} as when it was read"
            raise mismatch(f"{self.label}[{len(strings)}]", "text", rule, "a longer one")
        return strings

    def __str__(self) -> str:
        """Return the count, the type and the first values."""
        name = "string" if self.kind == _STRING else np.dtype(_SCALARS[self.kind]).name
        head = ", ".join(map(described, self.values(_MOST_SHOWN)))
        more = ", ..." if self.count > _MOST_SHOWN else ""
        return f"{self.count} of {name}: {head}{more}"


GgufValue: TypeAlias = int | float | bool | str | GgufArray


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor's header entry. `start` and `stop` are byte offsets in the file."""

    name: str
    dtype: ml.DType | ml.BlockDType
    shape: tuple[int, ...]
    start: int
    stop: int

    def make(self, file: MappedFile, name: str) -> ml.Weight:
        """Return a tensor called `name` that is a read-only view of the mapped file."""
        buffer = file.buffer
        start = self.start
        dtype = self.dtype
        if isinstance(dtype, ml.DType):
            return ml.Tensor.from_buffer(
                buffer, dtype, self.shape, offset=start, name=name
            )
        blocks = ml.Tensor.from_buffer(
            buffer, ml.uint8, (self.stop - start,), offset=start
        )
        return ml.QuantizedTensor(dtype, self.shape, blocks, name=name)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of one GGUF file, which does not keep the file open."""

    path: Path
    label: str  # the file name for error messages
    size: int  # in bytes
    version: int  # 2 or 3
    keys: Mapping[str, GgufValue]  # in file order
    tensors: Mapping[str, GgufTensor]  # in the order of their data

    def decoded(self, prefix: str, arrays: Mapping[str, int]) -> dict[str, object]:
        """Return the keys that begin with a prefix, with some arrays decoded.

        Args:
            prefix: The prefix.
            arrays: The keys whose arrays are decoded to lists, with the maximum number of
                values for each. All other arrays remain `GgufArray` objects.

        Raises:
            CheckpointError: An array has too many values or is damaged.
        """
        decoded: dict[str, object] = {}
        for key, value in self.keys.items():
            if not key.startswith(prefix):
                continue
            if isinstance(value, GgufArray) and key in arrays:
                if value.count > arrays[key]:
                    raise mismatch(
                        value.label, "length", f"at most {arrays[key]}", value.count
                    )
                decoded[key] = value.values()
            else:
                decoded[key] = value
        return decoded

    def map(self) -> MappedFile:
        """Map the file to use its tensors.

        Raises:
            CheckpointError: The file size has changed since the header was read.
        """
        file = MappedFile(self.path)
        if (size := file.size) != self.size:
            file.close()
            raise mismatch(
                self.label, "size in bytes", f"{self.size} as when it was read", size
            )
        return file


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a GGUF file, and close the file."""
    with contextlib.closing(MappedFile(path)) as file:
        return GgufFile(path, file.label, file.size, *_Reader(file).read_header())


def read_gguf_beginning(path: Path) -> GgufFile:
    """Read only the keys up to the vocabulary, about 1,000 times as fast as `read_gguf`.

    The returned vocabulary has a count but no values. The keys that follow the vocabulary
    and the tensors are omitted.
    """
    with contextlib.closing(MappedFile(path)) as file:
        version, keys = _Reader(file).read_beginning()
        return GgufFile(path, file.label, file.size, version, keys, {})


class _Reader:
    """A sequential parser for the header of a mapped file."""

    def __init__(self, file: MappedFile) -> None:
        self._file = file
        self._buffer = file.buffer
        self._size = file.size
        self._at = 0
        self._refuse = file.refuse

    def read_header(self) -> tuple[int, dict[str, GgufValue], dict[str, GgufTensor]]:
        """Return the version, the keys and the tensor entries."""
        version, tensor_count, key_count = self._read_counts()
        keys: dict[str, GgufValue] = {}
        for number in range(key_count):
            name, key, kind = self._key(number, keys)
            keys[name] = self._value(key, kind)
        alignment = keys.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
        assert isinstance(alignment, int), "its type is checked"
        if not 8 <= alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
            rule = f"a power of two in 8..{_LARGEST_ALIGNMENT}"
            self._refuse(f"key {shown(_ALIGNMENT)}", rule, alignment)
        entries = [self._entry(number, alignment) for number in range(tensor_count)]
        return version, keys, self._placed(entries, -(-self._at // alignment) * alignment)

    def read_beginning(self) -> tuple[int, dict[str, GgufValue]]:
        """Return the version and the keys up to the vocabulary."""
        version, _, key_count = self._read_counts()
        keys: dict[str, GgufValue] = {}
        for number in range(key_count):
            name, key, kind = self._key(number, keys)
            if name == VOCABULARY and kind == _ARRAY:
                kind, count = self._array_header(key)
                label = f"{self._file.label}: {key}"
                keys[name] = GgufArray(
                    self._file.path, label, kind, count, self._at, self._at
                )
                break
            keys[name] = self._value(key, kind)
        return version, keys

    def _read_counts(self) -> tuple[int, int, int]:
        """Return the version, the number of tensors and the number of keys."""
        version = self._version()
        tensor_count = self._integer("number of tensors", 8)
        key_count = self._integer("number of keys", 8)
        # The last argument is the size of the shortest possible entry or key.
        self._check_count(
            "number of tensors", tensor_count, _MOST_TENSORS, 8 + 1 + 4 + 8 + 4 + 8
        )
        self._check_count("number of keys", key_count, _MOST_KEYS, 8 + 1 + 4 + 1)
        return version, tensor_count, key_count

    def _key(self, number: int, keys: Mapping[str, GgufValue]) -> tuple[str, str, int]:
        """Return the next key's name, its label for errors, and the type of its value."""
        name = self._text(f"key {number}: name", _MOST_KEY_BYTES)
        key = f"key {shown(name)}"
        if name in keys or not name:
            self._refuse(key, "a new name", "it again" if name else "none")
        kind = self._integer(f"{key}: type", 4)
        if name == _ALIGNMENT and kind != _UINT32:
            self._refuse(f"{key}: type", f"{_UINT32}, uint32", kind)
        return name, key, kind

    def _version(self) -> int:
        if self._take("kind", min(len(MAGIC), self._size)) != MAGIC:
            self._refuse("kind", "a GGUF file", self._file.kind())
        version = self._integer("version", 4)
        if version not in _VERSIONS:
            is_swapped = int.from_bytes(version.to_bytes(4, "little")) in (1, *_VERSIONS)
            got = "a big-endian file" if is_swapped else version
            self._refuse("version", " or ".join(map(str, _VERSIONS)), got)
        return version

    def _check_count(self, key: str, count: int, most: int, least_bytes: int) -> None:
        """Check a count against its limit and the remaining file size."""
        room = (self._size - self._at) // least_bytes
        if count > min(most, room):
            rule = f"{room}, which the file has room for" if room < most else most
            self._refuse(key, f"at most {rule}", count)

    def _take(self, key: str, count: int) -> bytes:
        """Return the next `count` bytes and advance past them."""
        start = self._at
        if count > self._size - start:
            self._refuse(
                key, f"{count} bytes at byte {start}", f"{self._size - start} to the end"
            )
        self._at = start + count
        return self._buffer[start : self._at]

    def _integer(self, key: str, size: int) -> int:
        return int.from_bytes(self._take(key, size), "little")

    def _text(self, key: str, most: int) -> str:
        length = self._integer(key, 8)
        if length > most:
            self._refuse(f"{key}: bytes", f"at most {most}", length)
        try:
            return self._take(key, length).decode()
        except UnicodeDecodeError as error:
            self._refuse(key, "UTF-8", f"an invalid byte at offset {error.start}")

    def _value(self, key: str, kind: int) -> GgufValue:
        if kind == _STRING:
            return self._text(key, _MOST_TEXT_BYTES)
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            self._refuse(f"{key}: type", f"0 to {max(_SCALARS)}", kind)
        value: int | float | bool = self._numbers(key, kind, 1).tolist()[0]
        return value

    def _numbers(
        self, key: str, kind: int, count: int
    ) -> "np.ndarray[tuple[int], np.dtype]":
        dtype = np.dtype(_SCALARS[kind])
        values = np.frombuffer(self._take(key, count * dtype.itemsize), dtype)
        if kind == _BOOL and (most := int(values.view(np.uint8).max(initial=0))) > 1:
            self._refuse(key, "0 or 1 for a bool", most)
        return values

    def _array_header(self, key: str) -> tuple[int, int]:
        """Return the type and the number of an array's values."""
        kind = self._integer(f"{key}: type", 4)
        count = self._integer(f"{key}: length", 8)
        if kind != _STRING and kind not in _SCALARS:
            got = "an array" if kind == _ARRAY else kind
            self._refuse(f"{key}: type of values", "numbers, bools or strings", got)
        width = _LENGTH.size if kind == _STRING else np.dtype(_SCALARS[kind]).itemsize
        self._check_count(f"{key}: length", count, _MOST_ARRAY_BYTES // width, width)
        return kind, count

    def _array(self, key: str) -> GgufArray:
        kind, count = self._array_header(key)
        start = self._at
        if kind == _STRING:
            self._skip_strings(key, count)
        else:
            self._numbers(key, kind, count)
        label = f"{self._file.label}: {key}"
        return GgufArray(self._file.path, label, kind, count, start, self._at)

    def _skip_strings(self, key: str, count: int) -> None:
        """Advance past `count` strings, each preceded by its length."""
        buffer = self._buffer
        at = self._at
        length_at = _LENGTH.unpack_from
        width = _LENGTH.size
        try:
            for _ in range(count):
                at += width + length_at(buffer, at)[0]
        except (struct.error, OverflowError):  # beyond the end of the file
            at = self._size + 1
        if at > self._size:
            self._refuse(
                f"{key}: strings", f"{count} before byte {self._size}", "longer ones"
            )
        if at - self._at > _MOST_ARRAY_BYTES:
            self._refuse(f"{key}: bytes", f"at most {_MOST_ARRAY_BYTES}", at - self._at)
        self._at = at

    def _entry(self, number: int, alignment: int) -> GgufTensor:
        """Return the next tensor entry, with offsets relative to the tensor data."""
        name = self._text(f"tensor {number}: name", _MOST_NAME_BYTES)
        key = f"tensor {shown(name)}"
        count = self._integer(f"{key}: number of dimensions", 4)
        if not 1 <= count <= _MOST_DIMENSIONS:
            self._refuse(
                f"{key}: number of dimensions", f"1 to {_MOST_DIMENSIONS}", count
            )
        shape = tuple(self._integer(f"{key}: shape", 8) for _ in range(count))[::-1]
        if 0 in shape:
            self._refuse(f"{key}: shape", "no size of 0", list(shape))
        kind = self._integer(f"{key}: type", 4)
        offset = self._integer(f"{key}: offset", 8)
        dtype = DTYPES.get(kind)
        if dtype is None:
            rule = f"one of {', '.join(each.name for each in DTYPES.values())}"
            got = f"{kind} ({_OTHER_TYPES[kind]})" if kind in _OTHER_TYPES else kind
            self._refuse(f"{key}: type", rule, got)
        if isinstance(dtype, ml.BlockDType) and shape[-1] % dtype.block_size:
            rule = f"a multiple of {dtype.block_size}, a block of {dtype}"
            self._refuse(f"{key}: row length", rule, shape[-1])
        if offset % alignment:
            self._refuse(f"{key}: offset", f"a multiple of {alignment}", offset)
        return GgufTensor(name, dtype, shape, offset, offset + nbytes_of(dtype, shape))

    def _placed(
        self, entries: list[GgufTensor], data_start: int
    ) -> dict[str, GgufTensor]:
        """Check the names and offsets of all tensors.

        Return a dict of the entries by name, sorted by their offsets in the file.
        """
        placed: dict[str, GgufTensor] = {}
        room = max(self._size - data_start, 0)
        position = 0
        last = ""
        for entry in sorted(entries, key=lambda entry: entry.start):
            key = f"tensor {shown(entry.name)}"
            if entry.name in placed:
                self._refuse(key, "a new name", "it again")
            if entry.start < position:
                rule = f"{position} or more, the end of {shown(last)}"
                self._refuse(f"{key}: offset", rule, entry.start)
            if entry.stop > room:
                got = f"{entry.stop - entry.start} at {entry.start}"
                self._refuse(f"{key}: bytes", f"inside the {room} bytes of the data", got)
            position = entry.stop
            last = entry.name
            placed[last] = replace(
                entry, start=data_start + entry.start, stop=data_start + position
            )
        return placed


# Split files


def read_gguf_parts(path: Path) -> list[GgufFile]:
    """Read the headers of all parts of a GGUF file.

    `path` is a complete file or the first part of a split file. Only the first part
    contains the model's keys. `split.count` determines the number of parts.
    """
    first = read_gguf(path)
    split = {key: first.keys[key] for key in _SPLIT_RULES if key in first.keys}
    check_object(first.label, split, _SPLIT_RULES)
    count = value_of(split, "split.count", 1)
    if count <= 1:
        return [first]
    match = re.fullmatch(rf"(.*)-00001-of-{count:05d}\.gguf", path.name, re.DOTALL)
    if match is None:
        rule = f"NAME-00001-of-{count:05d}.gguf, because split.count is {count}"
        raise mismatch(first.label, "file name", rule, shown(path.name))
    names = [
        f"{match[1]}-{number:05d}-of-{count:05d}.gguf" for number in range(2, count + 1)
    ]
    missing = [name for name in names if not path.with_name(name).exists()]
    if missing:
        got = f"without {some_of(missing)}"
        raise mismatch(first.label, "files", f"{count} parts in one directory", got)
    others = (
        followed_inside(path.with_name(n), CheckpointError, path.parent) for n in names
    )
    parts = [first, *map(read_gguf, others)]
    seen = set[str]()
    for number, part in enumerate(parts):
        rules = {"split.no": one_of(number), "split.count": one_of(count)}
        check_object(
            part.label, {k: part.keys[k] for k in rules if k in part.keys}, rules, rules
        )
        if twice := seen & part.tensors.keys():
            repeated = f"{some_of(sorted(twice))} in another part as well"
            raise mismatch(part.label, "tensors", "each in one part", repeated)
        seen |= part.tensors.keys()
    total = value_of(split, "split.tensors.count", len(seen))
    if total != len(seen):
        raise mismatch(first.label, "tensors of all parts", total, len(seen))
    return parts
