"""Write plain or quantized tensors to a GGUF file, with one tensor in memory at a time.

The type of a key's value follows from its Python type: str as a string, bool as a bool,
int as uint32, float as float32, and lists of str, bool, int (as int32) or float (as
float32) as arrays.

Source: ggml-org/ggml, docs/gguf.md.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import ml
from .gguf import DTYPES, MAGIC, nbytes_of
from .safetensors_writer import TensorWriter

_VERSION = 3
_ALIGNMENT = 32
TYPE_NUMBERS: Mapping[ml.DType | ml.BlockDType, int] = {
    d: number for number, d in DTYPES.items()
}
"""A mapping from each dtype to its type code in the file format."""

_STRING = 8
_ARRAY = 9
_KINDS: Mapping[type, tuple[int, str]] = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
_LISTED: Mapping[type, tuple[int, str]] = {
    bool: (7, "?"),
    int: (5, "i"),
    float: (6, "f"),
}

NewValue = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]


class GgufWriter(TensorWriter):
    """Writes a new GGUF file.

    Args:
        path: The file, which must not exist.
        keys: The keys and their values, in the order in which they are written.
        tensors: The dtype and shape of each tensor.
    """

    def __init__(
        self,
        path: Path,
        keys: Mapping[str, NewValue],
        tensors: Mapping[str, tuple[ml.DType | ml.BlockDType, tuple[int, ...]]],
    ) -> None:
        head = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(keys))]
        head += (_text(name) + _value(value) for name, value in keys.items())
        bounds: dict[str, tuple[int, int]] = {}
        position = 0
        for name, (dtype, shape) in tensors.items():
            sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            head.append(
                _text(name) + sizes + struct.pack("<IQ", TYPE_NUMBERS[dtype], position)
            )
            bounds[name] = position, position + nbytes_of(dtype, shape)
            position = _aligned(bounds[name][1])
        content = b"".join(head)
        super().__init__(path, content.ljust(_aligned(len(content)), b"\0"), bounds)
        self._stream.truncate(self._start + position)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: NewValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool | int | float):
        kind, code = _KINDS[type(value)]
        return struct.pack(f"<I{code}", kind, value)
    first = value[0] if value else ""
    if isinstance(first, str):
        parts = [_text(str(each)) for each in value]
        return struct.pack("<IIQ", _ARRAY, _STRING, len(parts)) + b"".join(parts)
    kind, code = _LISTED[type(first)]
    return struct.pack(f"<IIQ{len(value)}{code}", _ARRAY, kind, len(value), *value)
