"""Check the shards of a model against its hyperparameters, and merge them.

Meta saves a large model as one file per processor: `consolidated.00.pth` and so on. Each
file contains a part of every matrix and a copy of every norm. If there are more
processors than key/value heads, as in Meta's 16-file version of the 405B model, adjacent
files contain the same head.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ml
from ..memory import memory_shortage
from ..untrusted import shown, some_of
from .errors import FileMemoryError, mismatch
from .names import check_tensors, rows_of, split_dim

Shard = Mapping[str, ml.Tensor]
Bounds = tuple[int, int] | None


def check_shards(
    shards: Sequence[Shard], labels: Sequence[str], layers: int, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Check all tensors in all shards before anything is allocated, and return the sizes.

    The returned sizes include those that are inferred from the tensors.
    """
    _check_count(shards, labels, sizes)
    rows = {row.name: row for row in rows_of(layers)}
    all_sizes = dict(sizes)
    kinds = [
        {name: (each.dtype, each.shape) for name, each in shard.items()}
        for shard in shards
    ]
    for shard, label, kind in zip(shards, labels, kinds, strict=True):
        check_tensors(shard, label, rows, all_sizes, "params.json", len(shards))
        if odd := {name for name, _ in kinds[0].items() ^ kind.items()}:
            key = "names, dtypes and shapes"
            expected = f"the same as in {labels[0]}"
            raise mismatch(label, key, expected, f"others of {some_of(sorted(odd))}")
    return all_sizes


def merge_shards(
    shards: Sequence[Shard], layers: int, sizes: Mapping[str, int]
) -> dict[str, ml.Tensor]:
    """Merge the validated shards of one model, copying all tensors.

    wq, wk, wv, w1, w3 and output are divided by rows, wo and w2 by columns, and the
    embeddings by columns (Llama 2) or rows (Llama 3). Every shard contains all other
    tensors as a whole, and these copies must be equal.
    """
    merged = MergedShards(shards, layers, sizes)
    needed = sum(
        tensor.nbytes * len(shards) // merged.cut_of(name)[1]
        for name, tensor in shards[0].items()
    )
    if shortage := memory_shortage(needed, f"a merged copy of {len(shards)} shards"):
        raise FileMemoryError(f"shards: {shortage}")
    return dict(merged)


class MergedShards(Mapping[str, ml.Tensor]):
    """A mapping that merges a tensor from several shards each time it is looked up."""

    def __init__(
        self, shards: Sequence[Shard], layers: int, sizes: Mapping[str, int]
    ) -> None:
        self._shards = shards
        self._sizes = sizes
        self._rows = {row.name: row for row in rows_of(layers)}

    def cut_of(self, name: str) -> tuple[int | None, int]:
        """Return the dimension along which a tensor is divided, and the number of copies.

        If every shard contains the whole tensor, the dimension is None, and the number of
        copies is the number of shards.
        """
        row = self._rows.get(name)
        shape = self._shards[0][name].shape
        count = len(self._shards)
        axis = None if row is None else split_dim(row, shape, self._sizes["D"])
        if row is None or axis is None:
            return None, count
        return axis, count * shape[axis] // self._sizes[row.sizes[axis]]

    def part(self, name: str, cut: int, bounds: Bounds) -> ml.Tensor:
        """Merge a tensor, or a range of it along one dimension.

        If all requested rows are in one file, the result is a view.

        Args:
            name: The tensor.
            cut: The dimension along which `bounds` applies.
            bounds: The start and stop indices, or None for the whole tensor.
        """
        first = self._shards[0][name]
        (axis, copies) = self.cut_of(name)
        pieces: list[np.ndarray[Any, Any]] = []
        for number, shard in enumerate(self._shards):
            # View the elements as integers, which NumPy copies faster. NaNs also keep
            # their bits and compare equal.
            array = shard[name].numpy().view(first.dtype.bits_dtype)
            if bounds is not None:  # select the requested part of the shard
                begin = number // copies * array.shape[cut] if cut == axis else 0
                start, stop = (
                    min(max(bound - begin, 0), array.shape[cut]) for bound in bounds
                )
                array = array[start:stop] if cut == 0 else array[:, start:stop]
            original = number - number % copies
            if number != original and not np.array_equal(array, pieces[original]):
                where = f"shard {number:02d}: tensor {shown(name)}"
                raise mismatch(
                    where, "values", f"the values of shard {original:02d}", "others"
                )
            pieces.append(array)
        parts = [each for each in pieces[::copies] if each.size] or pieces[:1]
        is_view = bounds is not None and len(parts) == 1 and cut == axis == 0
        whole = parts[0] if is_view else np.concatenate(parts, axis=axis or 0)
        return ml.Tensor.from_numpy(whole.view(first.dtype.numpy_dtype), name=name)

    def __getitem__(self, name: str) -> ml.Tensor:
        return self.part(name, 0, None)

    def __contains__(self, name: object) -> bool:
        return name in self._shards[0]  # the default would merge the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards[0])

    def __len__(self) -> int:
        return len(self._shards[0])


def _check_count(
    shards: Sequence[Shard], labels: Sequence[str], sizes: Mapping[str, int]
) -> None:
    """Compare the number of files with the number implied by wq in the first layer."""
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
