"""The names and sizes of a Llama model's tensors, and how Meta divides each among shards.

One table contains Meta's names, which are also the model's attribute names, Hugging
Face's names and GGUF's names. Other model families change or add rows in the table. Table
rows that share a name in a file are parts of one stored tensor. In a layer with experts,
the feed-forward matrices exist once per expert. A format stores them as one tensor per
expert, or all experts in a stack.

The rows of wq and wk are ordered differently in Hugging Face's files: elements that are
rotated together are in the two halves of a head, whereas they are adjacent in Meta's
files. In GGUF files, the order depends on the family.

Sizes use the letters of the legend: `D` model dim, `H` query heads, `Hh` query heads x
head dim, `Kh` key/value heads x head dim, `h` head dim, `F` feed-forward dim, `V`
vocabulary, `E` experts.

Source: meta-llama/llama `llama/model.py` and meta-llama/llama-models
`models/llama3/model.py` (`ColumnParallelLinear` splits the rows of a weight stored `[out,
in]`, `RowParallelLinear` its columns); transformers `convert_llama_weights_to_hf.py` for
the embeddings of Llama 2 and 3 and for the names.
"""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from .. import ml
from ..untrusted import shown, some_of
from .errors import mismatch

# How a tensor is divided among shards. "either" is for embeddings, which are divided by
# rows in Llama 3 and by columns in Llama 2.
Split = Literal["rows", "columns", "either", "none"]
# The formats whose names differ from Meta's, as the attributes of `TensorRow`.
Layout = Literal["hugging_face", "gguf"]
EVERY_EXPERT = -1
_EXPERT = "{expert}"


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One row of the table: three names, a split, and the sizes as letters.

    If several tensors are stored as one, stacked along the first dimension, `joined`
    contains the first size of each of them, `part` is the index of this tensor, and
    `joined_in` contains the formats that store them so. If the rows of the parts, which
    then have the same number of rows, alternate in the stored tensor, `is_interleaved` is
    true. `transposed_in` contains the formats that store a plain matrix as [in, out].
    `expert` is the number of the expert to which the tensor belongs, or None. In a row
    for all experts, it is `EVERY_EXPERT`, and the names contain `{expert}` where a format
    stores one tensor per expert.
    """

    name: str
    hugging_face: str
    gguf: str
    split: Split
    sizes: tuple[str, ...]
    joined: tuple[str, ...] = ()
    part: int = 0
    joined_in: tuple[Layout, ...] = ("hugging_face", "gguf")
    is_interleaved: bool = False
    transposed_in: tuple[Layout, ...] = ()
    expert: int | None = None

    def of_expert(self, expert: int) -> Self:
        """Return the row for one expert, from a row for all experts."""
        names = (self.name, self.hugging_face, self.gguf)
        name, theirs, gguf = (each.replace(_EXPERT, str(expert)) for each in names)
        return replace(self, name=name, hugging_face=theirs, gguf=gguf, expert=expert)

    def is_joined_in(self, layout: Layout) -> bool:
        """Return whether the tensor is a part of a stored tensor."""
        return bool(self.joined) and layout in self.joined_in

    def is_copied_from(self, layout: Layout) -> bool:
        """Return whether the tensor cannot be a view of the stored tensor."""
        is_alternating = self.is_interleaved and self.is_joined_in(layout)
        return is_alternating or layout in self.transposed_in

    def rows_in(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Return the start and stop rows of this tensor within the stored tensor."""
        start = sum(sizes[letter] for letter in self.joined[: self.part])
        return start, start + sizes[self.joined[self.part]]


def tensor_row(
    name: str, hugging_face: str, gguf: str, split: Split, *sizes: str
) -> TensorRow:
    """Return the table row for a weight; the given names omit `.weight`."""
    return TensorRow(
        f"{name}.weight", f"{hugging_face}.weight", f"{gguf}.weight", split, sizes
    )


EMBEDDINGS = "tok_embeddings.weight"
OUTPUT = "output.weight"
"""The output matrix, which a model with tied embeddings lacks."""

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
"""The table rows for a Llama layer, with names relative to the layer."""

SINKS = TensorRow(
    "attention.sinks.weight", "self_attn.sinks", "attn_sinks.weight", "rows", ("H",)
)
"""The table row for the attention sinks of a layer, one score for each query head."""

LAYER_MATRICES = tuple(
    row.name.removesuffix(".weight").rpartition(".")[2]
    for row in LAYER_ROWS
    if len(row.sizes) == 2
)
"""The names of the matrices in a Llama layer, `wq` to `w3`."""

_MATRICES = {row.name for row in (*_MODEL_ROWS, *LAYER_ROWS) if len(row.sizes) == 2}
_EXPERT_PART = re.compile(r"feed_forward\.experts\.[0-9]+\.")
# Tables of rotary frequencies in Meta's and Hugging Face's files. They are not needed,
# because the hyperparameters determine them.
_HARMLESS = re.compile(
    r"(layers\.[0-9]{1,4}\.attention\.inner_attention\.)?rope\.freqs"
    r"|model\.(layers\.[0-9]{1,4}\.self_attn\.)?rotary_emb\.inv_freq"
)


def with_rows(*changed: TensorRow) -> tuple[TensorRow, ...]:
    """Return the table rows for a Llama layer, with some rows replaced or added."""
    rows = {row.name: row for row in (*LAYER_ROWS, *changed)}
    return tuple(rows.values())


def with_experts(
    router: str, matrices: Sequence[TensorRow], *changed: TensorRow
) -> tuple[TensorRow, ...]:
    """Return the table rows for a layer whose feed-forward consists of experts.

    Args:
        router: Hugging Face's name of the router, without `.weight`.
        matrices: The rows for w1, w2 and w3 of all experts.
        changed: Other rows that are replaced or added.
    """
    rows = with_rows(
        *changed,
        tensor_row("feed_forward.router", router, "ffn_gate_inp", "none", "E", "D"),
        *matrices,
    )
    replaced = {f"feed_forward.{name}.weight" for name in ("w1", "w2", "w3")}
    return tuple(row for row in rows if row.name not in replaced)


def expert_rows(gate: str, down: str, up: str) -> tuple[TensorRow, ...]:
    """Return the table rows for the matrices of all experts.

    Args:
        gate, down, up: Hugging Face's names, without `.weight`. `{expert}` stands for the
            number of the expert. A name without it is the name of a stack.
    """
    name = f"feed_forward.experts.{_EXPERT}"
    rows = (
        tensor_row(f"{name}.w1", gate, "ffn_gate_exps", "rows", "F", "D"),
        tensor_row(f"{name}.w2", down, "ffn_down_exps", "columns", "D", "F"),
        tensor_row(f"{name}.w3", up, "ffn_up_exps", "rows", "F", "D"),
    )
    return tuple(replace(row, expert=EVERY_EXPERT) for row in rows)


def joined_expert_rows(gate_and_up: str, down: str) -> tuple[TensorRow, ...]:
    """Return the rows of `expert_rows` if Hugging Face stores gate and up as one tensor.

    Args:
        gate_and_up, down: Hugging Face's names, as in `expert_rows`.
    """
    gate, last, up = expert_rows(gate_and_up, down, gate_and_up)
    joined = (
        replace(row, joined=("F", "F"), part=part, joined_in=("hugging_face",))
        for part, row in enumerate((gate, up))
    )
    return (*joined, last)


def stack_name(row: TensorRow) -> str:
    """Return the name of the stack of all experts to which a tensor belongs."""
    return row.name.replace(f".experts.{row.expert}.", ".experts.")


def _bias_of(row: TensorRow) -> TensorRow:
    """Return the table row for a matrix bias: one element per row of the matrix.

    Meta's models have no biases. A name in Hugging Face's files that does not end in
    `.weight` is continued by `_bias`.
    """
    name, gguf = (each.replace(".weight", ".bias") for each in (row.name, row.gguf))
    theirs = row.hugging_face
    is_weight = theirs.endswith(".weight")
    theirs = theirs.replace(".weight", ".bias") if is_weight else f"{theirs}_bias"
    return replace(
        row,
        name=name,
        hugging_face=theirs,
        gguf=gguf,
        split="rows",
        sizes=row.sizes[:1],
        transposed_in=(),
    )


@functools.lru_cache(maxsize=4)
def rows_of(
    layer_count: int,
    layer_rows: tuple[TensorRow, ...] = LAYER_ROWS,
    biases: tuple[str, ...] = (),
    expert_count: int = 0,
) -> tuple[TensorRow, ...]:
    """Return the table rows for all tensors in a model, with full names.

    Args:
        layer_count: The number of layers.
        layer_rows: The table rows for one layer.
        biases: The matrices in each layer that have biases, such as `wq`.
        expert_count: The number of experts in each layer.
    """
    biased = tuple(f".{matrix}.weight" for matrix in biases)
    of_layer = [
        *layer_rows,
        *(_bias_of(row) for row in layer_rows if row.name.endswith(biased)),
    ]
    # The tensors of an expert follow each other, as the parts of a stack do.
    of_layer = [
        *(row for row in of_layer if row.expert is None),
        *(
            row.of_expert(expert)
            for expert in range(expert_count)
            for row in of_layer
            if row.expert is not None
        ),
    ]
    rows = [*_MODEL_ROWS]
    for layer in range(layer_count):
        for row in of_layer:
            theirs = f"model.layers.{layer}.{row.hugging_face}"
            gguf = f"blk.{layer}.{row.gguf}"
            name = f"layers.{layer}.{row.name}"
            rows.append(replace(row, name=name, hugging_face=theirs, gguf=gguf))
    return tuple(rows)


def stored_rows(rows: Iterable[TensorRow], layout: Layout) -> dict[str, TensorRow]:
    """Return the table rows for the tensors stored in a file.

    Several tensors that are stored as one become a single row, which has Meta's name of
    the first part and the size letters of all parts. The first size of a stack of experts
    is `E`.

    Args:
        rows: The table rows.
        layout: The format of the file.

    Returns:
        A mapping from the name in the file to the table row.
    """
    stored: dict[str, TensorRow] = {}
    stacks = set[str]()
    for row in rows:
        name: str = getattr(row, layout)
        first = stored.get(name)
        if first is None:
            if row.is_joined_in(layout):
                row = replace(row, sizes=("+".join(row.joined), *row.sizes[1:]))
            if layout in row.transposed_in:
                row = replace(row, sizes=row.sizes[::-1])
            stored[name] = row
        elif first.expert != row.expert and name not in stacks:
            stacks.add(name)
            stored[name] = replace(first, sizes=("E", *first.sizes))
    return stored


def part_of(
    weight: Any, row: TensorRow, sizes: Mapping[str, int], label: str, layout: Layout
) -> Any:
    """Return the tensor that an entry describes, stored or as a view of some rows.

    A tensor of an expert is a view of a stack of all experts, if the file has one. If the
    file stores the matrix transposed, or alternates the rows of several matrices, the
    tensor is a copy.
    """
    if row.expert is not None and weight.ndim == len(row.sizes) + 1:
        if isinstance(weight, ml.QuantizedTensor):
            weight = weight.matrix(row.expert, row.name)
        else:
            weight = weight[row.expert].with_name(row.name)
    if layout in row.transposed_in:
        weight = weight.transpose(0, 1)
    if row.is_copied_from(layout):
        if row.is_joined_in(layout):
            weight = weight[row.part :: len(row.joined)]
        return weight.copy().with_name(row.name)
    if not row.is_joined_in(layout):
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


def joined_parts(
    parts: Sequence[Any], row: TensorRow, shape: tuple[int, ...], layout: Layout
) -> Any:
    """Return the stored tensor that contains several tensors. `part_of` is the inverse.

    Args:
        parts: The tensors: all parts of the first expert, then of the next expert.
        row: The table row of the first tensor.
        shape: The shape of the stored tensor.
        layout: The format of the file.
    """
    first = parts[0].shape
    joined = ml.concatenate(parts)
    if row.is_interleaved and row.is_joined_in(layout):
        joined = joined.reshape(-1, len(row.joined), *first).transpose(1, 2)
    if layout in row.transposed_in:
        joined = joined.reshape(-1, shape[-1], shape[-2]).transpose(1, 2)
    return joined.contiguous().reshape(shape)


def is_matrix(name: str) -> bool:
    """Return whether the tensor with this full name (Meta's) is a matrix.

    A router, which is small, is not one: it keeps its dtype.
    """
    if name.startswith("layers."):
        name = _EXPERT_PART.sub("feed_forward.", name.split(".", 2)[-1])
    return name in _MATRICES


def is_harmless(name: str) -> bool:
    """Return whether a tensor is a rotary frequency table, which can be ignored."""
    return _HARMLESS.fullmatch(name) is not None


def split_dim(row: TensorRow, shape: tuple[int, ...], dim: int) -> int | None:
    """Return the dimension along which a tensor is divided among shards, or None.

    Args:
        row: The table row of the tensor.
        shape: The shape in one shard. For embeddings, it is `[V/n, D]` if they are
            divided by rows, and `[V, D/n]` if they are divided by columns.
        dim: The model dimension D.
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
    """Check the names and shapes of all tensors in a model, or in one of its shards.

    Args:
        tensors: The tensors or header entries by name.
        label: The file, for error messages.
        rows: The expected tensors by name.
        sizes: The known sizes by letter. A size that is missing is inferred from the
            first tensor that has it, and is added to this dict.
        source: The file that determines `rows` and `sizes`, for error messages.
        count: The number of shards.
    """
    missing = [n for n, row in rows.items() if n not in tensors and row.name != OUTPUT]
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
                # If there are more shards than heads, several shards store the same head.
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
