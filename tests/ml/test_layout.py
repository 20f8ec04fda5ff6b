"""Shapes and strides of tensors and views, against NumPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from src import ml
from src.ml.layout import checked_ints
from tests.ml.op_checks import check_same

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def views(draw):
    """Arrays of any dtype and strides: permuted, stepped over, reversed, repeated."""
    shape = draw(shapes)
    array = np.arange(int(np.prod(shape))).reshape(shape)
    array = array.astype(draw(st.sampled_from(ml.DTYPES)).numpy_dtype)
    array = array.transpose(draw(st.permutations(range(len(shape)))))
    steps = draw(st.tuples(*[st.sampled_from([1, 2, 3, -1, -2])] * len(shape)))
    array = array[..., *(slice(None, None, step) for step in steps)]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(1, 3)), *array.shape))
    return array


@settings(max_examples=300)
@given(views())
def test_from_numpy_takes_any_strides(array):
    x = ml.Tensor.from_numpy(array, "name")
    assert (x.name, x.shape, x.ndim) == ("name", array.shape, array.ndim)
    assert (x.size, x.nbytes) == (array.size, array.nbytes)
    assert x.is_contiguous == array.flags.c_contiguous
    check_same(x, array)  # also the dtype
    for made, is_it in ((x.contiguous(), x.is_contiguous), (x.copy(), False)):
        check_same(made, array)
        assert (made.name, made.is_contiguous, made is x) == ("name", True, is_it)
        assert is_it or not np.shares_memory(made.numpy(), array)
    if array.size:
        assert x.strides == x.numpy().strides == array.strides
        assert x.data_pointer == array.__array_interface__["data"][0]
        assert np.shares_memory(x.numpy(), array)


@pytest.mark.parametrize(
    ("shape", "strides"), [((0,), (4,)), ((2, 0, 3), (12, 12, 4)), ((3, 0), (4, 4))]
)
def test_a_size_of_zero_counts_as_one_in_the_strides(shape, strides):
    assert ml.zeros(shape).strides == strides


@settings(max_examples=150)
@given(views(), st.data())
def test_reshape_is_a_view_exactly_where_numpy_makes_one(array, data):
    x = ml.Tensor.from_numpy(array)
    wanted = _another_shape(array.shape, data)
    expected = array.reshape(wanted)
    result = x.reshape(wanted)
    check_same(result, expected)
    if array.size > 1:
        is_view = np.shares_memory(array, expected)
        assert np.shares_memory(result.numpy(), array) == is_view
        assert is_view or (result.is_contiguous and result.is_writable)


def _another_shape(shape, data):
    """Split the number of elements into factors, with a few ones between them."""
    size = int(np.prod(shape))
    factors = [1] * data.draw(st.integers(0, 2))
    if not size:
        return tuple(data.draw(st.permutations(shape)))
    while size > 1:
        factor = data.draw(
            st.sampled_from([n for n in range(2, size + 1) if size % n == 0])
        )
        factors.append(factor)
        size //= factor
    return tuple(data.draw(st.permutations(factors)))


@given(shapes, shapes)
def test_two_shapes_broadcast_as_in_numpy(a, b):
    x = ml.zeros(a)
    y = ml.zeros(b)
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ml.ShapeError, match=r"^\[add\] sizes must be equal or 1"):
            ml.add(x, y)
    else:
        assert ml.add(x, y).shape == expected


def test_integers_of_any_kind_become_python_ints_and_nothing_else_does():
    for values in ((1, 2), [0, -3], (np.int64(4), np.uint8(5))):
        result = checked_ints("op", "sizes", values)
        assert result == tuple(int(value) for value in values)
        assert all(type(value) is int for value in result)
    for wrong in ((1.0,), (True,), ("x" * 10_000,), (None,), (2, np.bool_(True))):
        with pytest.raises(
            ml.ShapeError, match=r"^\[op\] sizes must be integers: .{,90}$"
        ):
            checked_ints("op", "sizes", wrong)
