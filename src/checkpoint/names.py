"""The tensors of a Llama: their names, their sizes, and how Meta splits each over shards.

One table has Meta's names, which are those of the model's attributes, and Hugging Face's. The rows
of wq and wk lie in another order in Hugging Face's files: the two halves of each head, where Meta
has pairs of neighbours. Nothing here moves them; `ml.rotary_embedding` pairs them as they lie.

Sizes are written with the letters of the legend: `D` model dim, `Hh` query heads x head dim, `Kh`
key/value heads x head dim, `F` feed-forward dim, `V` vocabulary.

Source: meta-llama/llama `llama/model.py` and meta-llama/llama-models `models/llama3/model.py`
(`ColumnParallelLinear` splits the rows of a weight stored `[out, in]`, `RowParallelLinear` its
columns); transformers `convert_llama_weights_to_hf.py` for the embeddings of Llama 2 and 3 and for
the names.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

__all__ = [
    "Split",
    "TensorRow",
    "hugging_face_names",
    "is_harmless",
    "is_matrix",
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
    """One line of the table: two names, a split, and the sizes in letters of the legend."""

    name: str
    hugging_face: str
    split: Split
    sizes: tuple[str, ...]
    optional: bool = False


_MODEL_ROWS = (
    TensorRow("tok_embeddings.weight", "model.embed_tokens.weight", Split.EMBEDDINGS, ("V", "D")),
    TensorRow("norm.weight", "model.norm.weight", Split.REPLICATED, ("D",)),
    # Absent where the embeddings serve as output layer too.
    TensorRow("output.weight", "lm_head.weight", Split.ROWS, ("V", "D"), optional=True),
)
_LAYER_ROWS = (
    TensorRow("attention_norm.weight", "input_layernorm.weight", Split.REPLICATED, ("D",)),
    TensorRow("attention.wq.weight", "self_attn.q_proj.weight", Split.ROWS, ("Hh", "D")),
    TensorRow("attention.wk.weight", "self_attn.k_proj.weight", Split.ROWS, ("Kh", "D")),
    TensorRow("attention.wv.weight", "self_attn.v_proj.weight", Split.ROWS, ("Kh", "D")),
    TensorRow("attention.wo.weight", "self_attn.o_proj.weight", Split.COLUMNS, ("D", "Hh")),
    TensorRow("ffn_norm.weight", "post_attention_layernorm.weight", Split.REPLICATED, ("D",)),
    TensorRow("feed_forward.w1.weight", "mlp.gate_proj.weight", Split.ROWS, ("F", "D")),
    TensorRow("feed_forward.w2.weight", "mlp.down_proj.weight", Split.COLUMNS, ("D", "F")),
    TensorRow("feed_forward.w3.weight", "mlp.up_proj.weight", Split.ROWS, ("F", "D")),
)
# Each matrix of a layer may have a bias as long as its rows are many; Meta's models have none.
_BIAS_ROWS = {
    row.name.split(".")[1]: TensorRow(
        row.name.replace(".weight", ".bias"),
        row.hugging_face.replace(".weight", ".bias"),
        Split.ROWS,
        row.sizes[:1],
    )
    for row in _LAYER_ROWS
    if len(row.sizes) == 2
}
_BY_NAME = {row.name: row for row in _MODEL_ROWS}
_BY_LAYER_NAME = {row.name: row for row in _LAYER_ROWS}

_LAYER_NAME = re.compile(r"layers\.(?:0|[1-9][0-9]{0,3})\.([a-z0-9_.]+)", re.ASCII)
# Tables of rotary frequencies, which follow from the hyperparameters: Meta's and Hugging Face's.
_HARMLESS = re.compile(
    r"(layers\.[0-9]{1,4}\.attention\.inner_attention\.)?rope\.freqs"
    r"|model\.(layers\.[0-9]{1,4}\.self_attn\.)?rotary_emb\.inv_freq"
)


def rows_of(layer_count: int, biases: Collection[str] = ()) -> Iterator[tuple[str, TensorRow]]:
    """Give (full name, row) of each tensor that a model has.

    Args:
        layer_count: how many layers it has.
        biases: the matrices that have biases, `wq` to `w3`.
    """
    for row in _MODEL_ROWS:
        yield row.name, row
    for layer in range(layer_count):
        for row in _layer_rows(biases):
            yield f"layers.{layer}.{row.name}", row


def hugging_face_names(layer_count: int, biases: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Give (name in Hugging Face's files, Meta's name) of each tensor, as `rows_of` orders them."""
    for row in _MODEL_ROWS:
        yield row.hugging_face, row.name
    for layer in range(layer_count):
        for row in _layer_rows(biases):
            yield f"model.layers.{layer}.{row.hugging_face}", f"layers.{layer}.{row.name}"


def _layer_rows(biases: Collection[str]) -> tuple[TensorRow, ...]:
    return _LAYER_ROWS + tuple(row for matrix, row in _BIAS_ROWS.items() if matrix in biases)


def row_of(name: str) -> TensorRow | None:
    """Look up the row of a full name of Meta's, for example `layers.3.attention.wq.weight`."""
    match = _LAYER_NAME.fullmatch(name)
    return _BY_LAYER_NAME.get(match[1]) if match else _BY_NAME.get(name)


def is_matrix(name: str) -> bool:
    """Tell whether a full name of Meta's is that of a matrix."""
    row = row_of(name)
    return row is not None and len(row.sizes) == 2


def is_harmless(name: str) -> bool:
    """Tell whether a tensor outside the table may be ignored: rotary tables, alone or per layer."""
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
