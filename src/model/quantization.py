"""Which weights of a model are quantised, into what, and how large they are then.

The matrices of the layers and the output matrix take the format that is asked for, because every
token reads all of them. With tied embeddings the output becomes a matrix of its own. The embedding
table stays as it is, because a token reads one row of it; vectors stay, because they are few.
llama.cpp keeps the output finer than the layers, and bitsandbytes does not quantise it unless it is
told to; `tests/bench/quality.py` measures what either costs.
"""

from collections.abc import Callable, Mapping

from .. import ml
from ..checkpoint.names import row_of
from .errors import ModelError

QUANTIZATIONS: dict[str, ml.BlockDType] = {"nf4": ml.nf4, "int8": ml.int8_block}
OUTPUT = "output.weight"
EMBEDDINGS = "tok_embeddings.weight"
_TOGETHER = (
    ("attention.wq", "attention.wk", "attention.wv"),
    ("feed_forward.w1", "feed_forward.w3"),
)

# Called with the number of matrices that are done, and with that of all.
QuantizationProgress = Callable[[int, int], None]


def quantization_of(name: str) -> ml.BlockDType:
    """Return the dtype that a name of the command line stands for.

    Raises:
        ModelError: There is none of this name.
    """
    if name not in QUANTIZATIONS:
        raise ModelError(
            f"[quantize] quantize must be one of {', '.join(QUANTIZATIONS)}: got {ascii(name)[:80]}"
        )
    return QUANTIZATIONS[name]


def dtype_in_model(name: str, dtype: ml.BlockDType) -> ml.BlockDType | None:
    """Return what a weight is quantised into, or None where it stays as it is.

    Args:
        name: Its checkpoint key.
        dtype: What matrices become.
    """
    row = row_of(name)
    is_matrix = row is not None and len(row.sizes) == 2
    return dtype if is_matrix and name != EMBEDDINGS else None


def quantize_weights(
    tensors: Mapping[str, ml.Weight],
    dtype: ml.BlockDType,
    progress: QuantizationProgress | None = None,
) -> dict[str, ml.Weight]:
    """Quantise the weights of a model one after the other.

    Beside what is made, no more than one weight is held at any time, and none that is mapped.

    Args:
        tensors: The plain weights by checkpoint key. Each is looked up once.
        dtype: What matrices become.
        progress: Called before the first matrix and after each.

    Raises:
        TensorError: A weight has elements that are NaN or infinite.
    """
    names = {*tensors, OUTPUT}
    total = sum(dtype_in_model(name, dtype) is not None for name in names)
    done = 0
    result: dict[str, ml.Weight] = {}

    def quantized(name: str, weight: ml.Tensor, into: ml.BlockDType) -> ml.QuantizedTensor:
        nonlocal done
        if progress is not None:
            progress(done, total)
        done += 1
        return quantize_weight(name, weight, into)

    for name in tensors:
        weight = tensors[name]
        assert isinstance(weight, ml.Tensor)
        into = dtype_in_model(name, dtype)
        result[name] = weight if into is None else quantized(name, weight, into)
    if OUTPUT not in result:
        embeddings = result[EMBEDDINGS]
        assert isinstance(embeddings, ml.Tensor)
        result[OUTPUT] = quantized(OUTPUT, embeddings, dtype)
    if progress is not None:
        progress(total, total)
    return result


def quantize_weight(name: str, weight: ml.Tensor, dtype: ml.BlockDType) -> ml.QuantizedTensor:
    """Quantise one weight.

    Raises:
        ModelError: It has elements that are NaN or infinite; the text names it.
    """
    try:
        return ml.quantize(weight, dtype).with_name(name)
    except ml.TensorMemoryError:
        raise
    except ml.TensorError as error:
        raise ModelError(f"tensor {ascii(name)[:80]}: {error}") from None


def match_neighbours(tensors: Mapping[str, ml.Weight], dtype: ml.DType) -> dict[str, ml.Weight]:
    """Make the matrices that are multiplied together plain where only some are quantised.

    Files may leave out any matrix. Products with int8 change as little by this as
    `ml.linear_transformation` says; weights of nf4 are rounded to the dtype of the activations, as
    in bitsandbytes.

    Args:
        tensors: The weights by checkpoint key.
        dtype: That of the activations.

    Returns:
        The weights; those that were dequantised lie in memory.
    """
    result = dict(tensors)
    for name in tensors:
        layer, found, _ = name.partition(".attention.wq.weight")
        if not found:
            continue
        for group in _TOGETHER:
            names = [f"{layer}.{each}.weight" for each in group]
            weights = [tensors[each] for each in names]
            if len({(type(weight), weight.dtype) for weight in weights}) == 1:
                continue
            for each, weight in zip(names, weights, strict=True):
                if isinstance(weight, ml.QuantizedTensor):
                    result[each] = weight.dequantize(dtype)
    return result


def quantized_bytes(sizes: tuple[int, ...], dtype: ml.BlockDType) -> int:
    """Return the bytes of codes and scales of a weight.

    ceil(n / codes per item) * itemsize + ceil(n / block) * itemsize of a scale
    """
    size = 1
    for each in sizes:
        size *= each
    codes = -(-size // dtype.codes_per_item) * dtype.codes.itemsize
    return codes + -(-size // dtype.block_size) * dtype.scales.itemsize


def quantized_model_bytes(
    layers: int,
    matrices: tuple[tuple[int, int], ...],
    output: tuple[int, int],
    dtype: ml.BlockDType,
) -> int:
    """Return the bytes of all that `quantize_weights` makes of a model.

    Args:
        layers: L.
        matrices: The shapes of the matrices of one layer.
        output: The shape of the output matrix [V, D].
        dtype: What matrices become.
    """
    layer = sum(quantized_bytes(shape, dtype) for shape in matrices)
    return layers * layer + quantized_bytes(output, dtype)


def layer_matrices(dim: int, queries: int, keys: int, ffn_dim: int) -> tuple[tuple[int, int], ...]:
    """Return the shapes of the matrices of one layer: wq, wk, wv, wo, w1, w2, w3.

    Args:
        dim: D.
        queries: H * h.
        keys: K * h.
        ffn_dim: F.
    """
    return (
        (queries, dim), (keys, dim), (keys, dim), (dim, queries),
        (ffn_dim, dim), (dim, ffn_dim), (ffn_dim, dim),
    )  # fmt: skip
