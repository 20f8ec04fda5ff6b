"""safetensors files: a JSON header, and the bytes of each tensor one after another.

The file is mapped and each tensor is a view of the bytes where they lie. The format promises no
alignment. Writers keep that of the elements: they pad the header, and put wide dtypes first. A
tensor that lies askew all the same, as old and hand-made files have it, is copied to aligned
memory, because the kernels read whole elements; who loads it is told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .. import ml
from .errors import CheckpointError, FileMemoryError, TensorRecordError, mismatch, shown
from .mapped_file import MappedFile
from .safetensors_header import TensorEntry, read_header

__all__ = ["DTYPES", "SafetensorsFile", "read_safetensors"]

DTYPES: Mapping[str, ml.DType] = {row.file_name: row for row in ml.DTYPES if row.file_name}
"""The dtypes that are read, by their names in the format."""


class SafetensorsFile:
    """One mapped safetensors file: its entries at once, a tensor when it is asked for.

    Args:
        path: the file.

    Attributes:
        file: the mapping.
        entries: what the header says of each tensor, by name, in the order of their bytes.
        metadata: the free text of the header.

    Raises:
        CheckpointError: unreadable, not a safetensors file, or a rule of the format broken.
    """

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        try:
            header = read_header(self.file)
        except CheckpointError:
            self.file.close()
            raise
        self.entries = header.entries
        self.metadata = header.metadata

    def tensor(self, entry: TensorEntry, name: str) -> ml.Tensor:
        """Make the tensor of an entry.

        Args:
            entry: one of `entries`.
            name: what to call the tensor.

        Returns:
            A read-only view of the mapped file, or an aligned copy where `is_askew` says so.

        Raises:
            TensorRecordError: a dtype that `ml` lacks.
            FileMemoryError: no memory for the copy of a tensor that lies askew.
        """
        dtype = DTYPES.get(entry.dtype)
        what = f"tensor {shown(entry.name)}"
        if dtype is None:
            rule = f"one of {', '.join(DTYPES)}"
            raise TensorRecordError(mismatch(self.file.label, f"{what}: dtype", rule, entry.dtype))
        if not self.is_askew(entry):
            return ml.Tensor.from_buffer(
                self.file.buffer, dtype, entry.shape, offset=entry.start, name=name
            )
        try:
            content = np.frombuffer(
                self.file.buffer, np.uint8, entry.stop - entry.start, entry.start
            ).copy()
        except MemoryError:
            rule = f"memory for an aligned copy of {entry.stop - entry.start} bytes"
            raise FileMemoryError(mismatch(self.file.label, what, rule, "none")) from None
        return ml.Tensor.from_numpy(content.view(dtype.numpy_dtype).reshape(entry.shape), name)

    def is_askew(self, entry: TensorEntry) -> bool:
        """Tell whether a tensor of a known dtype begins at no multiple of its elements' size."""
        dtype = DTYPES.get(entry.dtype)
        return dtype is not None and entry.start % dtype.itemsize != 0


def read_safetensors(path: Path) -> dict[str, ml.Tensor]:
    """Read a safetensors file.

    Args:
        path: the file.

    Returns:
        The tensors by name, in the order of their bytes: views of the mapped file (read-only, zero
        copy), except those that lie askew, which are copied.

    Raises:
        CheckpointError: the file is not one, breaks a rule of the format, or holds a tensor of a
            dtype that `ml` lacks. The text says what and where.
    """
    source = SafetensorsFile(path)
    try:
        return {name: source.tensor(entry, name) for name, entry in source.entries.items()}
    except CheckpointError:
        source.file.close()
        raise
