"""What stands in square brackets, against NumPy's own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from src import ml
from tests.ml.op_checks import sample

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def shapes_and_keys(draw):
    """A shape, and a key for it that stays within its bounds."""
    shape = draw(shapes)
    count = draw(st.integers(0, len(shape)))
    ellipsis_at = draw(st.none() | st.integers(0, count))
    skipped = len(shape) - count
    key = []
    for place in range(count):
        dim = (
            place + skipped if ellipsis_at is not None and place >= ellipsis_at else place
        )
        key.append(_part(draw, shape[dim]))
    if ellipsis_at is not None:
        key.insert(ellipsis_at, Ellipsis)
    return shape, key[0] if len(key) == 1 and draw(st.booleans()) else tuple(key)


def _part(draw, size):
    if size and draw(st.booleans()):
        return draw(st.integers(-size, size - 1))
    start = draw(st.integers(0, size))
    stop = draw(st.integers(start, size))
    step = draw(st.none() | st.integers(1, 5))
    from_end = draw(st.booleans())
    first = start - size if from_end and start < size else start
    return slice(
        draw(st.sampled_from([first, None])) if start == 0 else first, stop, step
    )


@settings(max_examples=500)
@given(shapes_and_keys(), st.booleans())
def test_every_key_within_bounds_gives_numpys_view(shape_and_key, of_view):
    shape, key = shape_and_key
    array = np.arange(2 * int(np.prod(shape)), dtype=np.int32).reshape(*shape, 2)[..., 0]
    array = np.asarray(np.flip(array)) if of_view else array.copy()
    expected = array[key]
    result = ml.Tensor.from_numpy(array)[key]
    assert result.shape == np.shape(expected)
    assert np.array_equal(result.numpy(), expected)
    if result.size > 1:
        assert np.shares_memory(result.numpy(), array)
        assert all(
            mine == other or n == 1
            for mine, other, n in zip(
                result.strides, expected.strides, result.shape, strict=True
            )
        )


def test_a_slice_is_never_clamped():
    for start, stop in (
        (0, 4),
        (None, 500),
        (4, None),
        (-4, 2),
        (2, 1),
        (-1, -2),
        (0, -4),
    ):
        text = rf"start {start}, stop {stop}, size 3 \(dim 0, shape \[3\]\)$"
        with pytest.raises(ml.IndexOutOfRangeError, match=text):
            sample((3,))[start:stop]


def test_what_is_no_index_is_refused():
    for key in (1.0, True, "0", np.array([0]), (True, 0), (0, "a")):
        with pytest.raises(
            ml.TensorError, match=r"^\[getitem\] an index must be an integer, a "
        ):
            sample((2, 3))[key]


def test_numpy_integers_are_integers_and_an_empty_view_at_the_end_stays_within_the_storage():
    x = sample((3, 2), ml.int32)
    assert x[np.int64(1), np.uint8(1)].item() == x.numpy()[1, 1]
    assert (x[3:].offset, x[3:].shape, x[:, 2:, ...].numpy().shape) == (0, (0, 2), (3, 0))
