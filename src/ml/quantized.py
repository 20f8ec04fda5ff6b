"""The QuantizedTensor class, which stores small codes and a scale per block of codes.

nf4 results are bit-identical to those of bitsandbytes 0.50 on a CPU, so a model quantized
by either library gives the same answers. Source: QLoRA (T. Dettmers et al., 2023), and
the bitsandbytes files bitsandbytes/backends/default/ops.py, bitsandbytes/functional.py
and csrc/cpu_ops.cpp.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from . import kernels
from .checks import check_float, checked_flag, float_dtype
from .dtype import (
    BLOCK_DTYPES,
    GGML_DTYPES,
    BlockDType,
    DType,
    block_dtype_named,
    checked_number,
    float32,
    nf4,
    uint8,
)
from .errors import DTypeError, ShapeError, TensorError, TensorTypeError
from .hints import add_missing_names
from .kernels import WEIGHT, ffi, lib
from .layout import Shape, checked_shape
from .tensor import Tensor, TensorBase, allocate

Floats = npt.NDArray[np.float32]

NESTED_BLOCK: int = lib.NESTED_BLOCK
NESTED_CODES: int = lib.NESTED_CODES
# Number of entries in the table from which bitsandbytes reads 8-bit codes on a CPU.
_STEPS = 65536
_EXPONENTS = 7

# How products round bfloat16 activations, with the numbers of the C enum.
_ACTIVATIONS: dict[str, int] = {
    "int16": lib.ACTIVATIONS_INT16,
    "int8": lib.ACTIVATIONS_INT8,
}

# The dtypes that `quantize` supports. The last two are q4_0 and q8_0.
_OUTPUT_DTYPES = (*BLOCK_DTYPES, GGML_DTYPES[2], GGML_DTYPES[8])


@dataclass(frozen=True, slots=True, eq=False)
class NestedScales:
    """The parameters that decode 8-bit scales (double quantization).

    scale[b] = code[scales[b]] * absmax[b // 256] + offset, each step rounded to float32

    Args:
        absmax: A float32 tensor with one element per 256 blocks.
        code: A float32 tensor of 256 elements.
        offset: A number that is rounded to float32.
    """

    absmax: Tensor
    code: Tensor
    offset: float


class QuantizedTensor(TensorBase):
    """A tensor of quantized elements: small codes, and a scale for each block of codes.

    nf4: x[i] = nf4_code[codes[i]] * scales[i // 64]

    int8_block: x[i] = codes[i] * scales[i // 32]

    `ml.GGML_DTYPES`: x[i] = codes[i] * scale + minimum, all stored in the block

    The index `i` counts elements in row-major order, as in bitsandbytes, so a block can
    span two rows unless the row length is a multiple of the block size. GGUF formats
    require such rows. Nothing is copied, so a mapped file is used in place. Products and
    `get_rows` accept quantized tensors, but all other ops reject them.

    Args:
        dtype: `ml.nf4`, `ml.int8_block`, or one of `ml.GGML_DTYPES`, as a BlockDType or
            by name.
        shape: The size of each dimension.
        codes: A contiguous tensor of any shape. nf4: uint8, two codes per byte, the first
            in the upper half. int8_block: int8, one code per element. GGUF formats:
            uint8, whole blocks as in the file.
        scales: A contiguous tensor of any shape, with one scale per block, including an
            incomplete last block. nf4: float32, or uint8 with `nested`. int8_block:
            bfloat16. GGUF formats: None.
        nested: The parameters that decode uint8 scales.
        name: The name shown in messages and traces.
        activations: "int16" or "int8": the integers to which `linear_transformation`
            rounds bfloat16 activations before it multiplies them by this weight.

    Raises:
        ShapeError: If the number of codes or scales does not match the shape, or if the
            rows of a GGUF format do not consist of whole blocks.
        DTypeError: If codes or scales have the wrong dtype, if `nested` is passed for a
            format other than nf4, or if `activations` has another value.
        TensorError: If codes or scales are not contiguous or not aligned.

    Source: QLoRA (T. Dettmers et al., 2023), with the layout of bitsandbytes 0.50. GGUF
    formats: ggml-common.h of ggml-org/llama.cpp.
    """

    __slots__ = ("_activations", "_codes", "_nested", "_scales")

    _dtype: BlockDType

    def __init__(
        self,
        dtype: BlockDType | str,
        shape: Iterable[int],
        codes: Tensor,
        scales: Tensor | None = None,
        nested: NestedScales | None = None,
        name: str = "",
        activations: str = "int16",
    ) -> None:
        dtype = block_dtype_named("QuantizedTensor", dtype)
        sizes = checked_shape("QuantizedTensor", shape)
        _check_parts(dtype, sizes, codes, scales, nested)
        self._activations = _activations_code(activations)
        self._dtype = dtype
        self._name = name
        self._shape = sizes
        self._size = math.prod(sizes)
        self._codes = codes
        self._scales = scales
        self._nested = nested
        pointers = [kernels.pointer(part.contiguous()._pointer) for part in self.parts()]
        code = dtype.code
        offset = 0.0
        if nested is None:  # both pointers are equal if blocks contain their scales
            pointers = [pointers[0], pointers[-1]]
        else:
            code = dtype.double_code
            offset = nested.offset
        self._weight = kernels.weight(pointers, code, offset, self._activations)
        self._pointer = pointers[0]

    @property
    def dtype(self) -> BlockDType:
        """The type of the elements."""
        return self._dtype

    @property
    def codes(self) -> Tensor:
        """The codes, as passed to the constructor."""
        return self._codes

    @property
    def scales(self) -> Tensor:
        """The block scales, or their 8-bit codes, as passed to the constructor.

        Raise DTypeError if the blocks contain their scales.
        """
        if self._scales is None:
            raise DTypeError(f"[scales] dtype must have separate scales: {self._dtype}")
        return self._scales

    @property
    def nested(self) -> NestedScales | None:
        """The parameters that decode 8-bit scales, or None for unquantized scales."""
        return self._nested

    @property
    def activations(self) -> str:
        """The integers to which products round bfloat16 activations: int16 or int8."""
        return next(key for key, x in _ACTIVATIONS.items() if x == self._activations)

    @property
    def nbytes(self) -> int:
        """The total size of codes, scales and nested scales, in bytes."""
        return sum(part.nbytes for part in self.parts())

    def parts(self) -> tuple[Tensor, ...]:
        """Return the tensors that contain the data: codes, scales and nested scales."""
        nested = self._nested
        scales = () if self._scales is None else (self._scales,)
        return (self._codes, *scales, *((nested.absmax, nested.code) if nested else ()))

    def dequantize(self, dtype: DType | str = float32) -> Tensor:
        """Convert the elements to floating point.

        x[i] = code[i] * scale[block of i] (+ minimum), in float32, rounded once to the
        dtype

        Args:
            dtype: A real floating-point dtype.

        Returns:
            A new tensor with the same shape and name. The values are bit-identical to
            those of bitsandbytes for nf4, and to those of ggml for GGUF formats.

        Raises:
            DTypeError: If the dtype is not a real floating-point dtype.
        """
        result = allocate(self._shape, float_dtype("dequantize", dtype), self._name)
        if self._size:
            copy_rows(result, self._weight, ffi.NULL, 1, 1, self._size)
        return result

    def rows(self, start: int, stop: int) -> Self:
        """Return a view of the rows `start <= i < stop` of this matrix.

        Raise ShapeError unless `start` and `stop` are at block boundaries, or at the
        boundaries of blocks of scales if the scales are nested. `stop` may also be the
        number of rows.
        """
        columns = self._shape[1]
        size = self._dtype.block_size
        nested = self._nested
        unit = size * (NESTED_BLOCK if nested else 1)
        if start * columns % unit or (stop * columns % unit and stop != self._shape[0]):
            text = f"start and stop must be at whole blocks of {unit}: {start} and {stop}"
            raise ShapeError(f"[rows] {text} (shape {list(self._shape)}, {self._dtype})")
        return self._elements(start * columns, (stop - start, columns), self._name)

    def matrix(self, index: int, name: str) -> Self:
        """Return a view of one matrix of a stack [n, out, in], with a name.

        Raise ShapeError unless each matrix consists of whole blocks, or of whole blocks
        of scales if the scales are nested.
        """
        _, out, columns = self._shape
        unit = self._dtype.block_size * (NESTED_BLOCK if self._nested else 1)
        if out * columns % unit:
            text = f"matrices must be whole blocks of {unit}: {out * columns} elements"
            shape = list(self._shape)
            raise ShapeError(f"[matrix] {text} (shape {shape}, {self._dtype})")
        return self._elements(index * out * columns, (out, columns), name)

    def _elements(self, start: int, shape: Shape, name: str) -> Self:
        """Return a view of the elements from `start` on, at whole blocks."""
        size = self._dtype.block_size
        nested = self._nested
        first = start // size
        last = -(-(start + math.prod(shape)) // size)

        def part(whole: Tensor, per_block: int) -> Tensor:
            flat = whole.reshape(-1)
            return flat.slice(first * per_block, min(last * per_block, flat.size))

        codes = part(self._codes, self._dtype.code_bytes // self._dtype.codes.itemsize)
        scales = None if self._scales is None else part(self._scales, 1)
        if nested:
            absmax = nested.absmax.slice(first // NESTED_BLOCK, -(-last // NESTED_BLOCK))
            nested = NestedScales(absmax, nested.code, nested.offset)
        parts = codes, scales, nested, name, self.activations
        return self.__class__(self._dtype, shape, *parts)

    def with_name(self, name: str) -> Self:
        """Return a tensor with another name that shares the data."""
        return self.__class__(*self._stored, name, self.activations)

    def with_activations(self, activations: str) -> Self:
        """Return a tensor that shares the data, for products with other activations.

        Args:
            activations: "int16" or "int8", as in the constructor.

        Raises:
            DTypeError: If `activations` has another value.
        """
        return self.__class__(*self._stored, self._name, activations)

    @property
    def _stored(
        self,
    ) -> tuple[BlockDType, Shape, Tensor, Tensor | None, NestedScales | None]:
        """The arguments of the constructor that describe the stored elements."""
        return self._dtype, self._shape, self._codes, self._scales, self._nested

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (*self._stored, self._name, self.activations)

    def __getitem__(self, key: object) -> Any:
        raise self.refusal("getitem")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise self.refusal("asarray")

    def __eq__(self, other: object) -> Any:
        raise self.refusal("equal")

    __hash__ = object.__hash__

    def _repr_html_(self) -> str:
        """Return what notebooks show: the dequantized elements."""
        from . import html  # only needed in notebooks

        return html.describe(self.dequantize().numpy(), self._name, str(self._dtype))

    def refusal(self, op: str) -> DTypeError:
        """Return the error for an op that does not support block-quantized tensors."""
        return DTypeError(
            f"[{op}] dtype must not be block-quantized: {self._dtype} (shape "
            f"{list(self._shape)}); dequantize() gives a plain tensor"
        )

    def __repr__(self) -> str:
        double = ", double" if self._nested else ""
        int8 = ", int8 activations" if self._activations else ""
        text = f"{self._label()}{list(self._shape)}, {self._dtype}{double}{int8}"
        return f"QuantizedTensor({text})"


def _refused_operator(name: str) -> Any:
    """Create a method for an operator that block-quantized tensors do not support."""

    def method(self: QuantizedTensor, _other: object) -> Any:
        raise self.refusal(name)

    return method


for _operator, _op_name in (
    ("add", "add"),
    ("sub", "sub"),
    ("mul", "multiply"),
    ("truediv", "div"),
    ("pow", "pow"),
    ("matmul", "matmul"),
):
    setattr(QuantizedTensor, f"__{_operator}__", _refused_operator(_op_name))
    setattr(QuantizedTensor, f"__r{_operator}__", _refused_operator(_op_name))

_PLAIN = "dequantize() gives a plain tensor"
_HINTS = {name: _PLAIN for name in vars(Tensor) if not name.startswith("_")}
_HINTS["T"] = f"ml.linear_transformation(x, weight) is x @ weight.T; {_PLAIN}"
add_missing_names(QuantizedTensor, _HINTS)


def _activations_code(activations: str) -> int:
    """Return the number of the C enum for "int16" or "int8"."""
    if activations not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS)
        text = f"activations must be one of {names}: {ascii(activations)[:80]}"
        raise DTypeError(f"[QuantizedTensor] {text}")
    return _ACTIVATIONS[activations]


def _check_parts(
    dtype: BlockDType,
    shape: Shape,
    codes: Tensor,
    scales: Tensor | None,
    nested: Any,
) -> None:
    """Raise an error, as documented in `QuantizedTensor`, if an argument is invalid."""
    size = math.prod(shape)
    blocks = -(-size // dtype.block_size)
    whole = f"({dtype}, shape {list(shape)})"
    if dtype.bytes_with_scales:
        _check_whole_blocks("[QuantizedTensor] shape[-1]", shape, dtype)
        if scales is not None or nested is not None:
            text = f"{dtype} has scales in its blocks: none are given"
            raise DTypeError(f"[QuantizedTensor] {text}")
        _check_part("codes", codes, dtype.codes, blocks * dtype.code_bytes, whole)
        return
    _check_part("codes", codes, dtype.codes, -(-size // dtype.codes_per_item), whole)
    _check_part(
        "scales", scales, dtype.scales if nested is None else uint8, blocks, whole
    )
    if nested is None:
        return
    if not isinstance(nested, NestedScales):
        kind = type(nested).__name__
        raise TensorTypeError(
            f"[QuantizedTensor] nested must be a NestedScales: {kind} {whole}"
        )
    if dtype.double_scales is None:
        raise DTypeError(
            f"[QuantizedTensor] dtype of nested scales must equal nf4: {dtype}"
        )
    _check_part(
        "nested.absmax", nested.absmax, float32, -(-blocks // NESTED_BLOCK), whole
    )
    _check_part("nested.code", nested.code, float32, NESTED_CODES, whole)
    if not math.isfinite(checked_number("QuantizedTensor", nested.offset, float32)):
        text = f"nested.offset must be finite: {nested.offset} (shape {list(shape)})"
        raise TensorError(f"[QuantizedTensor] {text}")


def _check_part(
    label: str, part: Tensor | None, dtype: DType, size: int, whole: str
) -> None:
    """Raise an error if one tensor has the wrong type, dtype, size or layout."""
    label = f"[QuantizedTensor] {label}"
    if not isinstance(part, Tensor | None):
        raise TensorTypeError(f"{label} must be a Tensor: {type(part).__name__} {whole}")
    if part is None or part.dtype is not dtype:
        actual = None if part is None else part.dtype
        raise DTypeError(f"{label}.dtype must equal {dtype}: {actual} {whole}")
    if part.size != size:
        raise ShapeError(f"{label}.size must equal {size}: {part.size} {whole}")
    if not part.is_contiguous:
        raise TensorError(
            f"{label} must be contiguous and aligned: strides {list(part.strides)} of "
            f"shape {list(part.shape)} at address {part.data_pointer}"
        )


def _check_whole_blocks(label: str, shape: Shape, dtype: BlockDType) -> None:
    if not shape or shape[-1] % dtype.block_size:
        text = f"must be a multiple of {dtype.block_size}: {list(shape)} ({dtype})"
        raise ShapeError(f"{label} {text}")


# The types of weights that products and `get_rows` accept.
Weight: TypeAlias = Tensor | QuantizedTensor


def copy_rows(out: Tensor, weight: Any, ids: Any, T: int, V: int, D: int) -> bool:
    """Copy T rows of a table [V, D], a C `Weight` struct, to a floating-point tensor.

    `ids` is a pointer to int32 values, or NULL for the first T rows. Return False if an
    id is out of range.
    """
    refused: int = lib.get_rows(
        out._pointer,
        ffi.new(WEIGHT, weight),
        ids,
        T,
        V,
        D,
        out._dtype.code,
        kernels.threads,
    )
    return not refused


def quantize(x: Tensor, dtype: BlockDType | str, double: bool = False) -> QuantizedTensor:
    """Quantize a tensor in blocks.

    nf4: scale = max |x| over 64 elements, code = index of the nearest entry of `nf4_code`

    int8_block: scale = max |x| / 127 over 32 elements, rounded to bfloat16, code =
    round(x / scale)

    q8_0 and q4_0 of `ml.GGML_DTYPES`: the same bytes as `gguf.quants`

    The error is at most half the distance between two adjacent entries, times the scale.
    With q4_0, whose entries are -8 to 7, it is at most one distance times the scale.

    Args:
        x: A real floating-point tensor. For q8_0 and q4_0, its rows must consist of whole
            blocks.
        dtype: `ml.nf4`, `ml.int8_block`, q8_0 or q4_0, as a BlockDType or by name.
        double: Whether to quantize the nf4 scales as well, to 8 bits in blocks of 256,
            after subtracting their mean. This saves 0.046 of 0.5625 bytes per element.

    Returns:
        A quantized tensor with the same shape and name.

    Raises:
        DTypeError: If the tensor is not floating point, if quantization to the dtype is
            not supported, or if `double` is set for another dtype than nf4.
        ShapeError: If the rows for q8_0 or q4_0 do not consist of whole blocks.
        TensorError: If an element is NaN, infinite, or too large for a float16 scale.
    """
    dtype = block_dtype_named("quantize", dtype, _OUTPUT_DTYPES)
    check_float("quantize", x)
    if checked_flag("quantize", "double", double) and dtype is not nf4:
        raise DTypeError(
            f"[quantize] dtype= of double quantization must equal nf4: {dtype}"
        )
    is_whole = dtype.bytes_with_scales
    blocks = -(-x.size // dtype.block_size)
    if is_whole:
        _check_whole_blocks("[quantize] x.shape[-1]", x.shape, dtype)
    scales = None if is_whole else Tensor.empty((blocks,), dtype.scales)
    items = blocks * is_whole if is_whole else -(-x.size // dtype.codes_per_item)
    codes = Tensor.empty((items,), dtype.codes)
    x = x.contiguous()
    refused = lib.quantize(
        codes._pointer,
        codes._pointer if scales is None else scales._pointer,
        x._pointer,
        x._size,
        x._dtype.code,
        dtype.code,
        kernels.threads,
    )
    if refused:
        text = f"{refused} of {x.size} are not (shape {list(x.shape)})"
        raise TensorError(f"[quantize] elements must be finite: {text}")
    if scales is None or not double:
        return QuantizedTensor(dtype, x.shape, codes, scales, name=x.name)
    absmax: Floats = scales.numpy()
    offset = np.float32(absmax.mean(dtype=np.float64) if absmax.size else 0.0)
    small, nested = quantize_scales(absmax, offset)
    return QuantizedTensor(dtype, x.shape, codes, small, nested, name=x.name)


def quantize_scales(absmax: Floats, offset: np.float32) -> tuple[Tensor, NestedScales]:
    """Quantize the scales of nf4 blocks to 8 bits.

    code[b] = index of the entry of `dynamic_map` nearest to (absmax[b] - offset) / (the
    largest such magnitude among 256 blocks)

    Return the codes as uint8, and the parameters that decode them. Like bitsandbytes,
    this function finds the nearest entry through a table of 65536 elements, which
    determines the result of near ties. The offset of bitsandbytes is a mean that
    PyTorch computes and whose last bits depend on the number of threads, while `quantize`
    computes the mean in float64 and rounds it once.
    """
    blocks = -(-absmax.size // NESTED_BLOCK)
    padded = np.zeros(blocks * NESTED_BLOCK, np.float32)
    padded[: absmax.size] = absmax - offset
    rows = padded.reshape(blocks, NESTED_BLOCK)
    largest = np.abs(rows).max(axis=1, initial=0.0)
    factor = 1 / np.where(largest == 0, np.float32(1), largest)
    scaled = np.clip(rows * factor[:, None], np.float32(-1), np.float32(1))
    # This equals a fused multiply-add in float32, whose exact result fits into float64.
    halves = (scaled + np.float32(1)) * np.float32(0.5)
    places = (
        (halves.astype(np.float64) * (_STEPS - 1) + 0.5)
        .astype(np.float32)
        .astype(np.int64)
    )
    codes = _nearest_codes()[places]
    codes[largest == 0] = 0
    small = Tensor.from_numpy(np.ascontiguousarray(codes.reshape(-1)[: absmax.size]))
    return small, NestedScales(Tensor.from_numpy(largest), dynamic_map(), float(offset))


@lru_cache(maxsize=1)
def _nearest_codes() -> npt.NDArray[np.uint8]:
    """Return the index of the nearest dynamic map entry, for evenly spaced values.

    The values range from -1 to 1.
    """
    entries: Floats = dynamic_map().numpy()
    middles = np.float32(0.5) * (entries[:-1] + entries[1:])
    steps = np.arange(_STEPS, dtype=np.float32)
    values = (steps + steps) / np.float32(_STEPS - 1) - np.float32(1)
    return np.searchsorted(middles, values, side="left").astype(np.uint8)


@lru_cache(maxsize=1)
def dynamic_map() -> Tensor:
    """Compute the 8-bit dynamic map: 256 values from -0.993 to 1, denser towards 0.

    The values are 10^(e - 6) * m, with both signs, for e from 0 to 6 and the midpoints m
    of 2^e equal parts of [0.1, 1], together with 0 and 1.

    Returns:
        A float32 tensor [256] in ascending order.

    Source: 8-Bit Approximations for Parallelism in Deep Learning (T. Dettmers, 2015), as
    implemented by `create_dynamic_map` in bitsandbytes.
    """
    entries = [0.0, 1.0]
    for exponent in range(_EXPONENTS):
        bounds = _even_steps(2**exponent + 1)
        middles = (bounds[:-1] + bounds[1:]) / np.float32(2)
        scaled = np.float32(10.0 ** (exponent - _EXPONENTS + 1)) * middles
        entries += [*scaled.tolist(), *(-scaled).tolist()]
    return Tensor.from_numpy(np.sort(np.array(entries, np.float64)).astype(np.float32))


def _even_steps(count: int) -> Floats:
    """Return evenly spaced values in [0.1, 1], bit-identical to `torch.linspace`.

    Like PyTorch, compute the values from both ends, with fused multiply-adds.
    """
    first = np.float32(0.1)
    last = np.float32(1)
    step = np.float64((last - first) / np.float32(count - 1))
    places = np.arange(count, dtype=np.float64)
    rising = first + step * places
    falling = last - step * (count - 1 - places)
    return np.where(places < count // 2, rising, falling).astype(np.float32)


def nf4_code() -> Tensor:
    """Return the values of the 16 nf4 codes, a float32 tensor [16] in ascending order."""
    codes = np.arange(16, dtype=np.uint8)
    pairs = Tensor.from_numpy(codes[0::2] << 4 | codes[1::2])
    unit_scale = Tensor.from_numpy(np.ones(1, np.float32))
    return QuantizedTensor(nf4, (16,), pairs, unit_scale).dequantize(float32)
