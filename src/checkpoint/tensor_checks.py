"""The names and shapes of a file's tensors against those that the hyperparameters ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from .errors import ShardError, mismatch, shown, some_of
from .names import TensorRow, is_harmless, split_dim

__all__ = ["check_names", "check_shapes"]

_MOST_SHOWN = 5


class Shaped(Protocol):
    """A tensor, or its entry in a header."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""


def check_names(
    tensors: Mapping[str, Shaped], label: str, rows: Mapping[str, TensorRow], source: str
) -> None:
    """Check that all tensors that a model needs are there, and no others but harmless ones.

    Args:
        tensors: what there is, by the names of the file.
        label: what to call the file in errors.
        rows: the table of the model, by the names of the file.
        source: the file that the table follows from.

    Raises:
        ShardError: missing or extra tensors, the first five and how many.
    """
    missing = [name for name, row in rows.items() if name not in tensors and not row.optional]
    if missing:
        rule = f"{len(rows)} tensors as {source} says"
        raise ShardError(mismatch(label, "tensors", rule, f"without {some_of(missing)}"))
    extra = [name for name in tensors if name not in rows and not is_harmless(name)]
    if extra:
        rule = f"only those of the layers that {source} says"
        raise ShardError(mismatch(label, "tensors", rule, f"also {some_of(extra)}"))


def check_shapes(
    tensors: Mapping[str, Shaped],
    label: str,
    rows: Mapping[str, TensorRow],
    sizes: dict[str, int],
    source: str,
    count: int = 1,
) -> None:
    """Check the shapes; a size that is not known yet is that of the first tensor that has it.

    Args:
        tensors, label, rows, source: as in `check_names`.
        sizes: known sizes by letter of the table; those found out are added.
        count: the number of shards that the model is split over.

    Raises:
        ShardError: other shapes, the first five and how many.
    """
    wrong = []
    for name, row in rows.items():
        tensor = tensors.get(name)
        if tensor is None:
            continue
        axis = split_dim(row, tensor.shape, sizes["D"]) if count > 1 else None
        expected = []
        for position, letter in enumerate(row.sizes):
            parts = count if position == axis else 1
            if letter not in sizes and position < len(tensor.shape):
                sizes[letter] = tensor.shape[position] * parts
            expected.append(sizes.get(letter, 0) / parts)
        if list(tensor.shape) != expected or 0 in tensor.shape:
            whole = [int(size) if size == int(size) else size for size in expected]
            wrong.append(f"{shown(name)} {list(tensor.shape)} instead of {whole}")
    if wrong:
        head = "; ".join(wrong[:_MOST_SHOWN]) + ("; ..." if len(wrong) > _MOST_SHOWN else "")
        got = f"{head} ({len(wrong)} in all)"
        raise ShardError(mismatch(label, "shapes", f"those of {source}", got))
