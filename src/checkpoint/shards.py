"""Several files that are one model: checked against the parameters, then merged.

A large model is saved as one file per processor it ran on, `consolidated.00.pth` and on. Each holds
a part of every matrix and a copy of every norm. Where there are more processors than key/value
heads, as in Meta's 16 files of the 405B, neighbours have the same head, and store it each.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ml
from ..memory import memory_shortage
from ..untrusted import shown, some_of
from .errors import FileMemoryError, mismatch
from .names import check_tensors, is_harmless, row_of, rows_of, split_dim

Shard = Mapping[str, ml.Tensor]
Sizes = Mapping[str, int] | None
Bounds = tuple[int, int] | None


def check_shards(
    shards: Sequence[Shard], labels: Sequence[str], layers: int, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Check all tensors of all shards, before anything is allocated; return the sizes by letter."""
    _check_count(shards, labels, sizes)
    rows, found = dict(rows_of(layers)), dict(sizes)
    for shard, label in zip(shards, labels, strict=True):
        check_tensors(shard, label, rows, found, "params.json", len(shards))
    return found


def merge_shards(shards: Sequence[Shard], sizes: Sizes = None) -> dict[str, ml.Tensor]:
    """Merge the shards of one model; this copies every tensor, unlike reading a single file.

    wq, wk, wv, w1, w3 and output are parts by rows, wo and w2 by columns, the embeddings by columns
    (Llama 2) or rows (Llama 3), all else is whole in each shard. A single shard is not copied.

    Args:
        shards: The tensors of each file, in order.
        sizes: Those of the model by the letters of `names.py`: they tell which parts are copies.

    Returns:
        The tensors of the whole model by name.

    Raises:
        CheckpointError: Other names, shapes or dtypes in one shard than in another, replicated
            tensors that differ, or a name that is not in Meta's table.
        FileMemoryError: Not enough memory for the copy; nothing has been copied.
    """
    if len(shards) == 1:
        return dict(shards[0])
    merged = MergedShards(shards, sizes)
    arithmetic = _check_memory(shards, merged.dim)
    try:
        return dict(merged.items())
    except MemoryError:
        text = f"shards: memory: expected {arithmetic}, got a refusal by the system"
        raise FileMemoryError(text) from None


class MergedShards(Mapping[str, ml.Tensor]):
    """The tensors of two or more shards, each of which is merged when looked up, and not kept."""

    def __init__(self, shards: Sequence[Shard], sizes: Sizes = None) -> None:
        self._shards, self._sizes = shards, sizes or {}
        self.dim = _model_dim(shards)

    def __getitem__(self, name: str) -> ml.Tensor:
        return self.part(name, 0, None)

    def part(self, name: str, axis: int, bounds: Bounds) -> ml.Tensor:
        """Merge what lies between bounds of a dimension, or all; rows of one file are a view."""
        parts = [shard[name] for shard in self._shards]
        return _merge_one(name, parts, self.dim, self._sizes, axis, bounds)

    def __contains__(self, name: object) -> bool:
        return name in self._shards[0]  # a look would merge it

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards[0])

    def __len__(self) -> int:
        return len(self._shards[0])


def _model_dim(shards: Sequence[Shard]) -> int:
    """Return D, the length of a norm, after the names of all shards were compared."""
    first = shards[0]
    for number, shard in enumerate(shards):
        odd = sorted(first.keys() ^ shard.keys())
        if odd:
            raise mismatch(f"shard {number:02d}", "tensor names", "those of shard 00", some_of(odd))
    norm = first.get("norm.weight")
    if norm is None or norm.ndim != 1:
        raise mismatch("shard 00", "'norm.weight'", "one dimension", "none")
    return norm.shape[0]


def _check_memory(shards: Sequence[Shard], dim: int) -> str:
    """Check that the merged copy fits into memory; give the words for how large it is."""
    held = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    repeated = sum(
        shard[name].nbytes
        for name, first in shards[0].items()
        if (row := row_of(name)) is None or split_dim(row, first.shape, dim) is None
        for shard in shards[1:]
    )
    arithmetic = (
        f"a merged copy of {len(shards)} shards: {held} bytes in them less {repeated} bytes "
        "that repeat others"
    )
    shortage = memory_shortage(held - repeated, arithmetic)
    if shortage is not None:
        raise FileMemoryError(f"shards: {shortage}")
    return arithmetic


def _merge_one(
    name: str, parts: list[ml.Tensor], dim: int, sizes: Mapping[str, int], cut: int, bounds: Bounds
) -> ml.Tensor:
    first = parts[0]
    for number, part in enumerate(parts):
        if (part.shape, part.dtype) != (first.shape, first.dtype):
            where = f"shard {number:02d}: tensor {shown(name)}"
            got = f"{part.dtype.name} {list(part.shape)}"
            expected = f"{first.dtype.name} {list(first.shape)} as in shard 00"
            raise mismatch(where, "dtype and shape", expected, got)
    row = row_of(name)
    if row is None and not is_harmless(name):
        raise mismatch("shards", "tensor name", "one of Meta's", shown(name))
    axis = split_dim(row, first.shape, dim) if row else None
    if axis is not None and axis >= first.ndim:
        got = f"shape {list(first.shape)}"
        raise mismatch("shards", f"tensor {shown(name)}", "two dimensions", got)
    # As plain integers: NumPy moves those faster, and no NaN changes its bits or fails to be equal.
    arrays = [part.numpy().view(part.dtype.bits_dtype) for part in parts]
    copies = len(parts)  # neighbours that store the same: of heads perhaps some, of norms all
    if row is not None and axis is not None:
        stored = copies * first.shape[axis]
        copies = max(stored // sizes.get(row.sizes[axis], stored), 1)

    pieces: list[np.ndarray[Any, Any]] = []
    for number, array in enumerate(arrays):
        if bounds is not None:  # of what a shard has, the part that is wanted
            begin = number // copies * array.shape[cut] if cut == axis else 0
            start, stop = (min(max(bound - begin, 0), array.shape[cut]) for bound in bounds)
            array = array[start:stop] if cut == 0 else array[:, start:stop]
        original = number - number % copies
        if number != original and not np.array_equal(array, pieces[original]):
            where = f"shard {number:02d}: tensor {shown(name)}"
            raise mismatch(where, "values", f"those of shard {original:02d}", "others")
        pieces.append(array)
    found = [each for each in pieces[::copies] if each.size] or pieces[:1]
    is_view = bounds is not None and len(found) == 1 and cut == axis == 0
    whole = found[0] if is_view else np.concatenate(found, axis=axis or 0)
    return ml.Tensor.from_numpy(whole.view(first.dtype.numpy_dtype), name=name)


def _check_count(shards: Sequence[Shard], labels: Sequence[str], sizes: Mapping[str, int]) -> None:
    """Compare the number of files with the number that the parts of the first wq make whole."""
    name = "layers.0.attention.wq.weight"
    shape = shards[0][name].shape if name in shards[0] else ()
    if len(shape) != 2 or not shape[0] or sizes["Hh"] % shape[0]:
        return
    count = sizes["Hh"] // shape[0]
    if count != len(shards):
        got = f"{len(shards)}, while {name} has {shape[0]} rows of {sizes['Hh']}"
        if count > len(shards):
            missing = [f"{number:02d}" for number in range(len(shards), count)]
            got += f", missing {some_of(missing, str)}"
        raise mismatch(labels[0], "shards of the model", count, got)
