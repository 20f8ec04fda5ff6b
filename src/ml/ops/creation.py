"""Ops that create tensors from specified or random values."""

import math
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

# NumPy imports this module lazily and can lose an interrupt during the import, so it is
# imported here.
import numpy.random

from ..checks import (
    check_float,
    checked_flag,
    float_dtype,
    rounded,
    sizes_and_dtype,
)
from ..dtype import (
    DTYPES,
    DType,
    checked_number,
    checked_scalar,
    complex64,
    dtype_named,
    float32,
    int32,
    int64,
)
from ..errors import DTypeError, ShapeError, TensorError, TensorTypeError
from ..layout import Shape, checked_ints, checked_shape, packed
from ..op import op
from ..tensor import Tensor, allocate

_MOST_VALUES = 2**60  # more than any memory holds
_MOST_INT64 = 2**63 - 1
_ROWS = [row.numpy_dtype for row in DTYPES]


@op
def arange(
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DType | str | None = None,
) -> Tensor:
    """Return evenly spaced values from `start` to `stop`, excluding `stop`.

    out[i] = start + i * step, i in [0, ceil((stop - start) / step)); computed in float64,
    rounded once

    Args:
        start: The first value. If `stop` is omitted, this is the end of the range, and
            the first value is 0.
        stop: The end of the range.
        step: The difference between adjacent values. It must not be 0.
        dtype: The dtype of the result. The default is int32 if all arguments are
            integers, and float32 otherwise.

    Returns:
        A tensor [n].

    Raises:
        TensorError: If the step is 0, an argument is not finite, or a value is out of
            range for the dtype.
    """
    arguments: tuple[Any, ...] = (0, start, step) if stop is None else (start, stop, step)
    bounds = [x.item() if isinstance(x, Tensor) else x for x in arguments]
    whole = all(isinstance(number, int | np.integer) for number in bounds)
    numbers = [
        checked_number("arange", number, int64 if whole else float32) for number in bounds
    ]
    first, end, step = numbers
    if step == 0 or not all(math.isfinite(number) for number in numbers):
        text = ", ".join(map(str, bounds))
        raise TensorError(
            f"[arange] start, stop and step must be finite, and step != 0: {text}"
        )
    dtype = (
        (int32 if whole else float32) if dtype is None else dtype_named("arange", dtype)
    )
    # The number of steps is exact for integers of any size.
    steps = -(-(end - first) // step) if whole else (end - first) / step
    count = math.ceil(min(max(steps, 0), _MOST_VALUES))
    result = allocate(checked_shape("arange", (count,)), dtype)
    if count:
        # The first and the last value are the extremes, so no other value needs a check.
        checked_scalar("arange", first, dtype)
        checked_scalar("arange", first + (count - 1) * step, dtype)
        with np.errstate(over="ignore"):
            result.numpy()[...] = (first + np.arange(count) * step).astype(
                dtype.numpy_dtype
            )
    return result


@op
def linspace(
    start: float, end: float, steps: int, dtype: DType | str = float32
) -> Tensor:
    """Return evenly spaced values from `start` to `end`, including both.

    out[i] = start + i * (end - start) / (steps - 1), computed in float64, rounded through
    float32

    Args:
        start: The first value.
        end: The last value.
        steps: The number of values. With one step, the result is `start`.
        dtype: A real floating-point dtype.

    Returns:
        A tensor [steps].

    Raises:
        ShapeError: If `steps` is negative or not an integer.
        DTypeError: If the dtype is not floating point, or if a bound is not real.
    """
    (count,) = checked_shape("linspace", (steps,))
    row = float_dtype("linspace", dtype)
    first, last = (checked_number("linspace", x, float32) for x in (start, end))
    packed((count,), 8)
    with np.errstate(all="ignore"):
        return rounded(np.linspace(first, last, count), row)


@op
def full(
    shape: Iterable[int] | int, value: complex, dtype: DType | str = float32
) -> Tensor:
    """Return a new tensor filled with one value.

    Raises:
        ShapeError: If a size is negative or not an integer.
        DTypeError: If the dtype cannot represent a number of this kind, such as a complex
            number in a float tensor.
        TensorError: If the value is an integer that does not fit into the dtype.
    """
    return _fill("full", (shape,), value, dtype)


@op
def zeros(*shape: int | Iterable[int] | DType, dtype: DType | str = float32) -> Tensor:
    """Return a new tensor filled with zeros: `zeros(3, 4)` or `zeros((3, 4))`.

    The dtype may also be passed after the sizes: `zeros((3, 4), ml.bfloat16)`. See `full`
    for the exceptions.
    """
    return _fill("zeros", shape, 0, dtype)


@op
def ones(*shape: int | Iterable[int] | DType, dtype: DType | str = float32) -> Tensor:
    """Return a new tensor filled with ones: `ones(3, 4)` or `ones((3, 4))`.

    The dtype may also be passed after the sizes: `ones((3, 4), ml.bfloat16)`. See `full`
    for the exceptions.
    """
    return _fill("ones", shape, 1, dtype)


def _fill(op: str, shape: tuple[Any, ...], value: complex, dtype: DType | str) -> Tensor:
    sizes, row = sizes_and_dtype(op, shape, dtype)
    scalar = checked_scalar(op, value, row)
    result = allocate(sizes, row)
    result.numpy()[...] = scalar
    return result


@op
def full_like(x: Tensor, value: complex) -> Tensor:
    """Return a tensor with the shape and dtype of `x`, filled with one value.

    See `full` for the exceptions.
    """
    return full(x.shape, value, x.dtype)


@op
def zeros_like(x: Tensor) -> Tensor:
    """Return a tensor of zeros with the shape and dtype of `x`."""
    return full(x.shape, 0, x.dtype)


@op
def ones_like(x: Tensor) -> Tensor:
    """Return a tensor of ones with the shape and dtype of `x`."""
    return full(x.shape, 1, x.dtype)


@op
def tensor(data: Any, dtype: DType | str | None = None) -> Tensor:
    """Create a new tensor by copying a number, nested sequences, an array or a tensor.

    By default, the result has the dtype of the array or tensor, and Python numbers become
    bool, int64, float32 or complex64, as in PyTorch.
    """
    if isinstance(data, Tensor):
        values = data.copy()
    else:
        try:
            array = np.array(data)
        except (TypeError, ValueError) as error:
            text = f"[tensor] nested sequences must have equal lengths: {error}"
            raise ShapeError(text) from None
        values = Tensor.from_numpy(
            array if array.dtype in _ROWS else _to_supported_dtype(array)
        )
    return values if dtype is None else values.to(dtype_named("tensor", dtype))


def _to_supported_dtype(array: Any) -> Any:
    """Convert an array of an unsupported dtype to the nearest supported one."""
    row = {"i": int64, "u": int64, "f": float32, "c": complex64}.get(array.dtype.kind)
    if row is None:
        text = f"[tensor] data must be numbers: {array.dtype} (shape {list(array.shape)})"
        raise DTypeError(text)
    if row is int64 and array.size and int(array.max()) > _MOST_INT64:
        raise TensorError(
            f"[tensor] value must be <= {_MOST_INT64} for int64: {array.max()}"
        )
    with np.errstate(over="ignore"):
        return array.astype(row.numpy_dtype)


@op
def eye(rows: int, columns: int | None = None, dtype: DType | str = float32) -> Tensor:
    """Return the identity matrix [rows, columns], which is square by default."""
    sizes = checked_shape("eye", (rows, rows if columns is None else columns))
    result = _fill("eye", (sizes,), 0, dtype)
    np.fill_diagonal(result.numpy(), 1)
    return result


class Generator:
    """A random number generator. The same seed always produces the same numbers.

    Args:
        seed: A non-negative integer, or None for a seed chosen by the system.
    """

    def __init__(self, seed: int | None = None) -> None:
        try:
            self.numpy = np.random.default_rng(seed)
        except (TypeError, ValueError):
            raise TensorError(
                f"[Generator] seed must be an integer >= 0: {seed!r:.80}"
            ) from None


_finfo: Any = ml_dtypes.finfo  # ml_dtypes does not provide a type hint
_default_generator = Generator()


@op
def rand(
    *shape: int | Iterable[int] | DType,
    generator: Generator | None = None,
    dtype: DType | str = float32,
) -> Tensor:
    """Return random numbers from a uniform distribution on [0, 1).

    out = k * 2 ** -bits, with k uniform in [0, 2 ** bits) and the precision of the dtype
    in bits

    Args:
        shape: The size of each dimension, as separate arguments or as one sequence.
        generator: The random number generator. By default, a generator shared by the
            whole process is used.
        dtype: A real floating-point dtype.
    """
    sizes, row = sizes_and_dtype("rand", shape, dtype)
    bits = _finfo(float_dtype("rand", row).numpy_dtype).nmant + 1
    drawn = _numpy_generator("rand", generator, sizes).integers(0, 2**bits, sizes)
    return rounded(np.ldexp(drawn.astype(np.float32), -bits), row)


@op
def randn(
    *shape: int | Iterable[int] | DType,
    generator: Generator | None = None,
    dtype: DType | str = float32,
) -> Tensor:
    """Return random numbers from a normal distribution with mean 0 and variance 1.

    See `rand` for the arguments.
    """
    sizes, row = sizes_and_dtype("randn", shape, dtype)
    float_dtype("randn", row)
    return rounded(
        _numpy_generator("randn", generator, sizes).standard_normal(sizes, np.float32),
        row,
    )


@op
def multinomial(
    probabilities: Tensor,
    num_samples: int,
    replacement: bool = False,
    generator: Generator | None = None,
) -> Tensor:
    """Draw indices at random, each with a probability proportional to its weight.

    Args:
        probabilities: A floating-point tensor [n] or [rows, n] of weights >= 0, with a
            positive sum in each row. They need not sum to 1.
        num_samples: The number of draws from each row.
        replacement: Whether an index may be drawn more than once. Otherwise, a row must
            have at least `num_samples` positive weights.
        generator: The random number generator. By default, a generator shared by the
            whole process is used.

    Returns:
        An int64 tensor [num_samples] or [rows, num_samples].

    Raises:
        ShapeError: If `probabilities` does not have one or two dimensions, or if a row
            has too few positive weights.
        DTypeError: If the weights are not floating point.
        TensorError: If a weight is negative or not finite, or if a sum is not positive.
    """
    check_float("multinomial", probabilities)
    if probabilities.ndim not in (1, 2):
        raise ShapeError(
            f"[multinomial] ndim must equal 1 or 2: {probabilities.ndim} (shape "
            f"{list(probabilities.shape)})"
        )
    count = checked_ints("multinomial", "num_samples", (num_samples,))[0]
    is_replaced = checked_flag("multinomial", "replacement", replacement)
    rows = math.prod(probabilities._shape[:-1])
    values = probabilities.numpy().astype(np.float64)
    values = values.reshape(rows, probabilities._shape[-1])
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise TensorError("[multinomial] weights must be finite and >= 0: they are not")
    available = int((values > 0).sum(1).min(initial=values.shape[1]))
    if count < 1 or (count > available and not is_replaced):
        raise ShapeError(
            "[multinomial] num_samples must be >= 1 and <= the number of positive "
            f"weights of each row: {count} (at most {available})"
        )
    if not (values.sum(1) > 0).all():
        raise TensorError("[multinomial] the sum of each row must be > 0: 0.0")
    random = _numpy_generator("multinomial", generator, (values.shape[0], count))
    result = allocate((*probabilities._shape[:-1], count), int64)
    if is_replaced or count == 1:
        # An index is drawn if a random point hits its part of the line from 0 to the sum.
        ends = values.cumsum(1)
        points = random.random((values.shape[0], count)) * ends[:, -1:]
        drawn = np.stack(
            [
                np.searchsorted(e, p, side="right")
                for e, p in zip(ends, points, strict=True)
            ]
        )
    else:
        # The smallest of exponential times with these rates come first.
        with np.errstate(divide="ignore"):
            times = random.exponential(size=values.shape) / values
        drawn = np.argsort(times, 1)[:, :count]
    result.numpy()[...] = drawn.reshape(result._shape)
    return result


def _numpy_generator(op: str, generator: Any, sizes: Shape) -> np.random.Generator:
    """Return the NumPy generator, after checking that memory can address the result."""
    packed(sizes, 8)
    if not isinstance(generator, Generator | None):
        raise TensorTypeError(
            f"[{op}] generator must be a Generator: {type(generator).__name__}"
        )
    return (generator or _default_generator).numpy
