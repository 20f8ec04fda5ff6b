"""The QuantizedTensor: small codes with a scale for each block of them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from .dtype import BlockDType, DType, float32, nf4, uint8
from .errors import DTypeError, ShapeError, TensorError
from .kernel_settings import ffi, lib
from .layout import Shape, checked_shape
from .native_checks import dense
from .native_memory import pointer
from .scalars import checked_number
from .tensor import Tensor

NESTED_BLOCK = 256
NESTED_CODES = 256


@dataclass(frozen=True, slots=True)
class NestedScales:
    """Say what 8-bit scales mean (double quantisation).

    scale[b] = code[scales[b]] * absmax[b // 256] + offset, each step rounded to float32

    Args:
        absmax: a float32 tensor, one element for each 256 blocks.
        code: a float32 tensor of 256 elements.
        offset: a float32 number.
    """

    absmax: Tensor
    code: Tensor
    offset: float


class QuantizedTensor:
    """A tensor whose elements are codes, with a scale for each block of them.

    nf4: x[i] = nf4_code[codes[i]] * scales[i // 64]; int8_block: x[i] = codes[i] * scales[i // 32]

    `i` counts the elements in row-major order, as in bitsandbytes: where a row is not a multiple of
    the block, blocks reach over its end. Nothing is copied: a mapped file is used where it lies.
    Products and `get_rows` take such a tensor; everything else refuses it.

    Args:
        dtype: `ml.nf4` or `ml.int8_block`.
        shape: sizes.
        codes: nf4: uint8, two codes to a byte, the first in the upper half; int8_block: int8, one
            code each. Contiguous, of any shape.
        scales: one for each block, the last of which may be short: float32 for nf4, or uint8 with
            `nested`; bfloat16 for int8_block. Contiguous, of any shape.
        nested: what uint8 scales mean.
        name: what messages and traces show.

    Raises:
        ShapeError: a number of codes or scales that does not follow from the shape.
        DTypeError: codes or scales of another dtype; nested scales of int8_block.
        TensorError: parts that are not contiguous, or not aligned.

    Source: QLoRA (T. Dettmers et al., 2023); the layout is that of bitsandbytes 0.50.
    """

    __slots__ = (
        "_codes", "_dtype", "_kernel_fields", "_name", "_nested", "_scales", "_shape", "_size",
    )  # fmt: skip

    def __init__(
        self,
        dtype: BlockDType,
        shape: Iterable[int],
        codes: Tensor,
        scales: Tensor,
        nested: NestedScales | None = None,
        name: str = "",
    ) -> None:
        if not isinstance(dtype, BlockDType):
            raise DTypeError(f"[QuantizedTensor] dtype must be nf4 or int8_block: {dtype}")
        self._dtype = dtype
        self._shape: Shape = checked_shape("QuantizedTensor", shape)
        self._size = math.prod(self._shape)
        self._codes, self._scales, self._nested = codes, scales, nested
        self._name = name
        self._check_parts()
        self._kernel_fields = self._fields()

    def _check_parts(self) -> None:
        dtype, nested = self._dtype, self._nested
        blocks = -(-self._size // dtype.block_size)
        self._check("codes", self._codes, dtype.codes, -(-self._size // dtype.codes_per_item))
        self._check("scales", self._scales, dtype.scales if nested is None else uint8, blocks)
        if nested is None:
            return
        if dtype is not nf4:
            raise DTypeError(f"[QuantizedTensor] dtype of nested scales must equal nf4: {dtype}")
        self._check("nested.absmax", nested.absmax, float32, -(-blocks // NESTED_BLOCK))
        self._check("nested.code", nested.code, float32, NESTED_CODES)
        if not math.isfinite(checked_number("QuantizedTensor", nested.offset, float32)):
            raise TensorError(
                f"[QuantizedTensor] nested.offset must be finite: {nested.offset} "
                f"(shape {list(self._shape)})"
            )

    def _check(self, label: str, part: Tensor, dtype: DType, size: int) -> None:
        if part.dtype is not dtype:
            raise DTypeError(
                f"[QuantizedTensor] {label}.dtype must equal {dtype}: {part.dtype} "
                f"({self._dtype}, shape {list(self._shape)})"
            )
        if part.size != size:
            raise ShapeError(
                f"[QuantizedTensor] {label}.size must equal {size}: {part.size} "
                f"({self._dtype}, shape {list(self._shape)})"
            )
        dense("QuantizedTensor", label, part)

    def _fields(self) -> tuple[Any, ...]:
        nested = self._nested
        pointers = [pointer(dense("QuantizedTensor", "part", part)) for part in self.parts()]
        if nested is not None:
            return (*pointers, nested.offset, lib.QUANTIZED_NF4_NESTED)
        number = lib.QUANTIZED_NF4 if self._dtype is nf4 else lib.QUANTIZED_INT8
        return (*pointers, ffi.NULL, ffi.NULL, 0.0, number)

    @property
    def dtype(self) -> BlockDType:
        """The type of the elements."""
        return self._dtype

    @property
    def shape(self) -> Shape:
        """The sizes."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._size

    @property
    def name(self) -> str:
        """What messages and traces show."""
        return self._name

    @property
    def codes(self) -> Tensor:
        """The codes, as they were given."""
        return self._codes

    @property
    def scales(self) -> Tensor:
        """The scales of the blocks, or their 8-bit codes, as they were given."""
        return self._scales

    @property
    def nested(self) -> NestedScales | None:
        """What 8-bit scales mean; None where scales are numbers themselves."""
        return self._nested

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts())

    @property
    def kernel_fields(self) -> tuple[Any, ...]:
        """What the kernels' QuantizedWeight holds; valid as long as this tensor lives."""
        return self._kernel_fields

    def parts(self) -> tuple[Tensor, ...]:
        """Return the tensors that hold the bytes."""
        nested = self._nested
        own = (self._codes, self._scales)
        return own if nested is None else (*own, nested.absmax, nested.code)

    def dequantize(self, dtype: DType = float32) -> Tensor:
        """Compute the elements.

        x[i] = code[i] * scale[block of i], in float32, rounded once to the dtype

        Args:
            dtype: float32, bfloat16 or float16.

        Returns:
            A new tensor of the same shape and name: for nf4 the bits of bitsandbytes.

        Raises:
            DTypeError: another dtype.
        """
        from . import native  # native needs this class

        if not (isinstance(dtype, DType) and dtype.is_float):
            raise DTypeError(
                f"[dequantize] dtype= must be one of bfloat16, float16, float32: {dtype}"
            )
        result = Tensor._empty(self._shape, dtype, self._name)
        native.dequantize(self, None, result)
        return result

    def with_name(self, name: str) -> Self:
        """Look at the same elements under another name; nothing is copied."""
        other = self.__class__.__new__(self.__class__)
        for slot in self.__slots__:
            setattr(other, slot, getattr(self, slot))
        other._name = name
        return other

    def __len__(self) -> int:
        if not self._shape:
            raise ShapeError("[len] ndim must be >= 1: 0 (shape [])")
        return self._shape[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise self._refusal(name)

    def __getitem__(self, key: object) -> Any:
        raise self._refusal("getitem")

    def _refusal(self, op: str) -> DTypeError:
        return DTypeError(
            f"[{op}] dtype must not be block-quantised: {self._dtype} (shape {list(self._shape)}); "
            "dequantize() gives a plain tensor"
        )

    def __repr__(self) -> str:
        label = f"{self._name!a:.80}, " if self._name else ""
        double = ", double" if self._nested else ""
        return f"QuantizedTensor({label}{list(self._shape)}, {self._dtype}{double})"


# What products and get_rows take.
Weight: TypeAlias = Tensor | QuantizedTensor
