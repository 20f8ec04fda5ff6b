"""Writing a safetensors file tensor by tensor, in any order, with no more than one in memory.

Wide dtypes come first and the header is padded, so that every tensor is aligned to its elements:
what is written here is mapped and used without a copy.

Source: huggingface/safetensors, README.md (Format) and `safetensors/src/tensor.rs` (`prepare`).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .safetensors import DTYPE_BITS

__all__ = ["NewTensor", "SafetensorsWriter", "written_bytes"]

_LENGTH_BYTES = 8
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor that is going to be written: its name, the format's name of its dtype, its sizes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes that it takes."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def written_bytes(tensors: Sequence[NewTensor]) -> int:
    """Return the bytes of all tensors; the header adds some hundred for each."""
    return sum(tensor.nbytes for tensor in tensors)


class SafetensorsWriter:
    """A new safetensors file; to be used in a `with` statement, at whose end it is on the disk.

    Args:
        path: The file, which must not exist.
        tensors: All that is going to be written.
        metadata: Free text for the header.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(
        self, path: Path, tensors: Sequence[NewTensor], metadata: Mapping[str, str]
    ) -> None:
        ordered = sorted(tensors, key=lambda one: (-DTYPE_BITS[one.dtype], one.name))
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        self._places: dict[str, tuple[int, int]] = {}
        position = 0
        for tensor in ordered:
            end = position + tensor.nbytes
            header[tensor.name] = {
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "data_offsets": [position, end],
            }
            self._places[tensor.name] = (position, end)
            position = end
        assert len(self._places) == len(tensors)
        text = json.dumps(header, separators=(",", ":")).encode("ascii")
        text += b" " * (-len(text) % _ALIGNMENT)
        self._start = _LENGTH_BYTES + len(text)
        self._stream = path.open("xb")
        self._stream.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Write the bytes of one of the tensors, once.

        Raises:
            OSError: They cannot be written, as on a full disk.
        """
        begin, end = self._places.pop(name)
        assert len(content) == end - begin
        self._stream.seek(self._start + begin)
        self._stream.write(content)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                assert not self._places
                self._stream.flush()
                os.fsync(self._stream.fileno())
        finally:
            self._stream.close()
