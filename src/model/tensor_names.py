"""The tensors that a checkpoint must hold: one name and one shape for each weight."""

import re
from collections.abc import Iterator, Mapping

from .. import ml
from .args import ModelArgs
from .errors import ModelConfigError

_SHOWN = 5
# Tables of frequencies that older checkpoints carry along; they are computed here.
_HARMLESS = re.compile(r"(.*\.)?rope\.freqs")
_WEIGHT_DTYPES = (ml.bfloat16, ml.float16, ml.float32)


def expected_shapes(args: ModelArgs) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields (checkpoint key, shape) of every weight, in the order in which they are used."""
    D, F, V = args.dim, args.ffn_dim, args.vocab_size
    query_rows, key_rows = args.n_heads * args.head_dim, args.n_kv_heads * args.head_dim
    yield "tok_embeddings.weight", (V, D)
    for layer in range(args.n_layers):
        prefix = f"layers.{layer}"
        yield f"{prefix}.attention_norm.weight", (D,)
        yield f"{prefix}.attention.wq.weight", (query_rows, D)
        yield f"{prefix}.attention.wk.weight", (key_rows, D)
        yield f"{prefix}.attention.wv.weight", (key_rows, D)
        yield f"{prefix}.attention.wo.weight", (D, query_rows)
        yield f"{prefix}.ffn_norm.weight", (D,)
        yield f"{prefix}.feed_forward.w1.weight", (F, D)
        yield f"{prefix}.feed_forward.w3.weight", (F, D)
        yield f"{prefix}.feed_forward.w2.weight", (D, F)
    yield "norm.weight", (D,)
    yield "output.weight", (V, D)


def check_shapes(args: ModelArgs, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Compares the tensors of a checkpoint with the sizes that its parameters state.

    `output.weight` may be absent: the embedding table then serves as output (tied embeddings).

    Returns:
        The names of extra tensors that are harmless and not used.

    Raises:
        ModelConfigError: Tensors are missing, extra or of another shape; the text counts them
            and lists the first five.
    """
    expected = dict(expected_shapes(args))
    problems = [
        f"{name}: missing, expected {list(shape)}"
        for name, shape in expected.items()
        if name not in shapes and name != "output.weight"
    ]
    missing = len(problems)
    problems += [
        f"{name}: expected {list(shape)}, got {list(shapes[name])}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    ]
    wrong = len(problems) - missing
    unused = [name for name in shapes if name not in expected]
    harmless = tuple(name for name in unused if _HARMLESS.fullmatch(name))
    problems += [f"{_escaped(name)}: extra" for name in unused if name not in harmless]
    extra = len(unused) - len(harmless)
    if problems:
        shown = "; ".join(problems[:_SHOWN]) + ("; ..." if len(problems) > _SHOWN else "")
        raise ModelConfigError(
            f"tensors: expected those that params.json describes, got {missing} missing, "
            f"{wrong} of another shape, {extra} extra: {shown}"
        )
    return harmless


def weight_dtype(dtypes: Mapping[str, ml.DType]) -> ml.DType:
    """Returns the one dtype that all matrices have.

    Args:
        dtypes: The dtype of each matrix (the tensors of two dimensions) by its checkpoint key.

    Raises:
        ModelConfigError: There is no matrix, they differ, or they are no floating-point numbers.
    """
    names = {dtype.name for dtype in dtypes.values()}
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "no matrix at all"
        raise ModelConfigError(f"tensors: expected matrices of one dtype, got {found}")
    dtype = next(iter(dtypes.values()))
    if dtype not in _WEIGHT_DTYPES:
        allowed = ", ".join(allowed.name for allowed in _WEIGHT_DTYPES)
        raise ModelConfigError(f"tensors: expected one of {allowed}, got {dtype.name}")
    return dtype


def _escaped(name: str) -> str:
    """Shows a name that comes from a file, without control characters and not at any length."""
    shown = ascii(name)[1:-1]
    return shown if len(shown) <= 80 else shown[:77] + "..."
