"""Flat runs of bytes."""

import gc
import weakref

import numpy as np

from src import ml
from src.ml.storage import address_of, buffer_of, from_range, is_storage, is_writable


def allocate(nbytes):
    return ml.Tensor.empty(nbytes, ml.uint8).storage


def test_allocated_bytes_are_writable_and_keep_what_is_written():
    for nbytes in (0, 1, 7, 4096, 10_000_000):
        storage = allocate(nbytes)
        assert is_storage(storage)
        assert len(storage) == nbytes
        assert is_writable(storage)
        assert address_of(storage) % 8 == 0
        if nbytes:
            np.frombuffer(buffer_of(storage), np.uint8)[:] = 17
            assert (np.frombuffer(buffer_of(storage), np.uint8) == 17).all()


def test_an_array_over_allocated_bytes_outlives_the_storage():
    array = np.frombuffer(buffer_of(allocate(1 << 20)), np.uint8)
    array[:] = 5
    gc.collect()
    others = [allocate(1 << 20) for _ in range(4)]
    for other in others:
        np.frombuffer(buffer_of(other), np.uint8)[:] = 6
    assert (array == 5).all()


def test_an_array_is_a_storage_with_its_address_and_permission():
    array = np.arange(10, dtype=np.uint8)
    array.flags.writeable = False
    assert is_storage(array)
    assert (address_of(array), is_writable(array)) == (array.ctypes.data, False)
    assert buffer_of(array) is array


def test_other_objects_are_no_storage():
    arrays = np.zeros(3), np.zeros((2, 2), np.uint8), np.zeros(8, np.uint8)[::2]
    assert not any(is_storage(given) for given in (None, b"bytes", *arrays))


def test_a_range_keeps_its_owner_alive():
    class Owner(np.ndarray):
        pass

    owner = np.arange(4, dtype=np.float32).view(Owner)
    reference = weakref.ref(owner)
    storage = from_range(owner, owner.ctypes.data, 16, True)
    view = np.frombuffer(buffer_of(storage), np.float32)
    del owner, storage
    gc.collect()
    assert reference() is not None
    assert view.tolist() == [0, 1, 2, 3]
    del view
    gc.collect()
    assert reference() is None
