"""The tensors of a Llama: their names, their sizes, and how Meta splits each over shards.

One table has Meta's names, which are those of the model's attributes, and Hugging Face's; another
one has GGUF's. The rows of wq and wk have another order in Hugging Face's files: the two halves of
each head, where Meta has pairs of neighbours. GGUF files have either, which follows from their
architecture. Nothing here moves rows; `ml.rotary_embedding` pairs either order. What the families
next to Llama have beside its tensors, or under another name, are the `LayerParts`.

Sizes are written with the letters of the legend: `D` model dim, `Hh` query heads x head dim, `Kh`
key/value heads x head dim, `h` head dim, `F` feed-forward dim, `V` vocabulary.

Source: meta-llama/llama `llama/model.py` and meta-llama/llama-models `models/llama3/model.py`
(`ColumnParallelLinear` splits the rows of a weight stored `[out, in]`, `RowParallelLinear` its
columns); transformers `convert_llama_weights_to_hf.py` for the embeddings of Llama 2 and 3 and for
the names.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from ..untrusted import shown, some_of
from .errors import mismatch


class Sharding(enum.Enum):
    """How a tensor is divided over the shards of a model."""

    ROWS = "rows"
    COLUMNS = "columns"
    REPLICATED = "replicated"
    # Llama 2 splits the embeddings by columns, Llama 3 by rows; the shape of a shard says which.
    EMBEDDINGS = "rows or columns"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One line of the table: two names, a split, and the sizes in letters of the legend."""

    name: str
    hugging_face: str
    split: Sharding
    sizes: tuple[str, ...]
    optional: bool = False


_MODEL_ROWS = (
    TensorRow(
        "tok_embeddings.weight", "model.embed_tokens.weight", Sharding.EMBEDDINGS, ("V", "D")
    ),
    TensorRow("norm.weight", "model.norm.weight", Sharding.REPLICATED, ("D",)),
    # Absent where the embeddings serve as output layer too.
    TensorRow("output.weight", "lm_head.weight", Sharding.ROWS, ("V", "D"), optional=True),
)
_LAYER_ROWS = (
    TensorRow("attention_norm.weight", "input_layernorm.weight", Sharding.REPLICATED, ("D",)),
    TensorRow("attention.wq.weight", "self_attn.q_proj.weight", Sharding.ROWS, ("Hh", "D")),
    TensorRow("attention.wk.weight", "self_attn.k_proj.weight", Sharding.ROWS, ("Kh", "D")),
    TensorRow("attention.wv.weight", "self_attn.v_proj.weight", Sharding.ROWS, ("Kh", "D")),
    TensorRow("attention.wo.weight", "self_attn.o_proj.weight", Sharding.COLUMNS, ("D", "Hh")),
    TensorRow("ffn_norm.weight", "post_attention_layernorm.weight", Sharding.REPLICATED, ("D",)),
    TensorRow("feed_forward.w1.weight", "mlp.gate_proj.weight", Sharding.ROWS, ("F", "D")),
    TensorRow("feed_forward.w2.weight", "mlp.down_proj.weight", Sharding.COLUMNS, ("D", "F")),
    TensorRow("feed_forward.w3.weight", "mlp.up_proj.weight", Sharding.ROWS, ("F", "D")),
)
# Each matrix of a layer may have a bias, one element per row; Meta's models have none.
_BIAS_ROWS = {
    row.name.split(".")[1]: TensorRow(
        row.name.replace(".weight", ".bias"),
        row.hugging_face.replace(".weight", ".bias"),
        Sharding.ROWS,
        row.sizes[:1],
    )
    for row in _LAYER_ROWS
    if len(row.sizes) == 2
}
# Norms of queries and keys: Qwen3's of each head by itself, OLMo 2's of all heads together.
_QUERY_KEY_NORM_ROWS = {
    kind: tuple(
        TensorRow(
            f"attention.{x}_norm.weight",
            f"self_attn.{x}_norm.weight",
            Sharding.REPLICATED,
            ("h" if kind == "head" else all_heads,),
        )
        for x, all_heads in (("q", "Hh"), ("k", "Kh"))
    )
    for kind in ("head", "all")
}
# OLMo 2 has the norms of a layer at the end of attention and feed-forward.
_NAMES_AFTER = {
    "input_layernorm.weight": "post_attention_layernorm.weight",
    "post_attention_layernorm.weight": "post_feedforward_layernorm.weight",
}
# What GGUF calls them, without the layer before and `.weight` or `.bias` after the name.
_GGUF_NAMES = {
    "tok_embeddings": "token_embd", "norm": "output_norm", "output": "output",
    "attention_norm": "attn_norm", "attention.wq": "attn_q", "attention.wk": "attn_k",
    "attention.wv": "attn_v", "attention.wo": "attn_output", "ffn_norm": "ffn_norm",
    "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
    "attention.q_norm": "attn_q_norm", "attention.k_norm": "attn_k_norm",
}  # fmt: skip
_GGUF_NAMES_AFTER = {"attention_norm": "post_attention_norm", "ffn_norm": "post_ffw_norm"}
_BY_NAME = {row.name: row for row in _MODEL_ROWS}
_BY_LAYER_NAME = {row.name: row for row in _LAYER_ROWS}

_LAYER_NAME = re.compile(r"layers\.(?:0|[1-9][0-9]{0,3})\.([a-z0-9_.]+)", re.ASCII)
# Tables of rotary frequencies, which follow from the hyperparameters: Meta's and Hugging Face's.
_HARMLESS = re.compile(
    r"(layers\.[0-9]{1,4}\.attention\.inner_attention\.)?rope\.freqs"
    r"|model\.(layers\.[0-9]{1,4}\.self_attn\.)?rotary_emb\.inv_freq"
)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """In what the tensors of a family's layers differ from those of Llama."""

    biases: tuple[str, ...] = ()  # the matrices that have biases, `wq` to `w3`
    query_key_norm: Literal["head", "all"] | None = None  # what queries and keys are normed over
    norms_after: bool = False  # those of attention and feed-forward, not before them


LLAMA_PARTS = LayerParts()


def rows_of(layer_count: int, parts: LayerParts = LLAMA_PARTS) -> Iterator[tuple[str, TensorRow]]:
    """Give (full name, row) of each tensor that a model has; `parts` as in `ModelArgs`."""
    biases = (row for matrix, row in _BIAS_ROWS.items() if matrix in parts.biases)
    norms = _QUERY_KEY_NORM_ROWS.get(parts.query_key_norm or "", ())
    layer_rows = (*_LAYER_ROWS, *biases, *norms)
    for row in _MODEL_ROWS:
        yield row.name, row
    for layer in range(layer_count):
        for row in layer_rows:
            yield f"layers.{layer}.{row.name}", row


def hugging_face_names(
    layer_count: int, parts: LayerParts = LLAMA_PARTS
) -> Iterator[tuple[str, str]]:
    """Give (name in Hugging Face's files, Meta's name) of each tensor, as `rows_of` orders them."""
    others = _NAMES_AFTER if parts.norms_after else {}
    for name, row in rows_of(layer_count, parts):
        layer = name.removesuffix(row.name)
        theirs = others.get(row.hugging_face, row.hugging_face)
        yield f"model.{layer}{theirs}" if layer else theirs, name


def gguf_names(layer_count: int, parts: LayerParts = LLAMA_PARTS) -> Iterator[tuple[str, str]]:
    """Give (name in GGUF files, Meta's name) of each tensor, as `rows_of` orders them."""
    names = _GGUF_NAMES | (_GGUF_NAMES_AFTER if parts.norms_after else {})
    for name, row in rows_of(layer_count, parts):
        stem, _, ending = row.name.rpartition(".")
        layer = name.removesuffix(row.name).replace("layers", "blk")
        yield f"{layer}{names[stem]}.{ending}", name


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
        row: The tensor's row of the table.
        shape: The shard's shape.
        dim: `D`; an embedding split by rows is `[V/n, D]`, one split by columns `[V, D/n]`.

    Returns:
        0, 1, or None for a tensor that each shard holds whole.
    """
    if row.split is Sharding.REPLICATED:
        return None
    if row.split is Sharding.EMBEDDINGS:
        return 0 if shape[-1:] == (dim,) else 1
    return 0 if row.split is Sharding.ROWS else 1


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
        tensors: What there is, by the names of the file.
        label: What to call the file in errors.
        rows: The table of the model, by the names of the file.
        source: The file that the table follows from.

    Raises:
        CheckpointError: Missing or extra tensors, the first five and how many.
    """
    missing = [name for name, row in rows.items() if name not in tensors and not row.optional]
    if missing:
        rule = f"{len(rows)} tensors as {source} says"
        raise mismatch(label, "tensors", rule, f"without {some_of(missing)}")
    extra = [name for name in tensors if name not in rows and not is_harmless(name)]
    if extra:
        rule = f"only those of the layers that {source} says"
        raise mismatch(label, "tensors", rule, f"also {some_of(extra)}")


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
        tensors, label, rows, source: As for `check_names`.
        sizes: Known sizes by letter of the table; those found out are added.
        count: The number of shards that the model is split over.

    Raises:
        CheckpointError: Other shapes, the first five and how many.
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
            if letter == "Kh" and parts > 1 and tensor.shape[0] == sizes.get("h"):
                parts = sizes["Kh"] // sizes["h"]  # more shards than heads may store copies of one
            if letter not in sizes and position < len(tensor.shape):
                sizes[letter] = tensor.shape[position] * parts
            expected.append(sizes.get(letter, 0) / parts)
        if list(tensor.shape) != expected or 0 in tensor.shape:
            whole = [int(size) if size == int(size) else size for size in expected]
            wrong.append(f"{shown(name)} {list(tensor.shape)} instead of {whole}")
    if wrong:
        raise mismatch(label, "shapes", f"those of {source}", some_of(wrong, str))
