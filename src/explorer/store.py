"""The arrays of a document: deflated when they are made, and counted as bytes of the file."""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ml.errors import LlamaBoltsError

Array = npt.NDArray[Any]
Reference = dict[str, Any]  # block, dtype and shape, as JSON holds them

# The page itself, the stages and their chapter, which are always written.
_PAGE_BYTES = 250_000
# Which part of the rest each kind of array may take; the events and the texts have what is left.
SHARES: Mapping[str, float] = {
    "logits": 0.47, "attention": 0.34, "values": 0.08, "lens": 0.06, "residual": 0.03,
}  # fmt: skip
_SMALLEST_LIMIT = 1.0  # megabytes: below it the page and the texts leave no room for numbers
DEFAULT_LIMIT = 12.0


class ExplorerError(LlamaBoltsError):
    """The explorer cannot show what was asked for."""


class Store:
    """Deflated arrays, and how much of the limit they took.

    Args:
        limit: The largest file to be written, in megabytes of 10^6 bytes.
        runs: How many runs share it.

    Attributes:
        room: How many bytes of the file each kind of array can still take.

    Raises:
        ExplorerError: A limit that leaves no room.
    """

    def __init__(self, limit: float = DEFAULT_LIMIT, runs: int = 1) -> None:
        if not limit >= _SMALLEST_LIMIT:
            rule = f"expected at least {_SMALLEST_LIMIT:g} MB, got {limit:g}"
            raise ExplorerError(f"--explore-limit: {rule}")
        self.limit = limit
        self.blocks: list[bytes] = []
        room = (limit * 1e6 - _PAGE_BYTES) / runs
        self._shares = {kind: int(share * room) for kind, share in SHARES.items()}
        self.begin_run()

    def begin_run(self) -> None:
        """Give each kind of array its share again, for the next run."""
        self.room = dict(self._shares)

    def add(self, array: Array, kind: str, dtype: str | None = None) -> Reference | None:
        """Keep an array, unless there is no room for it.

        Args:
            array: Integers or float32, contiguous in C order once it is stored.
            kind: One of `SHARES`.
            dtype: What the page is told; that of the array by default.

        Returns:
            Where the page finds it; None if it was left out.
        """
        data = zlib.compress(np.ascontiguousarray(array).data, 6)
        size = 4 * -(-len(data) // 3) + 48  # as base64, with the element around it
        if size > self.room[kind]:
            return None
        self.room[kind] -= size
        self.blocks.append(data)
        return {
            "block": len(self.blocks) - 1,
            "dtype": dtype or array.dtype.name,
            "shape": list(array.shape),
        }

    def add_values(self, values: Array, dtype: str) -> Reference | None:
        """Keep the elements of a tensor, bit for bit.

        Args:
            values: float32 or complex64, as events carry them.
            dtype: That of the tensor: of bfloat16, the 16 bits are stored.
        """
        if values.dtype.kind == "c":
            values = np.ascontiguousarray(values).view(np.float32).reshape(*values.shape, 2)
        if dtype == "bfloat16":
            bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) >> 16
            return self.add(bits.astype(np.uint16), "values", "bfloat16")
        return self.add(values.astype(np.float32), "values")
