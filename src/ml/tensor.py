"""The Tensor class, a strided view of flat storage, and its base class."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np

from . import kernels, layout
from .dtype import (
    DType,
    bfloat16,
    bool_,
    checked_scalar,
    complex64,
    dtype_named,
    float16,
    float32,
    from_numpy_dtype,
    int32,
    int64,
)
from .errors import (
    DTypeError,
    ShapeError,
    TensorError,
    TensorMemoryError,
    TensorTypeError,
)
from .hints import add_missing_names, tensor_hints
from .kernels import ffi, lib
from .layout import Index, Shape, packed
from .op import OPS, Operand, op, op_that_changes

Array = np.ndarray[Any, Any]
# The flat bytes that a tensor and its views share, and that each of them keeps alive. A
# storage is either a cffi `char[]` allocated here, or a one-dimensional uint8 array that
# refers to the memory of another object (such as an array or a mapped file).
Storage = Any

_EDGE_VALUES = 3
_REPR_NAME_LENGTH = 80
_PRINTED_VALUES = 1000
_PRINTED_IN_ROWS = 500  # of a tensor of several dimensions
_new: Any = object.__new__  # skips the checks of `Tensor.__init__`


class ElementCount(int):
    """The number of elements of a tensor, which can be called for its shape."""

    shape: Shape

    def __call__(self, dim: int | None = None) -> Shape | int:
        """Return the shape, or the size of one dimension.

        Raises:
            IndexOutOfRangeError: If the dimension does not exist.
        """
        if dim is None:
            return self.shape
        return self.shape[layout.resolve_dim("size", dim, len(self.shape))]


class TensorBase(Operand):
    """Base class of plain and block-quantized tensors, with shape, dtype and name."""

    __slots__ = ("_dtype", "_name", "_pointer", "_shape", "_size", "_weight")

    is_tensor = True
    array_hint = "; Tensor.from_numpy(array) creates a Tensor"

    # The address for the kernels as a `void *`, set only if the elements are contiguous.
    _pointer: Any
    _weight: Any  # the C Weight struct; a plain tensor has None until its first product
    # A value of the C enum `Activations`. Weights that are not quantized have the first
    # one, which has no effect.
    _activations = 0
    _shape: Shape
    _dtype: Any
    _name: str
    _size: int

    @property
    def shape(self) -> Shape:
        """The size of each dimension."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> "ElementCount":
        """The number of elements.

        As in PyTorch, `x.size()` returns the shape, and `x.size(dim)` the size of a
        dimension.
        """
        count = ElementCount(self._size)
        count.shape = self._shape
        return count

    def numel(self) -> int:
        """Return the number of elements."""
        return self._size

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self._shape)

    @property
    def name(self) -> str:
        """The name shown in messages and traces."""
        return self._name

    def __len__(self) -> int:
        if not self._shape:
            raise ShapeError("[len] ndim must be >= 1: 0 (shape [])")
        return self._shape[0]

    def _label(self) -> str:
        """Return the name for a repr, escaped, shortened and followed by a comma.

        Unnamed tensors return an empty string.
        """
        name = ascii(self._name)
        if len(name) > _REPR_NAME_LENGTH:
            name = name[:_REPR_NAME_LENGTH] + "...'"
        return f"{name}, " if self._name else ""


class _OpMethod:
    """A method that calls the op of the same name (for example, `__neg__` calls `neg`).

    The tensor is passed as the first argument.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.strip("_")

    def __get__(self, tensor: "Tensor | None", owner: type) -> Callable[..., Any]:
        function = OPS[self._name]
        return function if tensor is None else MethodType(function, tensor)


def _operator(
    name: str, *, is_reflected: bool = False
) -> "Callable[[Tensor, Any], Tensor]":
    """Create an operator method that calls the op named `name`.

    If the op does not support the other operand's type, Python tries the other operand's
    method. NumPy arrays are rejected instead, because their methods would convert the
    tensor to an array, often with dtype float64.
    """

    def method(self: "Tensor", other: Any) -> "Tensor":
        if not isinstance(other, Tensor | int | float | complex | np.number):
            _check_no_array(name, "a" if is_reflected else "b", other)
            return NotImplemented  # type: ignore[no-any-return]
        operands = (other, self) if is_reflected else (self, other)
        result: Tensor = OPS[name](*operands)
        return result

    return method


def _missing_operator(
    name: str, *, is_reflected: bool = False
) -> "Callable[[Tensor, Any], Any]":
    """Create a method for an unsupported operator, so that NumPy does not handle it."""

    def method(_self: "Tensor", other: Any) -> Any:
        _check_no_array(name, "a" if is_reflected else "b", other)
        if isinstance(other, Tensor | int | float):
            from .hints import MISSING_OPERATORS  # only needed for errors

            raise TensorTypeError(f"[{name}] {MISSING_OPERATORS[name]}")
        return NotImplemented

    return method


def _check_no_array(op: str, label: str, operand: Any) -> None:
    """Raise TensorTypeError if the operand is a NumPy array or scalar."""
    if isinstance(operand, np.ndarray | np.generic):
        kind = type(operand).__name__
        raise TensorTypeError(
            f"[{op}] {label} must be a Tensor or a number: {kind}; "
            "Tensor.from_numpy(array) creates a Tensor"
        )


class Tensor(TensorBase):
    """A multi-dimensional array whose elements all have the same dtype.

    The element at index `(i, j, ...)` starts at byte `offset + i * strides[0] + j *
    strides[1] + ...` of the storage. Views (the results of reshape, transpose, slice and
    indexing) share the storage. After construction, only the elements can change.

    Args:
        storage: The storage of another tensor, or a one-dimensional uint8 array.
        shape: The size of each dimension, at least 0.
        strides: For each dimension, the number of bytes from one element to the next.
        dtype: The element type, as a DType or by name.
        name: The name shown in messages and traces.
        offset: The byte offset of the first element in the storage.

    Raises:
        ShapeError: If sizes or strides are not integers, or if their numbers differ.
        TensorError: If an element would be outside of the storage.
    """

    __slots__ = ("_offset", "_storage", "_strides")

    _dtype: DType
    _storage: Storage
    _strides: Shape | None  # None if elements are in row-major order without gaps
    _offset: int

    def __init__(
        self,
        storage: Storage,
        shape: Iterable[int],
        strides: Iterable[int],
        dtype: DType | str,
        name: str = "",
        offset: int = 0,
    ) -> None:
        if not _is_storage(storage):
            raise TensorTypeError(
                f"[Tensor] storage must be flat bytes: {type(storage).__name__}"
            )
        dtype = dtype_named("Tensor", dtype)
        sizes = layout.checked_shape("Tensor", shape)
        steps = layout.checked_ints("Tensor", "strides", strides)
        first = layout.checked_ints("Tensor", "offset", (offset,))[0]
        if len(sizes) != len(steps):
            lengths = f"{len(sizes)} != {len(steps)}"
            raise ShapeError(f"[Tensor] len(shape) must equal len(strides): {lengths}")
        low, high = layout.byte_extent(sizes, steps, dtype.itemsize)
        if not 0 <= first + low <= first + high <= len(storage):
            raise TensorError(
                f"[Tensor] elements must lie in bytes [0, {len(storage)}) of the "
                f"storage: [{first + low}, {first + high}) (shape {list(sizes)}, strides "
                f"{list(steps)}, offset {first}, {dtype})"
            )
        self._size = packed(sizes, dtype.itemsize)[1]
        self._shape = sizes
        self._strides = steps
        self._offset = first
        self._storage = storage
        self._dtype = dtype
        self._name = name
        self._pointer = self._weight = None

    @staticmethod
    def empty(shape: Iterable[int], dtype: DType | str, name: str = "") -> "Tensor":
        """Allocate an uninitialized, contiguous tensor. See `Tensor` for the arguments.

        Raises:
            ShapeError: If a size is negative or not an integer.
            TensorMemoryError: If the allocation fails.
        """
        return allocate(
            layout.checked_shape("empty", shape), dtype_named("empty", dtype), name
        )

    @classmethod
    def from_numpy(cls, array: Array, name: str = "") -> "Tensor":
        """Create a tensor that shares memory with a NumPy array.

        Args:
            array: An array of any shape and strides, with a dtype that `ml` supports.
            name: The name shown in messages and traces.

        Returns:
            A tensor with the array's shape and strides, read-only if the array is.

        Raises:
            DTypeError: If the array's dtype is not supported.
            TensorTypeError: If the argument is not an array.
        """
        # `np.ma` is accessed only if necessary, because it takes long to load.
        is_plain = type(array) is np.ndarray or (
            isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
        )
        if not is_plain:
            kind = type(array).__name__
            raise TensorTypeError(f"[from_numpy] type must equal numpy.ndarray: {kind}")
        dtype = from_numpy_dtype(array.dtype)
        if array.flags.c_contiguous and array.flags.aligned:
            low = 0
            storage = array.reshape(-1).view(np.uint8)
        else:
            low, high = layout.byte_extent(array.shape, array.strides, dtype.itemsize)
            data = array.ctypes.data + low, not array.flags.writeable
            place = {"data": data, "shape": (high - low,), "typestr": "|u1", "version": 3}
            storage = np.asarray(SimpleNamespace(owner=array, __array_interface__=place))
        return cls(storage, array.shape, array.strides, dtype, name, -low)

    @classmethod
    def from_buffer(
        cls,
        buffer: Any,
        dtype: DType | str,
        shape: Iterable[int],
        strides: Iterable[int] | None = None,
        offset: int = 0,
        name: str = "",
    ) -> "Tensor":
        """Create a tensor that shares memory with a buffer, such as a mapped file.

        See `Tensor` for the other arguments and the exceptions.

        Args:
            buffer: An object that supports the buffer protocol and contains contiguous
                bytes in native byte order. The tensor keeps the buffer alive and open,
                and is read-only if the buffer is.
            strides: The strides in bytes. By default, elements are in row-major order
                without gaps.
        """
        try:
            view = memoryview(buffer).cast("B")
        except (TypeError, ValueError) as error:
            raise TensorError(
                f"[from_buffer] buffer must be contiguous bytes: {error}"
            ) from None
        array = np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
        sizes = layout.checked_shape("from_buffer", shape)
        dtype = dtype_named("from_buffer", dtype)
        steps = packed(sizes, dtype.itemsize)[0] if strides is None else strides
        return cls(array, sizes, steps, dtype, name, offset)

    @staticmethod
    def from_integers(values: Iterable[int], name: str = "") -> "Tensor":
        """Create an int32 vector from Python integers.

        Raises:
            TensorTypeError: If a value is not an integer.
            TensorError: If an integer does not fit into int32.
        """
        try:
            numbers = array("i", [*values])
        except (TypeError, OverflowError) as error:
            kind = TensorTypeError if isinstance(error, TypeError) else TensorError
            raise kind(
                f"[from_integers] values must be integers of int32: {error}"
            ) from None
        result = allocate((len(numbers),), int32, name)
        ffi.buffer(result._storage)[:] = numbers
        return result

    def _view(
        self, shape: Shape, strides: Shape | None, offset: int, dtype: Any = None
    ) -> "Tensor":
        """Create a view of the same storage, without a bounds check."""
        view: Tensor = _new(Tensor)
        size = 1
        for n in shape:
            size *= n
        view._storage = self._storage
        view._shape = shape
        view._strides = strides
        view._dtype = dtype or self._dtype
        view._name = self._name
        view._size = size
        view._offset = offset if size else 0  # keeps an empty view's address in bounds
        view._pointer = view._weight = None
        return view

    @property
    def storage(self) -> Storage:
        """The bytes that contain the elements, shared with all views."""
        return self._storage

    @property
    def strides(self) -> Shape:
        """For each dimension, the number of bytes from one element to the next."""
        strides = self._strides
        return (
            packed(self._shape, self._dtype.itemsize)[0] if strides is None else strides
        )

    @property
    def dtype(self) -> DType:
        """The type of the elements."""
        return self._dtype

    @property
    def offset(self) -> int:
        """The byte offset of the first element in the storage."""
        return self._offset

    @property
    def nbytes(self) -> int:
        """The total size of the elements in bytes, without gaps."""
        return self._size * self._dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are aligned and in row-major order without gaps."""
        if self._pointer is not None:
            return True
        # The order is row-major without gaps, so only the address can be misaligned.
        if self._strides is None:
            return self.data_pointer % self._dtype.bits_dtype.alignment == 0
        flags = self.bits().flags
        return flags.c_contiguous and flags.aligned

    @property
    def is_writable(self) -> bool:
        """Whether the elements can be modified."""
        storage = self._storage
        return not isinstance(storage, np.ndarray) or storage.flags.writeable

    @property
    def data_pointer(self) -> int:
        """The address of the first element."""
        storage = self._storage
        if isinstance(storage, np.ndarray):
            start: int = storage.__array_interface__["data"][0]  # faster than ctypes.data
            return start + self._offset
        return kernels.as_address(storage) + self._offset

    @property
    def T(self) -> "Tensor":  # noqa: N802 (the field's word)
        """The transpose of this matrix, as a view.

        Raises:
            ShapeError: If the tensor does not have exactly two dimensions.
        """
        if len(self._shape) != 2:
            raise ShapeError(
                f"[T] ndim must equal 2: {self.ndim} (shape {list(self._shape)})"
            )
        return self.transpose(0, 1)

    def parts(self) -> "tuple[Tensor, ...]":
        """Return the tensors that contain the data, which is only this tensor."""
        return (self,)

    def numpy(self) -> Array:
        """Return a NumPy array that shares memory with this tensor.

        The array is read-only if the storage is.
        """
        buffer = _buffer(self._storage)
        dtype = self._dtype.numpy_dtype
        return np.ndarray(self._shape, dtype, buffer, self._offset, self.strides)

    def bits(self) -> Array:
        """Return the bit patterns as a NumPy array of unsigned integers; a view."""
        buffer = _buffer(self._storage)
        dtype = self._dtype.bits_dtype
        return np.ndarray(self._shape, dtype, buffer, self._offset, self.strides)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("a change of dtype needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    @op
    def reshape(self: "Tensor", *shape: int | Sequence[int]) -> "Tensor":
        """Return a tensor with the same elements, in row-major order, in another shape.

        The result is a view if the strides allow it, and otherwise a contiguous copy.

        Args:
            shape: The new sizes, as separate arguments or as one sequence. One size may
                be -1 and is then inferred from the others.

        Raises:
            ShapeError: If the number of elements differs.
        """
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        sizes = layout.resolve_reshape(self._shape, self._size, tuple(wanted))
        if self._pointer is not None or self.is_contiguous:
            view = self._view(sizes, None, self._offset)
            view._pointer = self._pointer
            return view
        bits = self.bits().reshape(sizes)
        view = self._view(sizes, bits.strides, self._offset)
        # A different address means that NumPy has made a contiguous copy.
        if bits.__array_interface__["data"][0] != self.data_pointer:
            view._storage = bits.reshape(-1).view(np.uint8)
            view._offset = 0
        return view

    def view(self, *shape: int | Sequence[int]) -> "Tensor":
        """Return a view of the same elements in another shape; see `reshape`.

        Raises:
            ShapeError: If the number of elements differs, or if the strides do not allow
                a view. `reshape` then copies.
        """
        if shape and isinstance(shape[0], DType | str):
            raise DTypeError(f"[view] dtype must stay {self._dtype}: {shape[0]}; use to")
        result = self.reshape(*shape)
        if result._size and result.data_pointer != self.data_pointer:
            text = f"{list(self.strides)} (shape {list(self._shape)}); use reshape"
            raise ShapeError(f"[view] strides must allow a view: {text}")
        return result

    @op
    def transpose(self: "Tensor", a: int, b: int) -> "Tensor":
        """Return a view with two dimensions swapped.

        Args:
            a: The first dimension. Negative dimensions count from the end.
            b: The second dimension.

        Raises:
            IndexOutOfRangeError: If a dimension does not exist.
        """
        ndim = len(self._shape)
        a = layout.resolve_dim("transpose", a, ndim)
        b = layout.resolve_dim("transpose", b, ndim)
        shape = list(self._shape)
        strides = list(self.strides)
        shape[a], shape[b] = shape[b], shape[a]
        strides[a], strides[b] = strides[b], strides[a]
        return self._view(tuple(shape), tuple(strides), self._offset)

    @op
    def slice(self: "Tensor", start: int, stop: int) -> "Tensor":
        """Return a view of the indices `start <= i < stop` of the first dimension.

        Returns:
            A tensor [stop - start, ...].

        Raises:
            IndexOutOfRangeError: Unless `0 <= start <= stop <= shape[0]`.
            ShapeError: If the tensor has no dimensions.
        """
        return self._rows("slice", start, stop)

    def _rows(self, op: str, start: int, stop: int) -> "Tensor":
        if not self._shape:
            raise ShapeError(f"[{op}] ndim must be >= 1: 0 (shape [])")
        start, stop = layout.checked_ints(op, "start and stop", (start, stop))
        layout.check_slice(op, start, stop, self._shape[0])
        if self._strides is None:  # row-major without gaps
            row_bytes = self.nbytes // (self._shape[0] or 1)
        else:
            row_bytes = self._strides[0]
        shape = (stop - start, *self._shape[1:])
        return self._view(shape, self._strides, self._offset + start * row_bytes)

    def __getitem__(
        self, key: "Index | Tensor | list[Any] | tuple[Any, ...]"
    ) -> "Tensor":
        """Return the selected elements, without clamping.

        Integers, slices, Ellipsis and None select a view. Lists and tensors of integers
        or bools select a copy; see the op `getitem`.
        """
        if _selects_copy(key):
            result: Tensor = OPS["getitem"](self, key)
            return result
        shape, strides, moved = layout.resolve_index(self._shape, self.strides, key)
        return self._view(shape, strides, self._offset + moved)

    def __setitem__(self, key: Any, value: "Tensor | complex") -> None:
        """Assign a number or a tensor to the selected elements; see the op `setitem`."""
        OPS["setitem"](self, key, value)

    def __iter__(self) -> Iterator["Tensor"]:
        return (self[i] for i in range(len(self)))

    def view_as_complex(self) -> "Tensor":
        """Return a view of (real, imaginary) pairs as complex numbers.

        Returns:
            A complex64 tensor [...], for a float32 tensor [..., 2].

        Raises:
            DTypeError: If the dtype is not float32.
            ShapeError: If the last dimension is not two adjacent elements.
        """
        if self._dtype is not float32:
            raise DTypeError(f"[view_as_complex] dtype must equal float32: {self._dtype}")
        is_pairs = self._shape[-1:] == (2,)
        if not is_pairs or (self._size and self.strides[-1] != float32.itemsize):
            rule = "the last size must equal 2 with a stride of 4 bytes"
            actual = f"shape {list(self._shape)}, strides {list(self.strides)}"
            raise ShapeError(f"[view_as_complex] {rule}: {actual}")
        return self._view(self._shape[:-1], self.strides[:-1], self._offset, complex64)

    def view_as_real(self) -> "Tensor":
        """Return a view of complex numbers as (real, imaginary) pairs.

        Returns:
            A float32 tensor [..., 2], for a complex64 tensor [...].

        Raises:
            DTypeError: If the dtype is not complex64.
        """
        if self._dtype is not complex64:
            raise DTypeError(f"[view_as_real] dtype must equal complex64: {self._dtype}")
        shape = (*self._shape, 2)
        strides = (*self.strides, float32.itemsize)
        return self._view(shape, strides, self._offset, float32)

    def with_name(self, name: str) -> "Tensor":
        """Return a view with another name."""
        view = self._view(self._shape, self._strides, self._offset)
        view._name = name
        return view

    @op_that_changes(
        lambda arguments: (
            arguments["self"].slice(arguments["start"], arguments["stop"]),
        )
    )
    def set_slice(
        self: "Tensor", start: int, stop: int, value: "Tensor | complex"
    ) -> None:
        """Assign a value to the indices `start <= i < stop` of the first dimension.

        Args:
            start, stop: See `slice`, which raises the same exceptions.
            value: A number, or a tensor with the same dtype that broadcasts to
                [stop - start, ...].

        Raises:
            ShapeError: If the value does not broadcast to the slice.
            DTypeError: If the value has another dtype.
            TensorError: If the storage is read-only.
        """
        rows = self._rows("set_slice", start, stop)
        rows.bits()[...] = self.assignable_bits("set_slice", value, rows._shape)

    def assignable_bits(self, op: str, value: Any, target: Shape) -> Array:
        """Return the bits of a value to assign to elements of this tensor.

        Args:
            op: The name of the op in error messages.
            value: A number, or a tensor of this dtype that broadcasts to `target`.
            target: The shape of the elements to assign.

        Raises:
            ShapeError: If the value does not broadcast to `target`.
            DTypeError: If the value has another dtype.
            TensorError: If the storage is read-only.
        """
        if not self.is_writable:
            label = f"{self._label()}shape {list(self._shape)}, {self._dtype}"
            raise TensorError(f"[{op}] the storage must be writable: {label}")
        if not isinstance(value, Tensor):
            scalar = np.asarray(checked_scalar(op, value, self._dtype))
            return scalar.view(self._dtype.bits_dtype)
        shape = value._shape
        if value._dtype is not self._dtype:
            both = f"(slice {list(target)}, value {list(shape)})"
            dtypes = f"{self._dtype} != {value._dtype} {both}"
            raise DTypeError(f"[{op}] dtype must equal value.dtype: {dtypes}")
        if shape != target and layout.broadcast_shapes(op, target, shape) != target:
            shapes = f"{list(shape)} != {list(target)}"
            raise ShapeError(f"[{op}] value.shape must broadcast to the slice: {shapes}")
        return value.bits()

    def contiguous(self) -> "Tensor":
        """Return this tensor if it is contiguous, and otherwise a contiguous copy."""
        if not self.is_contiguous:
            return self.copy()
        if self._pointer is None:
            self._pointer = kernels.pointer(self.data_pointer)
        return self

    def copy(self) -> "Tensor":
        """Copy the elements into a new contiguous tensor."""
        result = allocate(self._shape, self._dtype, self._name)
        result.bits()[...] = self.bits()
        return result

    @op
    def to(self: "Tensor", dtype: DType | str) -> "Tensor":
        """Convert the elements to another dtype.

        Floats are rounded to the nearest value, with ties to even, and NaN stays NaN.
        Conversions from floats to integers drop the fraction. Integers are converted to
        bfloat16 and float16 through float32. In a conversion to bool, all values except
        zero become True.

        Args:
            dtype: The dtype of the result.

        Returns:
            This tensor if it already has the dtype, and otherwise a new contiguous one.

        Raises:
            DTypeError: If the conversion is from complex64 to a real dtype. Use
                `view_as_real` to get the real and imaginary parts.
            TensorError: If a value does not fit into the integer dtype.
        """
        dtype = dtype if isinstance(dtype, DType) else dtype_named("to", dtype)
        if dtype is self._dtype:
            return self
        result = allocate(self._shape, dtype, self._name)
        if self._dtype.is_float and dtype.is_float:
            x = self if self._pointer is not None else self.contiguous()
            lib.convert(
                result._pointer,
                x._pointer,
                x._size,
                x._dtype.code,
                dtype.code,
                kernels.threads,
            )
        elif self._dtype is complex64:
            raise DTypeError(
                f"[to] a complex dtype must stay complex: {self._dtype} to {dtype}"
            )
        elif dtype.kind == "int":
            self._to_integers(result)
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                values = self.numpy()
                result.numpy()[...] = (
                    values != 0 if dtype is bool_ else values.astype(np.float32)
                )
        return result

    def _to_integers(self, result: "Tensor") -> None:
        # float64 exactly represents every value that fits into the target dtype.
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = np.trunc(self.numpy().astype(np.float64))
        limits = np.iinfo(result.dtype.numpy_dtype)
        fits = (values >= limits.min) & (values < limits.max + 1)
        if not fits.all():
            rule = f"values must be in [{limits.min}, {limits.max}] for {result.dtype}"
            raise TensorError(f"[to] {rule}: {float(values[~fits].flat[0])}")
        result.numpy()[...] = values.astype(result.dtype.numpy_dtype)

    def item(self) -> int | float | complex:
        """Return the only element as a Python number.

        Raises:
            ShapeError: If the tensor does not have exactly one element.
        """
        return self._only("item", ShapeError)

    def _only(self, op: str, error: type[TensorError]) -> int | float | complex:
        if self._size != 1:
            text = (
                f"number of elements must equal 1: {self._size} (shape "
                f"{list(self._shape)})"
            )
            raise error(f"[{op}] {text}")
        return self._number(self.numpy().item())

    def _number(self, value: Any) -> int | float | complex:
        return float(value) if self._dtype.is_float else value

    def tolist(self) -> Any:
        """Return the elements as Python numbers in nested lists, or a single number."""
        return (self.to(float32) if self._dtype.is_float else self).numpy().tolist()

    def __float__(self) -> float:
        # Python raises its own TypeError for a complex number.
        return float(self.item())  # type: ignore[arg-type]

    def __int__(self) -> int:
        return int(self.item())  # type: ignore[arg-type]

    def __index__(self) -> int:
        if self._dtype.kind != "int":
            text = f"dtype must be an integer: {self._dtype} (shape {list(self._shape)})"
            raise TensorTypeError(f"[index] {text}")
        return int(self._only("index", TensorTypeError))  # type: ignore[arg-type]

    def __format__(self, spec: str) -> str:
        """Format the number of a tensor without dimensions, and otherwise the repr."""
        if not self._shape:
            return format(self.item(), spec)
        if spec:
            text = f"{len(self._shape)} (shape {list(self._shape)}, format {spec!r:.80})"
            raise TensorTypeError(f"[format] ndim must equal 0: {text}; use x[i]")
        return repr(self)

    def __bool__(self) -> bool:
        return bool(self._only("bool", TensorTypeError))

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled NumPy arrays of bfloat16 lose their byte order, so bits are pickled.
        array = np.array(self.bits())
        return _unpickle, (array, self._dtype, self._name)

    __add__ = _operator("add")
    __radd__ = _operator("add", is_reflected=True)
    __sub__ = _operator("sub")
    __rsub__ = _operator("sub", is_reflected=True)
    __mul__ = _operator("multiply")
    __rmul__ = _operator("multiply", is_reflected=True)
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("div", is_reflected=True)
    __pow__ = _operator("pow")
    __rpow__ = _operator("pow", is_reflected=True)
    __matmul__ = _operator("matmul")
    __rmatmul__ = _operator("matmul", is_reflected=True)
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")
    __eq__ = _operator("equal")  # type: ignore[assignment]
    __ne__ = _operator("not_equal")  # type: ignore[assignment]
    __hash__ = object.__hash__
    # NumPy scalars and arrays defer to this class, because their own operators would
    # return arrays.
    __array_priority__ = 1000.0

    __neg__ = _OpMethod()
    __abs__ = _OpMethod()
    __and__ = _operator("bitwise_and")
    __rand__ = _operator("bitwise_and", is_reflected=True)
    __or__ = _operator("bitwise_or")
    __ror__ = _operator("bitwise_or", is_reflected=True)
    __xor__ = _operator("bitwise_xor")
    __rxor__ = _operator("bitwise_xor", is_reflected=True)

    def __invert__(self) -> "Tensor":
        result: Tensor = OPS["bitwise_not"](self)
        return result

    (
        abs,
        all,
        allclose,
        any,
        argmax,
        argsort,
        clip,
        cos,
        cumsum,
        exp,
        expand,
        flatten,
        gather,
        log,
        log_softmax,
        masked_fill,
        matmul,
        max,
        mean,
        min,
        multinomial,
        neg,
        norm,
        permute,
        pow,
        relu,
        repeat_interleave,
        rsqrt,
        sigmoid,
        sin,
        softmax,
        sort,
        split,
        sqrt,
        squeeze,
        std,
        sum,
        tanh,
        topk,
        tril,
        triu,
        unsqueeze,
        var,
    ) = (_OpMethod() for _ in range(43))

    def __repr__(self) -> str:
        """Return the elements in NumPy's format, followed by name, shape and dtype."""
        array = self.numpy()
        limit = _PRINTED_VALUES if len(self._shape) < 2 else _PRINTED_IN_ROWS
        if self._size > limit:
            # Select only the printed elements, and one between them that NumPy prints as
            # "...", so that a weight in a mapped file is not read completely.
            array = array[np.ix_(*(_edges(n, _EDGE_VALUES + 1) for n in self._shape))]
            limit = 0
        if self._dtype.is_float:
            array = array.astype(np.float32)
        text = np.array2string(
            array,
            separator=", ",
            prefix="Tensor(",
            threshold=limit,
            edgeitems=_EDGE_VALUES,
        )
        return (
            f"Tensor({text}, {self._label()}shape={list(self._shape)}, "
            f"dtype={self._dtype})"
        )

    def _repr_html_(self) -> str:
        """Return what notebooks show: shape, histogram, heat map and edges."""
        from . import html  # only needed in notebooks

        return html.describe(self.numpy(), self._name, str(self._dtype))

    # They are last, because in the body of the class their names hide Python's types.

    def float(self) -> "Tensor":
        """Convert the elements to float32; see `to`."""
        return self.to(float32)

    def half(self) -> "Tensor":
        """Convert the elements to float16; see `to`."""
        return self.to(float16)

    def bfloat16(self) -> "Tensor":
        """Convert the elements to bfloat16; see `to`."""
        return self.to(bfloat16)

    def int(self) -> "Tensor":
        """Convert the elements to int32; see `to`."""
        return self.to(int32)

    def long(self) -> "Tensor":
        """Convert the elements to int64; see `to`."""
        return self.to(int64)

    def bool(self) -> "Tensor":
        """Convert the elements to bool; see `to`."""
        return self.to(bool_)


for _name in ("floordiv", "mod", "divmod", "lshift", "rshift"):
    setattr(Tensor, f"__{_name}__", _missing_operator(_name))
    setattr(Tensor, f"__r{_name}__", _missing_operator(_name, is_reflected=True))

_METHODS = [name for name in vars(Tensor) if not name.startswith("_")]
add_missing_names(Tensor, tensor_hints(_METHODS))


def _selects_copy(key: Any) -> bool:
    """Return whether an index contains a list or a tensor of several elements.

    An integer tensor without dimensions selects a view, as an integer does.
    """
    kind = type(key)
    if kind is tuple:
        return True in map(_selects_copy, key)
    return kind is list or (
        kind is Tensor and (len(key._shape) > 0 or key._dtype.kind != "int")
    )


def _is_storage(storage: object) -> bool:
    if isinstance(storage, np.ndarray):
        return (
            storage.dtype == np.uint8 and storage.ndim == 1 and storage.flags.c_contiguous
        )
    return isinstance(storage, ffi.CData) and ffi.typeof(storage) is kernels.CHARS


def _buffer(storage: Storage) -> Any:
    """Return an object that supports the buffer protocol and keeps the storage alive."""
    return storage if isinstance(storage, np.ndarray) else ffi.buffer(storage)


def _edges(size: int, first: int) -> list[int]:
    """Return the first `first` indices, and the last `_EDGE_VALUES` of the others."""
    indices = range(size)
    return [*indices[:first], *indices[first:][-_EDGE_VALUES:]]


def _unpickle(bits: Array, dtype: DType, name: str) -> Tensor:
    """Rebuild a pickled tensor from the values of `Tensor.__reduce__`."""
    return Tensor.from_numpy(bits.view(dtype.numpy_dtype), name)


def allocate(shape: Shape, dtype: DType, name: str = "") -> Tensor:
    """Allocate a tensor as `Tensor.empty` does, for a shape that is already checked."""
    tensor: Tensor = _new(Tensor)
    size = 1
    for n in shape:
        size *= n
    nbytes = size * dtype.itemsize
    try:
        # cffi accepts a `char[]` as any C pointer type.
        tensor._storage = tensor._pointer = kernels.new_bytes(kernels.CHARS, nbytes)
    except (MemoryError, OverflowError):
        packed(shape, dtype.itemsize)  # raises if the address space is exceeded
        raise TensorMemoryError(f"[empty] bytes must fit into memory: {nbytes}") from None
    if not size:
        packed(shape, dtype.itemsize)
    tensor._shape = shape
    tensor._size = size
    tensor._dtype = dtype
    tensor._name = name
    tensor._offset = 0
    tensor._strides = tensor._weight = None
    return tensor
