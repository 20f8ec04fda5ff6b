"""Write safetensors files without the safetensors package, good ones and deliberately bad
ones.

The layout is that of safetensors 0.6: wide dtypes first, then by name, the header padded
with spaces to a multiple of 8 bytes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.support.pth_writer import LazyArray, write_or_skip

DTYPE_NAMES = {
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
    np.dtype(np.float64): "F64",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.int16): "I16",
    np.dtype(np.uint16): "U16",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
    np.dtype(np.bool_): "BOOL",
    np.dtype(np.complex64): "C64",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
}
Arrays = Mapping[str, "np.ndarray[Any, Any] | LazyArray"]
INDEX = "model.safetensors.index.json"


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def file_bytes(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Form a file from a header (bytes as they are, or a value to write as JSON) and its
    buffer.

    `length` replaces the length that the file claims its header to have.
    """
    text = header if isinstance(header, bytes) else padded(json.dumps(header).encode())
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def padded(header: bytes) -> bytes:
    """Pad a header with spaces, so that what follows it is aligned to 8 bytes."""
    return header + b" " * (-len(header) % 8)


def write_safetensors(
    path: Path, arrays: Arrays, metadata: Mapping[str, str] | None = None, shift: int = 0
) -> None:
    """Write named arrays; `shift` moves the buffer by so many bytes from an aligned
    place.
    """
    ordered = sorted(
        arrays.items(), key=lambda item: (-np.dtype(item[1].dtype).itemsize, item[0])
    )
    header: dict[str, object] = {}
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    position = 0
    for name, array in ordered:
        dtype = np.dtype(array.dtype)
        end = position + int(np.prod(array.shape, dtype=object)) * dtype.itemsize
        header[name] = entry(DTYPE_NAMES[dtype], array.shape, position, end)
        position = end
    text = padded(json.dumps(header, separators=(",", ":")).encode()) + b" " * shift
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            for chunk in array.chunks() if isinstance(array, LazyArray) else [array]:
                write_or_skip(stream, np.ascontiguousarray(chunk).tobytes())
        stream.truncate()


def write_sharded(directory: Path, arrays: Arrays, count: int) -> list[Path]:
    """Write arrays as `count` shards and their index;
    the tensors are dealt out in turn.
    """
    paths = [
        directory / f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        for number in range(count)
    ]
    weight_map = {name: paths[number % count].name for number, name in enumerate(arrays)}
    for path in paths:
        part = {
            name: array for name, array in arrays.items() if weight_map[name] == path.name
        }
        write_safetensors(path, part, {"format": "pt"})
    write_index(directory, weight_map)
    return paths


def write_index(directory: Path, weight_map: Mapping[str, object]) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": dict(weight_map)}
    (directory / INDEX).write_text(json.dumps(index))
