"""The door to C refuses whatever a kernel could not take, naming the rule and both values."""

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from src.ml import native
from src.ml.errors import DTypeError, ShapeError, TensorError
from src.ml.tensor import Tensor

BFLOAT16 = ml_dtypes.bfloat16


def zeros(*shape: int, dtype: Any = np.float32) -> Tensor:
    return Tensor.from_numpy(np.zeros(shape, dtype))


def half(*shape: int) -> Tensor:
    return zeros(*shape, dtype=np.float16)


def brain(*shape: int) -> Tensor:
    return zeros(*shape, dtype=BFLOAT16)


def ints(*shape: int) -> Tensor:
    return zeros(*shape, dtype=np.int32)


def turns(*shape: int) -> Tensor:
    return zeros(*shape, dtype=np.complex64)


SHAPE_REFUSALS: list[tuple[Callable[..., None], tuple[Any, ...], str]] = [
    (native.linear, (zeros(2, 3), [zeros(4, 5)], [zeros(2, 4)]), r"x.shape\[1\].*: 3 != 5"),
    (native.linear, (zeros(2, 3), [zeros(4, 3)], [zeros(4, 2)]), r"out.shape.*\[2, 4\]: \[4, 2\]"),
    (native.linear, (zeros(3), [zeros(4, 3)], [zeros(1, 4)]), r"x.ndim must equal 2: 1"),
    (
        native.batched_matmul,
        (zeros(1, 2, 3), zeros(2, 2, 3), zeros(1, 2, 2)),
        r"1 and 3 != 2 and 3",
    ),
    (
        native.batched_matmul,
        (zeros(1, 2, 3), zeros(1, 2, 4), zeros(1, 2, 2)),
        r"1 and 3 != 1 and 4",
    ),
    (native.batched_matmul, (zeros(1, 2, 3), zeros(1, 4, 3), zeros(1, 2, 2)), r"out.shape"),
    (native.softmax, (zeros(2, 3), zeros(2, 4)), r"out.shape must equal \[2, 3\]: \[2, 4\]"),
    (native.softmax, (zeros(3), zeros(3)), r"x.ndim must equal 2: 1"),
    (native.rms_norm, (zeros(2, 3), zeros(4), 1e-5, zeros(2, 3)), r"weight.shape"),
    (native.rotary, (zeros(2, 1, 3), turns(2, 1), zeros(2, 1, 3)), r"must be even: 3"),
    (native.rotary, (zeros(2, 1, 4), turns(1, 2), zeros(2, 1, 4)), r"frequencies.shape"),
    (native.add, (zeros(2), zeros(3), zeros(2)), r"shape must equal \[2\]: \[3\]"),
    (native.silu, (zeros(2), zeros(3)), r"shape must equal \[3\]: \[2\]"),
    (native.argmax, (zeros(2, 0), ints(2)), r"x.shape\[1\] must be in"),
    (native.argmax, (zeros(2, 3), ints(3)), r"out.shape"),
    (native.convert, (zeros(2), half(3)), r"out.shape"),
]
SEVERAL_REFUSALS: list[tuple[list[Tensor], list[Tensor], str]] = [
    ([], [], r"len\(weights\) must equal len\(outs\) and be >= 1: 0 != 0"),
    ([zeros(4, 3)], [zeros(2, 4), zeros(2, 4)], r"and be >= 1: 1 != 2"),
    ([zeros(4, 3), zeros(4, 2)], [zeros(2, 4), zeros(2, 4)], r"x.shape\[1\].*: 3 != 2"),
    ([zeros(4, 3), half(4, 3)], [zeros(2, 4), zeros(2, 4)], r"weight.dtype must equal float32"),
    ([zeros(4, 3), zeros(4, 3)], [zeros(2, 4), brain(2, 4)], r"out.dtype must equal float32"),
    ([zeros(4, 3), zeros(4, 3)], [zeros(2, 4), zeros(2, 3)], r"out.shape.*\[2, 4\]: \[2, 3\]"),
]


DTYPE_REFUSALS: list[tuple[Callable[..., None], tuple[Any, ...], str]] = [
    (native.linear, (brain(2, 3), [zeros(4, 3)], [zeros(2, 4)]), r"bfloat16 x float32 -> float32"),
    (native.linear, (zeros(2, 3), [zeros(4, 3)], [brain(2, 4)]), r"float32 x float32 -> bfloat16"),
    (native.linear, (ints(2, 3), [ints(4, 3)], [ints(2, 4)]), r"int32 x int32"),
    (native.batched_matmul, (zeros(1, 2, 3), half(1, 2, 3), zeros(1, 2, 2)), r"float32 != float16"),
    (native.softmax, (half(2, 3), zeros(2, 3)), r"x.dtype.*: float16"),
    (native.softmax, (zeros(2, 3), ints(2, 3)), r"out.dtype.*: int32"),
    (native.rms_norm, (zeros(2, 3), ints(3), 1e-5, zeros(2, 3)), r"weight.dtype.*: int32"),
    (native.rotary, (zeros(2, 1, 4), zeros(2, 2), zeros(2, 1, 4)), r"frequencies.dtype"),
    (native.rotary, (zeros(2, 1, 4), turns(2, 2), brain(2, 1, 4)), r"out.dtype.*32: bfloat16"),
    (native.add, (zeros(2), brain(2), zeros(2)), r"dtype must equal float32: bfloat16"),
    (native.argmax, (zeros(2, 3), zeros(2)), r"out.dtype.*: float32"),
    (native.convert, (ints(2), zeros(2)), r"x.dtype.*: int32"),
]


@pytest.mark.parametrize(("kernel", "arguments", "text"), SHAPE_REFUSALS)
def test_sizes_that_do_not_fit_are_refused_with_both(
    kernel: Callable[..., None], arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(ShapeError, match=text):
        kernel(*arguments)


@pytest.mark.parametrize(("kernel", "arguments", "text"), DTYPE_REFUSALS)
def test_dtypes_without_a_kernel_are_refused_by_name(
    kernel: Callable[..., None], arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(DTypeError, match=text):
        kernel(*arguments)


@pytest.mark.parametrize(("weights", "outs", "text"), SEVERAL_REFUSALS)
def test_each_of_several_weights_is_checked(
    weights: list[Tensor], outs: list[Tensor], text: str
) -> None:
    with pytest.raises((ShapeError, DTypeError), match=text):
        native.linear(zeros(2, 3), weights, outs)


def test_results_of_several_weights_overlap_neither_a_weight_nor_one_another() -> None:
    memory = Tensor.from_numpy(np.zeros((3, 3), np.float32))
    with pytest.raises(TensorError, match="must not overlap"):
        native.linear(zeros(3, 3), [zeros(3, 3), memory], [memory, zeros(3, 3)])
    with pytest.raises(TensorError, match="must not overlap"):
        native.linear(zeros(3, 3), [zeros(3, 3), zeros(3, 3)], [memory, memory])


def test_tensors_with_gaps_are_refused() -> None:
    gaps = Tensor.from_numpy(np.zeros((4, 6), np.float32)[:, ::2])
    with pytest.raises(TensorError, match="x must be contiguous"):
        native.linear(gaps, [zeros(2, 3)], [zeros(4, 2)])
    with pytest.raises(TensorError, match="out must be contiguous"):
        native.softmax(zeros(4, 3), gaps)
    with pytest.raises(TensorError, match=r"a.strides\[2\] must equal 4: 8"):
        native.batched_matmul(wide(), *rest())


def wide() -> Tensor:
    """Make rows [1, 4, 3] whose elements have gaps between them."""
    return Tensor.from_numpy(np.zeros((1, 4, 6), np.float32)[:, :, ::2])


def rest() -> tuple[Tensor, Tensor]:
    """Make a b and an out that go with it."""
    return zeros(1, 2, 3), zeros(1, 4, 2)


def test_rows_that_run_backwards_are_refused() -> None:
    backwards = Tensor.from_numpy(np.zeros((1, 4, 3), np.float32)[:, ::-1])
    with pytest.raises(TensorError, match="strides must be >= 0"):
        native.batched_matmul(backwards, *rest())


def test_unaligned_elements_are_refused() -> None:
    odd = Tensor.from_numpy(np.frombuffer(bytearray(25), np.float32, 6, offset=1).reshape(2, 3))
    with pytest.raises(TensorError, match="aligned"):
        native.softmax(odd, zeros(2, 3))


def test_a_result_that_may_not_be_written_is_refused() -> None:
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(TensorError, match="out must be writable"):
        native.softmax(zeros(2, 3), Tensor.from_numpy(frozen))


def test_a_result_that_overlaps_an_input_is_refused() -> None:
    memory = np.zeros(40, np.float32)
    x, shifted = Tensor.from_numpy(memory[:9]), Tensor.from_numpy(memory[1:10])
    with pytest.raises(TensorError, match="must not overlap"):
        native.silu(x, shifted)
    with pytest.raises(TensorError, match="must not overlap"):
        native.convert(x, x)
    square = Tensor.from_numpy(memory[:9].reshape(3, 3))
    with pytest.raises(TensorError, match="must not overlap"):
        native.linear(square, [zeros(3, 3)], [square])
    with pytest.raises(TensorError, match="must not overlap"):
        native.linear(zeros(3, 3), [square], [square])
    native.silu(x, x)
    heads = zeros(2, 1, 4)
    with pytest.raises(TensorError, match="must not overlap"):
        native.rotary(heads, turns(2, 2), heads, halves=True)
    native.rotary(heads, turns(2, 2), heads)


def run_linear(x: Any, weight: Any, out: Any) -> None:
    native.linear(Tensor.from_numpy(x), [Tensor.from_numpy(weight)], [Tensor.from_numpy(out)])


def test_two_python_threads_compute_at_once_without_mixing_their_scratch() -> None:
    generator = np.random.default_rng(3)
    x = [generator.standard_normal((20, 300)).astype(np.float32) for _ in range(4)]
    weight = generator.standard_normal((90, 300)).astype(np.float32)
    expected = [np.empty((20, 90), np.float32) for _ in x]
    results = [np.empty((20, 90), np.float32) for _ in x]
    for one, out in zip(x, expected, strict=True):
        run_linear(one, weight, out)

    def repeat(i: int) -> None:
        for _ in range(30):
            run_linear(x[i], weight, results[i])

    workers = [threading.Thread(target=repeat, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, out in zip(expected, results, strict=True):
        np.testing.assert_array_equal(one, out)
