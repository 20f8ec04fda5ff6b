"""Quantize and dequantize the weights of a model, and compute their formats and sizes.

The layer matrices and the output matrix are converted to the requested format, because
each token reads all of their elements. With tied embeddings, the output becomes a
separate matrix. The embedding table is not quantized, because a token reads only one row
of it. Vectors are not quantized, because they are small. In comparison, llama.cpp stores
the output matrix with more bits than the layers, and bitsandbytes does not quantize it by
default. `tests/bench/quality.py` measures how both choices affect quality.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .. import ml
from ..checkpoint.names import EMBEDDINGS, OUTPUT, Layout, is_matrix, joined_parts
from ..choices import ACTIVATIONS, QUANTIZED_TYPES
from .args import ModelArgs
from .errors import ModelError

_BLOCK_DTYPES = {
    dtype.name: dtype for dtype in (*ml.BLOCK_DTYPES, *ml.GGML_DTYPES.values())
}
QUANTIZATIONS: dict[str, ml.BlockDType] = {
    name: _BLOCK_DTYPES[dtype] for name, dtype in QUANTIZED_TYPES.items()
}
# Callback that receives the number of finished matrices and the total.
QuantizationProgress = Callable[[int, int], None]


def quantization_of(name: str) -> ml.BlockDType:
    """Return the dtype for a quantization name, or raise ModelError."""
    if name not in QUANTIZATIONS:
        raise ModelError(
            f"[quantize] quantize must be one of {', '.join(QUANTIZATIONS)}: got "
            f"{ascii(name)[:80]}"
        )
    return QUANTIZATIONS[name]


def check_activations(name: str) -> None:
    """Raise ModelError unless a name is one of the choices for activations."""
    if name not in ACTIVATIONS:
        raise ModelError(
            f"[activations] activations must be one of {', '.join(ACTIVATIONS)}: got "
            f"{ascii(name)[:80]}"
        )


def with_activations(
    tensors: Mapping[str, ml.Weight], activations: str
) -> dict[str, ml.Weight]:
    """Return the weights, the quantized ones with the given activations."""
    return {
        name: weight.with_activations(activations)
        if isinstance(weight, ml.QuantizedTensor)
        else weight
        for name, weight in tensors.items()
    }


def dtype_in_model(name: str, dtype: ml.BlockDType | None) -> ml.BlockDType | None:
    """Return the dtype to which a weight is quantized, or None if it stays plain."""
    return dtype if is_matrix(name) and name != EMBEDDINGS else None


def sources_of(tensors: Iterable[str], dtype: ml.BlockDType | None) -> dict[str, str]:
    """Return the names of a quantized model's weights, each with its source weight."""
    sources = {name: name for name in tensors}
    if dtype is not None:
        sources.setdefault(OUTPUT, EMBEDDINGS)
    return sources


def quantize_weights(
    tensors: Mapping[str, ml.Weight],
    dtype: ml.BlockDType | None,
    progress: QuantizationProgress | None = None,
    prepare: Callable[[str, ml.Tensor], ml.Tensor] | None = None,
) -> Iterator[tuple[str, ml.Weight]]:
    """Yield the name and tensor of each weight after `prepare` and quantization.

    At most one weight is in memory in addition to the yielded one, and none if the
    weights are mapped. Raises ModelError for a weight with NaN or infinite elements.
    """
    sources = sources_of(tensors, dtype)
    done = 0
    total = sum(dtype_in_model(name, dtype) is not None for name in sources)
    for name, source in sources.items():
        weight: Any = tensors[source]
        if prepare is not None:
            weight = prepare(name, weight)
        target = dtype_in_model(name, dtype)
        if target is not None:
            if progress is not None:
                progress(done, total)
            try:
                weight = ml.quantize(weight, target).with_name(name)
            except ml.TensorMemoryError:
                raise
            except ml.TensorError as error:
                raise ModelError(f"tensor {ascii(name)[:80]}: {error}") from None
            done += 1
        yield name, weight
    if dtype is not None and progress is not None:
        progress(total, total)


class DequantizedWeights(Mapping[str, ml.Weight]):
    """Plain weights by checkpoint key. Quantized weights are dequantized at each look-up.

    Args:
        tensors: The weights, some of which are quantized.
        dtype: The dtype of dequantized weights. Plain weights keep their dtype.
    """

    def __init__(self, tensors: Mapping[str, ml.Weight], dtype: ml.DType) -> None:
        self._tensors = tensors
        self._dtype = dtype

    def __getitem__(self, name: str) -> ml.Weight:
        weight = self._tensors[name]
        if isinstance(weight, ml.QuantizedTensor):
            return weight.dequantize(self._dtype)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class JoinedWeights(Mapping[str, ml.Weight]):
    """Weights joined as in their files, by the name of the first tensor in each.

    Tensors that are stored as one tensor are concatenated on each look-up.

    Args:
        tensors: The weights.
        args: The sizes and constants, which define the parts of each stored tensor.
        layout: The format of the files.
    """

    def __init__(
        self, tensors: Mapping[str, ml.Weight], args: ModelArgs, layout: Layout
    ) -> None:
        self._tensors = tensors
        self._layout = layout
        self._rows = {row.name: row for row in args.tensor_rows}
        self._shapes = args.stored_shapes(layout)
        self._parts = {
            name: parts
            for name, parts in args.stored_parts(layout).items()
            if name in tensors
        }

    def __getitem__(self, name: str) -> ml.Weight:
        parts: list[Any] = [self._tensors[part] for part in self._parts[name]]
        first: ml.Weight = parts[0]
        if len(parts) == 1:
            return first
        joined = joined_parts(parts, self._rows[name], self._shapes[name], self._layout)
        joined_weight: ml.Weight = joined.with_name(name)
        return joined_weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


def dequantized_dtypes(
    dtypes: Mapping[str, ml.DType | ml.BlockDType], dtype: ml.DType
) -> dict[str, ml.DType | ml.BlockDType]:
    """Return the dtypes that weights have after `DequantizedWeights` converts them."""
    return {
        name: dtype if isinstance(stored, ml.BlockDType) else stored
        for name, stored in dtypes.items()
    }


def quantized_model_bytes(args: ModelArgs, dtype: ml.BlockDType) -> int:
    """Return the size of the weights that `quantize_weights` quantizes, in bytes.

    All sizes in `args` must be known.
    """
    shapes = args.tensor_shapes.items()
    matrices = (
        shape for name, shape in shapes if dtype_in_model(name, dtype) is not None
    )
    return sum(dtype.bytes_of(math.prod(shape)) for shape in matrices)
