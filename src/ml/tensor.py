"""The Tensor: a shape, strides and a dtype over a flat storage."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np

from .dtype import DType, complex64, float32, from_numpy_dtype
from .errors import DTypeError, ShapeError, TensorError
from .indexing import Index, resolve_index
from .layout import (
    Shape,
    broadcast_shapes,
    byte_extent,
    check_slice,
    checked_ints,
    checked_shape,
    is_packed,
    packed,
    reshape_strides,
    resolve_dim,
    resolve_reshape,
)
from .scalars import checked_scalar
from .storage import Storage

Array = np.ndarray[Any, Any]

_REPR_VALUES = 3
_REPR_NAME_LENGTH = 80


class Tensor:
    """An array of elements of one dtype, seen through a shape and strides.

    The element at `(i, j, ...)` lies at byte `offset + i * strides[0] + j * strides[1] + ...` of
    the storage. Views (reshape, transpose, slice, indexing) share the storage. Nothing but the
    elements ever changes after construction.

    Args:
        storage: the bytes.
        shape: sizes, each at least 0.
        strides: bytes from one element to the next, per dimension.
        dtype: type of the elements.
        name: what messages and traces show.
        offset: byte of the storage where the first element lies.

    Raises:
        ShapeError: sizes and strides that are no integers or differ in number.
        TensorError: an element would lie outside of the storage.
    """

    __slots__ = (
        "_contiguous", "_dtype", "_name", "_offset", "_shape", "_size", "_storage", "_strides",
    )  # fmt: skip

    _storage: Storage
    _shape: Shape
    _strides: Shape
    _dtype: DType
    _name: str
    _offset: int
    _size: int
    _contiguous: bool | None

    def __init__(
        self,
        storage: Storage,
        shape: Iterable[int],
        strides: Iterable[int],
        dtype: DType,
        name: str = "",
        offset: int = 0,
    ) -> None:
        self._shape = checked_shape("Tensor", shape)
        self._strides = checked_ints("Tensor", "strides", strides)
        self._offset = checked_ints("Tensor", "offset", (offset,))[0]
        if len(self._shape) != len(self._strides):
            raise ShapeError(
                f"[Tensor] len(shape) must equal len(strides): {len(self._shape)} != "
                f"{len(self._strides)}"
            )
        low, high = byte_extent(self._shape, self._strides, dtype.itemsize)
        if not 0 <= self._offset + low <= self._offset + high <= storage.nbytes:
            raise TensorError(
                f"[Tensor] elements must lie in bytes [0, {storage.nbytes}) of the storage: "
                f"[{self._offset + low}, {self._offset + high}) (shape {list(self._shape)}, "
                f"strides {list(self._strides)}, offset {self._offset}, {dtype})"
            )
        self._size = packed(self._shape, dtype.itemsize)[1]
        self._storage = storage
        self._dtype = dtype
        self._name = name
        self._contiguous = None

    # ---- construction -------------------------------------------------------------------------

    @classmethod
    def empty(cls, shape: Iterable[int], dtype: DType, name: str = "") -> Self:
        """Allocate a tensor and leave its elements uninitialised.

        Args:
            shape: sizes.
            dtype: type of the elements.
            name: what messages and traces show.

        Returns:
            A contiguous tensor that owns its memory.

        Raises:
            ShapeError: a size that is negative or no integer.
            TensorMemoryError: the system does not give the memory.
        """
        return cls._empty(checked_shape("empty", shape), dtype, name)

    @classmethod
    def _empty(cls, shape: Shape, dtype: DType, name: str = "") -> Self:
        """Do as `empty` does, for a shape that is known to be good."""
        self = cls.__new__(cls)
        strides, size = packed(shape, dtype.itemsize)
        self._storage = Storage(size * dtype.itemsize)
        self._shape = shape
        self._strides = strides
        self._dtype = dtype
        self._name = name
        self._offset = 0
        self._size = size
        self._contiguous = True
        return self

    @classmethod
    def from_numpy(cls, array: Array, name: str = "") -> Self:
        """Look at the memory of a NumPy array; a read-only array stays read-only.

        Args:
            array: any shape and strides; dtype of one of the rows of `dtype.py`.
            name: what messages and traces show.

        Returns:
            A tensor with the array's shape and strides, sharing its memory.

        Raises:
            DTypeError: a dtype that has no row.
            TensorError: not an array.
        """
        if not isinstance(array, np.ndarray):
            raise TensorError(f"[from_numpy] type must equal numpy.ndarray: {type(array).__name__}")
        dtype = from_numpy_dtype(array.dtype)
        if array.flags.c_contiguous and array.flags.aligned:
            low = 0
            storage = Storage.from_bytes_array(array.reshape(-1).view(np.uint8))
        else:
            low, high = byte_extent(array.shape, array.strides, dtype.itemsize)
            address = array.ctypes.data + low
            storage = Storage.from_range(array, address, high - low, array.flags.writeable)
        return cls(storage, array.shape, array.strides, dtype, name, -low)

    @classmethod
    def from_buffer(
        cls,
        buffer: Any,
        dtype: DType,
        shape: Iterable[int],
        strides: Iterable[int] | None = None,
        offset: int = 0,
        name: str = "",
    ) -> Self:
        """Look at the memory of any object with the buffer protocol, such as a mapped file.

        Args:
            buffer: contiguous bytes; kept alive, and kept from being closed, by the tensor.
            dtype: type of the elements, in the byte order of the machine.
            shape: sizes.
            strides: in bytes; row-major without gaps when left out.
            offset: byte where the first element lies.
            name: what messages and traces show.

        Returns:
            A tensor sharing the memory, read-only if the buffer is.

        Raises:
            ShapeError: sizes and strides that are no integers or differ in number.
            TensorError: an element would lie outside of the buffer, or there is no buffer.
        """
        try:
            view = memoryview(buffer).cast("B")
        except (TypeError, ValueError) as error:
            raise TensorError(f"[from_buffer] buffer must be contiguous bytes: {error}") from None
        array = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        sizes = checked_shape("from_buffer", shape)
        steps = packed(sizes, dtype.itemsize)[0] if strides is None else strides
        return cls(Storage.from_bytes_array(array), sizes, steps, dtype, name, offset)

    def _view(self, shape: Shape, strides: Shape, offset: int, dtype: DType | None = None) -> Self:
        """Look at the same storage in another way, which is known to stay within it."""
        view = self.__class__.__new__(self.__class__)
        view._storage = self._storage
        view._shape = shape
        view._strides = strides
        view._dtype = dtype or self._dtype
        view._name = self._name
        view._offset = offset
        view._size = math.prod(shape)
        view._contiguous = None
        return view

    # ---- what it is ---------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        """The bytes behind the elements."""
        return self._storage

    @property
    def shape(self) -> Shape:
        """The sizes."""
        return self._shape

    @property
    def strides(self) -> Shape:
        """Bytes from one element to the next, per dimension."""
        return self._strides

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def name(self) -> str:
        """What messages and traces show."""
        return self._name

    @property
    def offset(self) -> int:
        """The byte of the storage where the first element lies."""
        return self._offset

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, gaps not counted."""
        return self._size * self._dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie as an array of C does: row-major, without gaps, aligned."""
        known = self._contiguous
        if known is None:
            itemsize = self._dtype.itemsize
            known = (
                is_packed(self._shape, self._strides, itemsize)
                and self.data_pointer % itemsize == 0
            )
            self._contiguous = known
        return known

    @property
    def is_writable(self) -> bool:
        """Whether elements may be set."""
        return self._storage.writable

    @property
    def data_pointer(self) -> int:
        """The address of the first element."""
        return self._storage.address + self._offset

    def parts(self) -> "tuple[Tensor, ...]":
        """Return the tensors that hold the bytes: this one (see `QuantizedTensor.parts`)."""
        return (self,)

    # ---- NumPy --------------------------------------------------------------------------------

    def numpy(self) -> Array:
        """Look at the elements as a NumPy array, sharing memory; read-only if the storage is."""
        return np.ndarray(
            self._shape,
            self._dtype.numpy_dtype,
            self._storage.buffer(),
            self._offset,
            self._strides,
        )

    def bits(self) -> Array:
        """Look at the elements as unsigned integers of the same width, sharing memory."""
        return np.ndarray(
            self._shape,
            self._dtype.bits_dtype,
            self._storage.buffer(),
            self._offset,
            self._strides,
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("a change of dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # ---- views --------------------------------------------------------------------------------

    def reshape(self, *shape: int | Iterable[int]) -> Self:
        """Show the elements, in row-major order, in another shape.

        A view where the strides allow one, otherwise a packed copy.

        Args:
            shape: sizes, or one tuple of them; one may be -1 and follows from the others.

        Returns:
            A tensor of that shape.

        Raises:
            ShapeError: another number of elements.
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], Iterable) else shape
        sizes = resolve_reshape(self._shape, self._size, tuple(wanted))
        itemsize = self._dtype.itemsize
        if self.is_contiguous:
            view = self._view(sizes, packed(sizes, itemsize)[0], self._offset)
            view._contiguous = True
            return view
        strides = reshape_strides(self._shape, self._strides, sizes, itemsize)
        if strides is None:
            return self.contiguous().reshape(sizes)
        return self._view(sizes, strides, self._offset)

    def transpose(self, a: int, b: int) -> Self:
        """Swap two dimensions; a view.

        Args:
            a: a dimension, negative ones counted from the end.
            b: the other one.

        Returns:
            A tensor whose sizes and strides `a` and `b` have changed places.

        Raises:
            IndexOutOfRangeError: there is no such dimension.
        """
        ndim = len(self._shape)
        a, b = resolve_dim("transpose", a, ndim), resolve_dim("transpose", b, ndim)
        shape, strides = list(self._shape), list(self._strides)
        shape[a], shape[b] = shape[b], shape[a]
        strides[a], strides[b] = strides[b], strides[a]
        return self._view(tuple(shape), tuple(strides), self._offset)

    def slice(self, start: int, stop: int) -> Self:
        """Take `start <= i < stop` of the first dimension; a view.

        Args:
            start: at least 0.
            stop: at most `shape[0]`; nothing is clamped.

        Returns:
            A tensor [stop - start, ...].

        Raises:
            IndexOutOfRangeError: `0 <= start <= stop <= shape[0]` does not hold.
            ShapeError: the tensor has no dimensions.
        """
        return self._rows("slice", start, stop)

    def _rows(self, op: str, start: int, stop: int) -> Self:
        if not self._shape:
            raise ShapeError(f"[{op}] ndim must be >= 1: 0 (shape [])")
        start, stop = checked_ints(op, "start and stop", (start, stop))
        check_slice(op, start, stop, self._shape[0])
        # No element, no address: a start at the very end would point past it.
        moved = start * self._strides[0] if start < stop else 0
        return self._view((stop - start, *self._shape[1:]), self._strides, self._offset + moved)

    def __getitem__(self, key: Index) -> Self:
        """Select by integers, slices and Ellipsis; always a view, never clamped."""
        shape, strides, moved = resolve_index(self._shape, self._strides, key)
        return self._view(shape, strides, self._offset + moved)

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def view_as_complex(self) -> Self:
        """Read pairs (real, imaginary) as complex numbers; a view.

        Returns:
            A complex64 tensor [...] over this one, [..., 2].

        Raises:
            DTypeError: not float32.
            ShapeError: the last size is not 2, or its elements are not side by side.
        """
        if self._dtype is not float32:
            raise DTypeError(f"[view_as_complex] dtype must equal float32: {self._dtype}")
        in_twos = self._shape[-1:] == (2,)
        if not in_twos or (self._size and self._strides[-1] != float32.itemsize):
            raise ShapeError(
                f"[view_as_complex] the last size must equal 2 with a stride of 4 bytes: "
                f"shape {list(self._shape)}, strides {list(self._strides)}"
            )
        return self._view(self._shape[:-1], self._strides[:-1], self._offset, complex64)

    def view_as_real(self) -> Self:
        """Read complex numbers as pairs (real, imaginary); a view.

        Returns:
            A float32 tensor [..., 2] over this one, [...].

        Raises:
            DTypeError: not complex64.
        """
        if self._dtype is not complex64:
            raise DTypeError(f"[view_as_real] dtype must equal complex64: {self._dtype}")
        return self._view(
            (*self._shape, 2), (*self._strides, float32.itemsize), self._offset, float32
        )

    def with_name(self, name: str) -> Self:
        """Look at the same elements under another name; a view."""
        view = self._view(self._shape, self._strides, self._offset)
        view._name = name
        return view

    # ---- elements -----------------------------------------------------------------------------

    def set_slice(self, start: int, stop: int, value: "Tensor | complex") -> None:
        """Set `start <= i < stop` of the first dimension.

        Args:
            start: at least 0.
            stop: at most `shape[0]`.
            value: a scalar, or a tensor of the same dtype that broadcasts to [stop - start, ...].

        Raises:
            IndexOutOfRangeError: `0 <= start <= stop <= shape[0]` does not hold.
            ShapeError: the value does not broadcast to the slice.
            DTypeError: the value has another dtype.
            TensorError: the storage is read-only.
        """
        rows = self._rows("set_slice", start, stop)
        if not self._storage.writable:
            raise TensorError(f"[set_slice] the storage must be writable: {self!r}")
        if isinstance(value, Tensor):
            if value._dtype is not self._dtype:
                raise DTypeError(
                    f"[set_slice] dtype must equal value.dtype: {self._dtype} != {value._dtype} "
                    f"(slice {list(rows._shape)}, value {list(value._shape)})"
                )
            shape, target = value._shape, rows._shape
            if shape != target and broadcast_shapes("set_slice", target, shape) != target:
                raise ShapeError(
                    f"[set_slice] value.shape must broadcast to the slice: {list(shape)} != "
                    f"{list(target)}"
                )
            rows.bits()[...] = value.bits()
        else:
            rows.numpy()[...] = checked_scalar("set_slice", value, self._dtype)

    def contiguous(self) -> Self:
        """Return this tensor if it is contiguous, otherwise a packed copy."""
        return self if self._contiguous or self.is_contiguous else self.copy()

    def copy(self) -> Self:
        """Copy the elements into a new contiguous tensor."""
        result = self._empty(self._shape, self._dtype, self._name)
        result.bits()[...] = self.bits()
        return result

    def to(self, dtype: DType) -> "Tensor":
        """Convert the elements.

        Floats round to nearest, ties to even; NaN stays NaN. Floats become integers by dropping the
        fraction.

        Args:
            dtype: type of the result.

        Returns:
            This tensor if it has that dtype already, otherwise a new contiguous one.

        Raises:
            DTypeError: from complex64 to a real dtype.
            TensorError: a value that the integer dtype cannot hold.
        """
        if dtype is self._dtype:
            return self
        from .ops.movement import convert  # ops are built on Tensor

        return convert(self, dtype)

    def item(self) -> int | float | complex:
        """Return the only element as a Python number.

        Raises:
            ShapeError: there is not exactly one element.
        """
        if self._size != 1:
            raise ShapeError(
                f"[item] number of elements must equal 1: {self._size} (shape {list(self._shape)})"
            )
        return self._number(self.numpy().item())

    def _number(self, value: Any) -> int | float | complex:
        return float(value) if self._dtype.is_float else value

    def __len__(self) -> int:
        if not self._shape:
            raise ShapeError("[len] ndim must be >= 1: 0 (shape [])")
        return self._shape[0]

    def __repr__(self) -> str:
        name = ascii(self._name)
        if len(name) > _REPR_NAME_LENGTH:
            name = name[:_REPR_NAME_LENGTH] + "...'"
        label = f"{name}, " if self._name else ""
        return f"Tensor({label}{list(self._shape)}, {self._dtype}, [{self._short_values()}])"

    def _short_values(self) -> str:
        flat = self.numpy().flat
        if self._size <= 2 * _REPR_VALUES:
            shown = list(range(self._size))
        else:
            shown = [*range(_REPR_VALUES), *range(self._size - _REPR_VALUES, self._size)]
        texts = [f"{self._number(flat[i].item()):.5g}" for i in shown]
        if len(shown) < self._size:
            texts.insert(_REPR_VALUES, "...")
        return ", ".join(texts)
