"""The tensors of a Meta checkpoint: their names, their sizes, and how each is split over shards.

Sizes are written with the letters of the legend: `D` model dim, `Hh` query heads x head dim, `Kh`
key/value heads x head dim, `F` feed-forward dim, `V` vocabulary.

Source: meta-llama/llama `llama/model.py` and meta-llama/llama-models `models/llama3/model.py`
(`ColumnParallelLinear` splits the rows of a weight stored `[out, in]`, `RowParallelLinear` its
columns); transformers `convert_llama_weights_to_hf.py` for the embeddings of Llama 2 and 3.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "Split",
    "TensorRow",
    "feed_forward_dim",
    "is_harmless",
    "row_of",
    "rows_of",
    "split_dim",
]


class Split(enum.Enum):
    """How a tensor is divided over the shards of a model."""

    ROWS = "rows"
    COLUMNS = "columns"
    REPLICATED = "replicated"
    # Llama 2 splits the embeddings by columns, Llama 3 by rows; the shape of a shard tells.
    EMBEDDINGS = "rows or columns"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One line of the table: a name, its split, and its sizes in letters of the legend."""

    name: str
    split: Split
    sizes: tuple[str, ...]
    optional: bool = False


_MODEL_ROWS = (
    TensorRow("tok_embeddings.weight", Split.EMBEDDINGS, ("V", "D")),
    TensorRow("norm.weight", Split.REPLICATED, ("D",)),
    # Absent where the embeddings serve as output layer too.
    TensorRow("output.weight", Split.ROWS, ("V", "D"), optional=True),
)
_LAYER_ROWS = (
    TensorRow("attention_norm.weight", Split.REPLICATED, ("D",)),
    TensorRow("attention.wq.weight", Split.ROWS, ("Hh", "D")),
    TensorRow("attention.wk.weight", Split.ROWS, ("Kh", "D")),
    TensorRow("attention.wv.weight", Split.ROWS, ("Kh", "D")),
    TensorRow("attention.wo.weight", Split.COLUMNS, ("D", "Hh")),
    TensorRow("ffn_norm.weight", Split.REPLICATED, ("D",)),
    TensorRow("feed_forward.w1.weight", Split.ROWS, ("F", "D")),
    TensorRow("feed_forward.w2.weight", Split.COLUMNS, ("D", "F")),
    TensorRow("feed_forward.w3.weight", Split.ROWS, ("F", "D")),
)
_BY_NAME = {row.name: row for row in _MODEL_ROWS}
_BY_LAYER_NAME = {row.name: row for row in _LAYER_ROWS}

_LAYER_NAME = re.compile(r"layers\.(?:0|[1-9][0-9]{0,3})\.([a-z0-9_.]+)", re.ASCII)
# Tables of rotary frequencies, which follow from params.json.
_HARMLESS = re.compile(r"(layers\.[0-9]{1,4}\.attention\.inner_attention\.)?rope\.freqs")


def rows_of(layer_count: int) -> Iterator[tuple[str, TensorRow]]:
    """Give (full name, row) of each tensor that a model of so many layers has."""
    for row in _MODEL_ROWS:
        yield row.name, row
    for layer in range(layer_count):
        for row in _LAYER_ROWS:
            yield f"layers.{layer}.{row.name}", row


def row_of(name: str) -> TensorRow | None:
    """Look up the row of a full name, for example `layers.3.attention.wq.weight`."""
    match = _LAYER_NAME.fullmatch(name)
    return _BY_LAYER_NAME.get(match[1]) if match else _BY_NAME.get(name)


def is_harmless(name: str) -> bool:
    """Tell whether a tensor outside the table may be ignored: `rope.freqs`, alone or per layer."""
    return _HARMLESS.fullmatch(name) is not None


def split_dim(row: TensorRow, shape: tuple[int, ...], dim: int) -> int | None:
    """Say which dimension of a shard's tensor is a part of the whole.

    Args:
        row: the tensor's row of the table.
        shape: the shard's shape.
        dim: `D`, which tells an embedding split by rows `[V/n, D]` from one by columns `[V, D/n]`.

    Returns:
        0, 1, or None for a tensor that each shard holds whole.
    """
    if row.split is Split.REPLICATED:
        return None
    if row.split is Split.EMBEDDINGS:
        return 0 if shape[-1:] == (dim,) else 1
    return 0 if row.split is Split.ROWS else 1


def feed_forward_dim(params: Mapping[str, object]) -> int | None:
    """Compute `F` as Meta does: 2/3 of 4 D, times the multiplier, rounded up to `multiple_of`.

    Args:
        params: checked parameters.

    Returns:
        The size, or None without `multiple_of`; then the tensors alone say it.
    """
    dim, multiple_of = params["dim"], params.get("multiple_of")
    if not isinstance(dim, int) or not isinstance(multiple_of, int):
        return None
    hidden = int(2 * (4 * dim) / 3)
    multiplier = params.get("ffn_dim_multiplier")
    if isinstance(multiplier, int | float):
        hidden = int(multiplier * hidden)
    return multiple_of * ((hidden + multiple_of - 1) // multiple_of)
