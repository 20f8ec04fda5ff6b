"""Write a safetensors file with only one tensor in memory at a time.

Tensors with wide dtypes come first and the header is padded, so every tensor is aligned
to its item size and can be mapped without a copy. `packed_weights.py` explains how the
parts of a quantized matrix are stored.

Source: huggingface/safetensors, README.md (Format) and `safetensors/src/tensor.rs`
(`prepare`).
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np

from .. import ml
from .packed_weights import INT8_GROUP, INT8_SCALE, NF4_LEVELS, NF4_STATE
from .safetensors import DTYPE_BITS, DTYPES

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class NewTensor:
    """The name, safetensors dtype and shape of a tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size of the tensor in the file, in bytes."""
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


class TensorWriter:
    """Writes a new file that consists of a header and tensors.

    Use it in a `with` statement. The file is synced to disk when the block ends without
    an error. An OSError is propagated.

    Args:
        path: The file, which must not exist.
        head: The header.
        places: The start and stop offsets of each tensor, relative to the end of the
            header.
    """

    def __init__(
        self, path: Path, head: bytes, places: dict[str, tuple[int, int]]
    ) -> None:
        self._start = len(head)
        self._places = places
        self._stream = path.open("xb")
        self._stream.write(head)

    def write(self, name: str, content: bytes | memoryview | ml.Weight) -> None:
        """Write a tensor, which may be written only once.

        The content is a bytes object or a weight. For a quantized weight, only its codes
        are written.
        """
        if isinstance(content, ml.QuantizedTensor):
            content = content.codes
        if isinstance(content, ml.Tensor):
            content = bytes_of(content)
        start, stop = self._places.pop(name)
        assert len(content) == stop - start
        self._stream.seek(self._start + start)
        self._stream.write(content)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        try:
            if error is None:
                assert not self._places
                self._stream.flush()
                os.fsync(self._stream.fileno())
        finally:
            self._stream.close()


def safetensors_head(
    tensors: Sequence[NewTensor], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Return the header of a safetensors file, and the start and stop of each tensor."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    places = dict[str, tuple[int, int]]()
    position = 0
    for tensor in sorted(tensors, key=lambda each: (-DTYPE_BITS[each.dtype], each.name)):
        place = places[tensor.name] = position, position + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": place,
        }
        position += tensor.nbytes
    assert len(places) == len(tensors)
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, places


# Tensors that represent a weight.


def new_tensors(
    name: str, shape: tuple[int, ...], dtype: ml.BlockDType | None, origin: ml.DType
) -> list[NewTensor]:
    """Return descriptions of the stored tensors that represent a weight.

    Args:
        name: The name of the weight.
        shape: The shape `[out, in]` for a matrix.
        dtype: The block dtype, or None if the weight is not quantized.
        origin: The dtype of the weight, before quantization if it is quantized.
    """
    if dtype is None:
        return [NewTensor(name, _DTYPE_NAMES[origin], shape)]
    size = math.prod(shape)
    blocks = -(-size // dtype.block_size)
    if dtype is ml.int8_block:
        groups = (shape[0], shape[1] // INT8_GROUP)
        return [
            NewTensor(name, "I8", shape),
            NewTensor(f"{name}{INT8_SCALE}", "BF16", groups),
        ]
    return [
        NewTensor(name, "U8", (-(-size // dtype.codes_per_item), 1)),
        NewTensor(f"{name}.absmax", "F32", (blocks,)),
        NewTensor(f"{name}.quant_map", "F32", (NF4_LEVELS,)),
        NewTensor(f"{name}{NF4_STATE}", "U8", (len(_state_text(shape, origin)),)),
    ]


def part_contents(
    name: str, weight: ml.Weight, origin: ml.DType
) -> Iterator[tuple[str, memoryview]]:
    """Return the name and the bytes of each tensor that `new_tensors` describes."""
    dtype = weight.dtype if isinstance(weight, ml.QuantizedTensor) else None
    parts = [weight] if isinstance(weight, ml.Tensor) else [weight.codes, weight.scales]
    contents = [*map(bytes_of, parts)]
    if dtype is ml.nf4:
        contents += [
            bytes_of(ml.nf4_code()),
            memoryview(_state_text(weight.shape, origin)),
        ]
    names = (tensor.name for tensor in new_tensors(name, weight.shape, dtype, origin))
    return zip(names, contents, strict=True)


def reordered(
    weight: ml.Tensor, head_dim: int, into: Literal["halves", "interleaved"]
) -> ml.Tensor:
    """Reorder the rows in each head for the rotary embedding.

    Rows that are rotated together are adjacent in the `interleaved` order, and are in the
    two halves of a head in the `halves` order.
    """
    values = weight.numpy()
    parts = (head_dim // 2, 2) if into == "halves" else (2, head_dim // 2)
    heads = values.reshape(-1, *parts, *values.shape[1:]).swapaxes(1, 2)
    return ml.Tensor.from_numpy(heads.reshape(values.shape), name=weight.name)


def bytes_of(tensor: ml.Tensor) -> memoryview:
    """Return the bytes of a tensor, without copying them if it is contiguous."""
    return tensor.contiguous().bits().reshape(-1).view(np.uint8).data


def _state_text(shape: tuple[int, ...], origin: ml.DType) -> bytes:
    state = {"quant_type": "nf4", "blocksize": ml.nf4.block_size, "dtype": origin.name}
    return json.dumps({**state, "shape": list(shape)}).encode("ascii")
