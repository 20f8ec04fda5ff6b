"""Arithmetic on shapes and strides, against NumPy's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from src import ml
from src.ml.layout import (
    broadcast_shapes,
    broadcast_strides,
    byte_extent,
    checked_ints,
    checked_shape,
    is_packed,
    packed,
    reshape_strides,
    resolve_dim,
    resolve_reshape,
)

sizes = st.integers(0, 4)
shapes = st.lists(sizes, max_size=4).map(tuple)
filled_shapes = st.lists(st.integers(1, 4), max_size=4).map(tuple)
dtypes = st.sampled_from(["u1", "f2", "f4", "c8"])


@st.composite
def views(draw, filled=False):
    """Arrays with any strides: permuted, stepped over, reversed, repeated."""
    shape = draw(filled_shapes if filled else shapes)
    array = np.arange(int(np.prod(shape)), dtype=np.uint8).reshape(shape)
    array = array.transpose(draw(st.permutations(range(len(shape)))))
    steps = draw(st.tuples(*[st.sampled_from([1, 2, 3, -1, -2])] * len(shape)))
    array = array[tuple(slice(None, None, step) for step in steps)]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(1, 3)), *array.shape))
    return array


@given(filled_shapes, dtypes)
def test_packed_strides_and_size_are_numpys(shape, dtype):
    array = np.empty(shape, dtype)
    assert packed(shape, array.itemsize) == (array.strides, array.size)


@pytest.mark.parametrize(
    ("shape", "strides"), [((0,), (4,)), ((2, 0, 3), (12, 12, 4)), ((3, 0), (4, 4))]
)
def test_a_size_of_zero_counts_as_one_in_the_strides(shape, strides):
    assert packed(shape, 4) == (strides, 0)


def test_packed_refuses_more_bytes_than_an_address_counts():
    with pytest.raises(ml.ShapeError, match=r"^\[shape\] bytes must be <= 9223372036854775807: "):
        packed((2**31, 2**31, 2), 2)
    assert packed((2**31, 2**31), 1)[1] == 2**62


@given(views())
def test_is_packed_is_numpys_c_contiguous_flag(array):
    assert is_packed(array.shape, array.strides, 1) == array.flags.c_contiguous


@given(views())
def test_byte_extent_is_what_the_elements_touch(array):
    low, high = np.lib.array_utils.byte_bounds(array)
    start = array.__array_interface__["data"][0]
    expected = (low - start, high - start) if array.size else (0, 0)
    assert byte_extent(array.shape, array.strides, 1) == expected


@settings(max_examples=150)
@given(views(filled=True), st.data())
def test_reshape_is_a_view_exactly_where_numpy_makes_one(array, data):
    wanted = _another_shape(array.size, data)
    strides = reshape_strides(array.shape, array.strides, wanted, 1)
    expected = array.reshape(wanted)
    if array.size == 1:
        assert strides is not None
        return
    assert (strides is not None) == np.shares_memory(array, expected)
    if strides is not None:
        mine = np.lib.stride_tricks.as_strided(array, wanted, strides)
        assert np.array_equal(mine, expected)


def _another_shape(size, data):
    """Split a number into factors, with a few ones between them."""
    shape = [1] * data.draw(st.integers(0, 2))
    while size > 1:
        factor = data.draw(st.sampled_from([n for n in range(2, size + 1) if size % n == 0]))
        shape.append(factor)
        size //= factor
    return tuple(data.draw(st.permutations(shape)))


@given(shapes, shapes)
def test_broadcast_shapes_are_numpys(a, b):
    try:
        expected = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(ml.ShapeError, match=r"^\[op\] sizes must be equal or 1"):
            broadcast_shapes("op", a, b)
    else:
        assert broadcast_shapes("op", a, b) == expected


@given(views(filled=True), st.lists(st.integers(1, 3), max_size=2).map(tuple))
def test_broadcast_strides_repeat_as_numpy_does(array, more):
    target = (*more, *(n if n > 1 else 3 for n in array.shape))
    strides = broadcast_strides(array.shape, array.strides, target)
    mine = np.lib.stride_tricks.as_strided(array, target, strides)
    assert np.array_equal(mine, np.broadcast_to(array, target))


def test_integers_of_any_kind_become_python_ints_and_nothing_else_does():
    for values in ((1, 2), [0, -3], (np.int64(4), np.uint8(5))):
        result = checked_ints("op", "sizes", values)
        assert result == tuple(int(value) for value in values)
        assert all(type(value) is int for value in result)
    for values in ((1.0,), (True,), ("3",), (None,), (2, np.bool_(True))):
        with pytest.raises(ml.ShapeError, match=r"^\[op\] sizes must be integers: "):
            checked_ints("op", "sizes", values)


def test_a_long_list_of_nonsense_is_cut_in_the_message():
    with pytest.raises(ml.ShapeError) as caught:
        checked_ints("op", "sizes", ["x" * 10_000])
    assert len(str(caught.value)) < 130


def test_a_shape_may_be_one_number_and_dimensions_count_from_both_ends():
    assert checked_shape("op", 3) == (3,)
    assert checked_shape("op", ()) == ()
    assert [resolve_dim("op", dim, 3) for dim in (0, 2, -1, -3)] == [0, 2, 2, 0]


@pytest.mark.parametrize(
    ("shape", "wanted", "expected"),
    [
        ((6,), (2, 3), (2, 3)), ((6,), (2, -1), (2, 3)), ((6,), (-1,), (6,)), ((1,), (), ()),
        ((), (-1,), (1,)), ((0, 3), (3, 0), (3, 0)), ((0, 3), (-1, 3), (0, 3)),
        ((0, 3), (2, -1), (2, 0)),
    ],
)  # fmt: skip
def test_reshape_fills_in_one_hole(shape, wanted, expected):
    assert resolve_reshape(shape, int(np.prod(shape)), wanted) == expected
