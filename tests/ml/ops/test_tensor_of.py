"""Tensors made of Python's numbers, and simple matrices."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import SHAPES, check_same, sample, strided

EVERY_DTYPE = pytest.mark.parametrize("dtype", ml.DTYPES, ids=str)


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        ([True, False], ml.bool, (2,)),
        ([1, 2], ml.int64, (2,)),
        ([1, 2.5], ml.float32, (2,)),
        ([[1.0], [2.0]], ml.float32, (2, 1)),
        ([1, 1j], ml.complex64, (2,)),
        (3, ml.int64, ()),
        ([], ml.float32, (0,)),
        ([[], []], ml.float32, (2, 0)),
        (((1, 2), (3, 4)), ml.int64, (2, 2)),
        (range(4), ml.int64, (4,)),
        (np.ones((2, 3)), ml.float32, (2, 3)),
        (np.ones(2, np.int16), ml.int64, (2,)),
        (np.ones(2, np.uint8), ml.uint8, (2,)),
        (np.ones(2, ">f4"), ml.float32, (2,)),
        ([ml.tensor(1.0), ml.tensor(2.0)], ml.float32, (2,)),
    ],
)
def test_tensor_finds_the_dtype_as_pytorch_does(data, dtype, shape):
    x = ml.tensor(data)
    assert (x.dtype, x.shape) == (dtype, shape)
    assert np.array_equal(x.numpy(), np.array(data).astype(dtype.numpy_dtype))


@EVERY_DTYPE
def test_tensor_copies_and_converts(dtype):
    assert ml.tensor([[0, 1], [1, 0]], dtype=dtype).dtype is dtype
    assert ml.tensor([[0, 1], [1, 0]], dtype=dtype.name).tolist() == [[0, 1], [1, 0]]
    x = sample((2, 3), dtype)
    for data in (x, x.numpy()):
        check_same(made := ml.tensor(data), x.numpy())
        assert not np.shares_memory(made.numpy(), x.numpy())


@EVERY_DTYPE
def test_eye_zeros_and_ones(dtype):
    for rows, columns in ((3, 3), (2, 5), (5, 2), (0, 3), (3, 0)):
        check_same(ml.eye(rows, columns, dtype), np.eye(rows, columns, dtype=dtype.numpy_dtype))
    check_same(ml.eye(4, dtype=dtype.name), np.eye(4, dtype=dtype.numpy_dtype))
    for function, reference in ((ml.zeros, np.zeros), (ml.ones, np.ones)):
        expected = reference((2, 0, 3), dtype.numpy_dtype)
        for made in (
            function(2, 0, 3, dtype=dtype),
            function((2, 0, 3), dtype=dtype.name),
            function([2, 0, 3], dtype),
        ):
            check_same(made, expected)
        assert function(()).shape == ()
        assert function(4).dtype is ml.float32


@EVERY_DTYPE
@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 1], ids=str)
@pytest.mark.parametrize("diagonal", [-10, -1, 0, 1, 10])
def test_tril_is_numpys(dtype, shape, diagonal):
    for x in (sample(shape, dtype), strided(shape, dtype)):
        check_same(ml.tril(x, diagonal), np.tril(x.numpy(), diagonal))
        check_same(ml.triu(x, diagonal), np.triu(x.numpy(), diagonal))


def test_bools_fill_bool_tensors_only():
    assert ml.full((2,), True, "bool").tolist() == [True, True]
    assert ml.full((2,), 0, ml.bool).tolist() == [False, False]
    assert ml.full((2,), 0.5, ml.bool).tolist() == [True, True]
    assert ml.zeros(2, dtype=ml.bool).tolist() == [False, False]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ml.tensor("abc"),
            ml.DTypeError,
            "[tensor] data must be numbers: <U3 (shape [])",
        ),
        (
            lambda: ml.tensor(None),
            ml.DTypeError,
            "[tensor] data must be numbers: object (shape [])",
        ),
        (
            lambda: ml.tensor([2**63]),
            ml.TensorError,
            f"[tensor] value must be <= {2**63 - 1} for int64: {2**63}",
        ),
        (
            lambda: ml.tensor([300], dtype="uint8"),
            ml.TensorError,
            "[to] values must be in [0, 255] for uint8: 300.0",
        ),
        (
            lambda: ml.tensor([1], dtype=int),
            ml.DTypeError,
            f"[tensor] dtype must be one of {', '.join(map(str, ml.DTYPES))}: type",
        ),
        (lambda: ml.eye(-1), ml.ShapeError, "[eye] sizes must be >= 0: [-1, -1]"),
        (lambda: ml.eye("a"), ml.ShapeError, "[eye] sizes must be integers: ('a', 'a')"),
        (lambda: ml.zeros(True), ml.ShapeError, "[zeros] sizes must be integers: (True,)"),
        (lambda: ml.zeros(None), ml.ShapeError, "[zeros] sizes must be integers: (None,)"),
        (
            lambda: ml.zeros(2**40),
            ml.TensorMemoryError,
            f"[empty] bytes must fit into memory: {2**42}",
        ),
        (
            lambda: ml.full((2,), None),
            ml.DTypeError,
            "[full] value must be a number of the kind of float32: NoneType",
        ),
        (
            lambda: ml.full((2,), True),
            ml.DTypeError,
            "[full] value must be a number of the kind of float32: bool",
        ),
        (
            lambda: ml.arange(1.5, 2**40),
            ml.TensorMemoryError,
            f"[empty] bytes must fit into memory: {4 * (2**40 - 1)}",
        ),
        (
            lambda: ml.arange("a"),
            ml.DTypeError,
            "[arange] value must be a number of the kind of float32: str",
        ),
        (
            lambda: ml.arange(10**400),
            ml.TensorError,
            f"[arange] value must be in [{-(2**63)}, {2**63 - 1}] for int64: {10**400}",
        ),
        (
            lambda: ml.ones(2).to(None),
            ml.DTypeError,
            f"[to] dtype must be one of {', '.join(map(str, ml.DTYPES))}: NoneType",
        ),
        (
            lambda: ml.tril(ml.ones(2)),
            ml.ShapeError,
            "[tril] ndim must be >= 2: 1 (shape [2])",
        ),
        (
            lambda: ml.tril(ml.ones(2, 2), 0.5),
            ml.ShapeError,
            "[tril] diagonal must be integers: (0.5,)",
        ),
    ],
)
def test_what_is_no_number_is_refused(call, error, text):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


def test_sequences_of_unequal_lengths_are_refused():
    with pytest.raises(
        ml.ShapeError, match=r"^\[tensor\] nested sequences must have equal lengths"
    ):
        ml.tensor([[1], [1, 2]])


def test_the_limits_of_int64_are_held():
    assert ml.tensor([2**63 - 1, -(2**63)]).tolist() == [2**63 - 1, -(2**63)]
    assert ml.full((1,), -(2.0**63)).to("int64").item() == -(2**63)
    with pytest.raises(ml.TensorError, match="values must be in"):
        ml.full((1,), 2.0**63).to("int64")


def test_a_slice_of_an_empty_tensor_has_its_shape():
    assert ml.zeros((5, 0, 3)).slice(1, 5).numpy().shape == (4, 0, 3)
