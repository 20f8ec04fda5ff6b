"""The cache's sizes, its layout, and what it refuses."""

import numpy as np
import pytest

from src import ml
from tests.ml.op_checks import EVERY_CACHE_DTYPE, sample


@EVERY_CACHE_DTYPE
def test_sizes_are_rounded_up_to_groups_and_counted_before_anything_is_allocated(dtype):
    words = 6 * dtype.itemsize // 4
    for positions, capacity in ((1, 16), (16, 16), (17, 32), (100, 112)):
        cache = ml.KeyValueCache(positions, 3, 6, dtype)
        assert (cache.positions, cache.capacity) == (positions, capacity)
        assert cache.keys.shape == (3, capacity // 16, words, 16, 6 // words)
        assert cache.values.shape == (3, capacity, 6)
        assert cache.nbytes == 2 * 3 * 6 * capacity * dtype.itemsize
        assert cache.nbytes == ml.KeyValueCache.bytes_for(positions, 3, 6, dtype)
        assert cache.keys.data_pointer % 64 == cache.values.data_pointer % 64 == 0


@EVERY_CACHE_DTYPE
def test_sixteen_positions_of_a_word_lie_side_by_side(dtype):
    cache = ml.KeyValueCache(40, 2, 6, dtype)
    xk, xv = sample((40, 2, 6), dtype), sample((40, 2, 6), dtype, seed=1)
    ml.write_cache(cache, 0, xk, xv)
    in_word = 4 // dtype.itemsize
    for position, head, element in ((0, 0, 0), (15, 1, 5), (16, 0, 1), (39, 1, 4)):
        place = head, position // 16, element // in_word, position % 16, element % in_word
        assert cache.keys.numpy()[place] == xk.numpy()[position, head, element]
        assert cache.values.numpy()[head, position, element] == xv.numpy()[position, head, element]


@EVERY_CACHE_DTYPE
def test_what_is_written_is_read_back_bit_for_bit(dtype):
    cache = ml.KeyValueCache(50, 2, 6, dtype)
    xk, xv = sample((50, 2, 6), dtype), sample((50, 2, 6), dtype, seed=1)
    for start, stop in ((0, 1), (1, 20), (20, 50)):
        ml.write_cache(cache, start, xk.slice(start, stop), xv.slice(start, stop))
    for start, stop in ((0, 50), (0, 0), (3, 9), (15, 17), (16, 32), (49, 50), (50, 50)):
        keys, values = ml.read_cache(cache, start, stop)
        np.testing.assert_array_equal(keys.bits(), xk.bits()[start:stop])
        np.testing.assert_array_equal(values.bits(), xv.bits()[start:stop])


def test_what_is_read_is_a_copy_and_views_are_packed_before_they_are_written():
    cache = ml.KeyValueCache(5, 3, 4, ml.float32)
    x = sample((3, 5, 4)).transpose(0, 1)
    ml.write_cache(cache, 0, x, x)
    read = ml.read_cache(cache, 0, 5)
    ml.write_cache(cache, 0, ml.zeros(5, 3, 4), ml.zeros(5, 3, 4))
    for found in read:
        np.testing.assert_array_equal(found.numpy(), x.numpy())


def test_a_write_from_the_cache_into_itself_is_refused():
    cache = ml.KeyValueCache(8, 2, 4, ml.float32)
    values = cache.values
    own = ml.Tensor(values.storage, (2, 2, 4), (32, 16, 4), ml.float32, "", values.offset)
    with pytest.raises(ml.TensorError, match="must not share memory with the cache"):
        ml.write_cache(cache, 0, own, sample((2, 2, 4)))


@pytest.mark.parametrize("name", ml.KeyValueCache.__slots__)
def test_no_attribute_can_be_changed(name: str) -> None:
    cache = ml.KeyValueCache(20, 2, 8, ml.float32)
    before = getattr(cache, name)
    with pytest.raises(AttributeError, match=rf"^\[KeyValueCache\] {name} is read-only$"):
        setattr(cache, name, 10**9)
    assert getattr(cache, name) is before
