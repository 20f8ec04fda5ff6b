"""The tensors of a Llama: names, sizes, and Meta's split of each over shards.

One table has Meta's names, which are the attributes of the model, Hugging Face's and
GGUF's. The rows of wq and wk have another order in Hugging Face's files: the two halves
of each head, where Meta has pairs of neighbours. The order in GGUF files depends on the
family. A family next to Llama changes or adds rows of the table. A tensor of the model
may be a part of a stored tensor that joins several: its parts are the rows of the table
with its name.

Sizes are written with the letters of the legend: `D` model dim, `Hh` query heads x head
dim, `Kh` key/value heads x head dim, `h` head dim, `F` feed-forward dim, `V` vocabulary.

Source: meta-llama/llama `llama/model.py` and meta-llama/llama-models
`models/llama3/model.py` (`ColumnParallelLinear` splits the rows of a weight stored `[out,
in]`, `RowParallelLinear` its columns); transformers `convert_llama_weights_to_hf.py` for
the embeddings of Llama 2 and 3 and for the names.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from .. import ml
from ..untrusted import shown, some_of
from .errors import mismatch

# The division of a tensor among shards; embeddings by rows in Llama 3, by columns in
# Llama 2.
Split = Literal["rows", "columns", "either", "none"]


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row of the table: three names, a split, and the sizes in letters.

    A tensor that is stored together with others, one below another, has the letters of
    all their rows as `joined`, and its own index among them as `part`.
    """

    name: str
    hugging_face: str
    gguf: str
    split: Split
    sizes: tuple[str, ...]
    joined: tuple[str, ...] = ()
    part: int = 0

    def rows_in(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the first row of the tensor in the stored one, and its end."""
        start = sum(sizes[letter] for letter in self.joined[: self.part])
        return start, start + sizes[self.joined[self.part]]


def tensor_row(
    name: str, hugging_face: str, gguf: str, split: Split, *sizes: str
) -> TensorRow:
    """Return a row of the table for a weight, whose names omit `.weight`."""
    return TensorRow(
        f"{name}.weight", f"{hugging_face}.weight", f"{gguf}.weight", split, sizes
    )


_MODEL_ROWS = (
    tensor_row("tok_embeddings", "model.embed_tokens", "token_embd", "either", "V", "D"),
    tensor_row("norm", "model.norm", "output_norm", "none", "D"),
    tensor_row("output", "lm_head", "output", "rows", "V", "D"),
)
LAYER_ROWS = (
    tensor_row("attention_norm", "input_layernorm", "attn_norm", "none", "D"),
    tensor_row("attention.wq", "self_attn.q_proj", "attn_q", "rows", "Hh", "D"),
    tensor_row("attention.wk", "self_attn.k_proj", "attn_k", "rows", "Kh", "D"),
    tensor_row("attention.wv", "self_attn.v_proj", "attn_v", "rows", "Kh", "D"),
    tensor_row("attention.wo", "self_attn.o_proj", "attn_output", "columns", "D", "Hh"),
    tensor_row("ffn_norm", "post_attention_layernorm", "ffn_norm", "none", "D"),
    tensor_row("feed_forward.w1", "mlp.gate_proj", "ffn_gate", "rows", "F", "D"),
    tensor_row("feed_forward.w2", "mlp.down_proj", "ffn_down", "columns", "D", "F"),
    tensor_row("feed_forward.w3", "mlp.up_proj", "ffn_up", "rows", "F", "D"),
)
"""The tensors of a layer of Llama, with names inside of the layer."""

LAYER_MATRICES = tuple(
    row.name.removesuffix(".weight").rpartition(".")[2]
    for row in LAYER_ROWS
    if len(row.sizes) == 2
)
"""The matrices of a layer of Llama, `wq` to `w3`."""

_MATRICES = {row.name for row in (*_MODEL_ROWS, *LAYER_ROWS) if len(row.sizes) == 2}
# Tables of rotary frequencies by Meta and Hugging Face, which follow from the
# hyperparameters.
_HARMLESS = re.compile(
    r"(layers\.[0-9]{1,4}\.attention\.inner_attention\.)?rope\.freqs"
    r"|model\.(layers\.[0-9]{1,4}\.self_attn\.)?rotary_emb\.inv_freq"
)


def with_rows(*changed: TensorRow) -> tuple[TensorRow, ...]:
    """Return the rows of a layer of Llama with some rows replaced or added."""
    rows = {row.name: row for row in (*LAYER_ROWS, *changed)}
    return tuple(rows.values())


def _bias_of(row: TensorRow) -> TensorRow:
    """Return the row of the bias of a matrix, one element per row.

    Meta's models have no biases.
    """
    names = (row.name, row.hugging_face, row.gguf)
    name, theirs, gguf = (each.replace(".weight", ".bias") for each in names)
    return TensorRow(name, theirs, gguf, "rows", row.sizes[:1])


@functools.lru_cache(maxsize=4)
def rows_of(
    layer_count: int,
    layer_rows: tuple[TensorRow, ...] = LAYER_ROWS,
    biases: tuple[str, ...] = (),
) -> tuple[TensorRow, ...]:
    """Return the rows of all tensors of a model, with full names.

    Args:
        layer_count: The number of layers.
        layer_rows: The rows of a layer.
        biases: The matrices of a layer that have biases, such as `wq`.
    """
    biased = tuple(f".{matrix}.weight" for matrix in biases)
    of_layer = [
        *layer_rows,
        *(_bias_of(row) for row in layer_rows if row.name.endswith(biased)),
    ]
    rows = [*_MODEL_ROWS]
    for layer in range(layer_count):
        for row in of_layer:
            theirs = f"model.layers.{layer}.{row.hugging_face}"
            gguf = f"blk.{layer}.{row.gguf}"
            name = f"layers.{layer}.{row.name}"
            rows.append(replace(row, name=name, hugging_face=theirs, gguf=gguf))
    return tuple(rows)


def stored_rows(
    rows: Iterable[TensorRow], name_of: Callable[[TensorRow], str]
) -> dict[str, TensorRow]:
    """Return the rows of the stored tensors of a file, by their names there.

    A stored tensor of several parts has the name of its first part, and the letters of
    all rows.
    """
    stored: dict[str, TensorRow] = {}
    for row in rows:
        if row.joined:
            row = replace(row, sizes=("+".join(row.joined), *row.sizes[1:]))
        stored.setdefault(name_of(row), row)
    return stored


def part_of(weight: Any, row: TensorRow, sizes: Mapping[str, int], label: str) -> Any:
    """Return the tensor of a row: the stored tensor, or a view of some of its rows."""
    if not row.joined:
        return weight
    start, stop = row.rows_in(sizes)
    cut = weight.rows if isinstance(weight, ml.QuantizedTensor) else weight.slice
    try:
        return cut(start, stop).with_name(row.name)
    except ml.ShapeError:
        rule = f"whole blocks of {weight.dtype} in rows {start} to {stop}"
        raise mismatch(
            label, f"tensor {shown(row.name)}", rule, "parts of blocks"
        ) from None


def is_matrix(name: str) -> bool:
    """Return whether a full name by Meta is the name of a matrix."""
    return (name.split(".", 2)[-1] if name.startswith("layers.") else name) in _MATRICES


def is_harmless(name: str) -> bool:
    """Return whether a tensor outside the table is a rotary table, which is ignored."""
    return _HARMLESS.fullmatch(name) is not None


def split_dim(row: TensorRow, shape: tuple[int, ...], dim: int) -> int | None:
    """Return the dimension in which a shard's tensor is a part, or None if it is whole.

    Embeddings split by rows are `[V/n, D]`, embeddings split by columns `[V, D/n]`; `dim`
    is D.
    """
    if row.split == "either":
        return 0 if shape[-1:] == (dim,) else 1
    return {"rows": 0, "columns": 1}.get(row.split)


def check_tensors(
    tensors: Mapping[str, Any],
    label: str,
    rows: Mapping[str, TensorRow],
    sizes: dict[str, int],
    source: str,
    count: int = 1,
) -> None:
    """Check names and shapes of the tensors of a model, or of one of `count` shards.

    The values are tensors, or entries of a header. An unknown size is taken from the
    first tensor with it, and is added to `sizes`. `source` names the origin of rows and
    sizes for errors.
    """
    missing = [
        n for n, row in rows.items() if n not in tensors and row.name != "output.weight"
    ]
    if missing:
        rule = f"{len(rows)} tensors by {source}"
        raise mismatch(label, "tensors", rule, f"without {some_of(missing)}")
    if extra := [name for name in tensors if name not in rows and not is_harmless(name)]:
        rule = f"only tensors of the layers by {source}"
        raise mismatch(label, "tensors", rule, f"also {some_of(extra)}")
    wrong = []
    for name, row in rows.items():
        if (tensor := tensors.get(name)) is None:
            continue
        axis = split_dim(row, tensor.shape, sizes["D"]) if count > 1 else None
        expected: list[float] = []
        for position, letter in enumerate(row.sizes):
            parts = count if position == axis else 1
            if letter == "Kh" and parts > 1 and tensor.shape[:1] == (sizes.get("h"),):
                heads = sizes["Kh"] // sizes["h"]
                # More shards may store copies of each head.
                parts = parts if parts % heads else heads
            if "+" in letter:
                expected.append(sum(sizes.get(each, 0) for each in letter.split("+")))
                continue
            if letter not in sizes and position < len(tensor.shape):
                sizes[letter] = tensor.shape[position] * parts
            expected.append(sizes.get(letter, 0) / parts)
        if list(tensor.shape) != expected or 0 in tensor.shape:
            whole = [int(size) if size == int(size) else size for size in expected]
            wrong.append(f"{shown(name)} {list(tensor.shape)} instead of {whole}")
    if wrong:
        raise mismatch(label, "shapes", f"the shapes by {source}", some_of(wrong, str))
