"""Flat runs of bytes."""

import gc
import weakref

import numpy as np
import pytest

from src.ml.storage import Storage


@pytest.mark.parametrize("nbytes", [0, 1, 7, 4096, 10_000_000])
def test_allocated_bytes_are_writable_and_keep_what_is_written(nbytes):
    storage = Storage(nbytes)
    assert storage.nbytes == nbytes
    assert storage.writable
    assert storage.address % 8 == 0
    array = np.frombuffer(storage.buffer(), np.uint8) if nbytes else np.empty(0, np.uint8)
    array[:] = 17
    assert (np.frombuffer(storage.buffer(), np.uint8) == 17).all() if nbytes else True


def test_an_array_over_allocated_bytes_outlives_the_storage():
    array = np.frombuffer(Storage(1 << 20).buffer(), np.uint8)
    array[:] = 5
    gc.collect()
    others = [Storage(1 << 20) for _ in range(4)]
    for other in others:
        np.frombuffer(other.buffer(), np.uint8)[:] = 6
    assert (array == 5).all()


def test_wrapped_bytes_keep_address_length_and_permission():
    array = np.arange(10, dtype=np.uint8)
    array.flags.writeable = False
    storage = Storage.from_bytes_array(array)
    assert (storage.address, storage.nbytes, storage.writable) == (array.ctypes.data, 10, False)
    assert storage.owner is array


def test_a_range_keeps_its_owner_alive():
    class Owner(np.ndarray):
        pass

    owner = np.arange(4, dtype=np.float32).view(Owner)
    reference = weakref.ref(owner)
    storage = Storage.from_range(owner, owner.ctypes.data, 16, True)
    view = np.frombuffer(storage.buffer(), np.float32)
    del owner, storage
    gc.collect()
    assert reference() is not None
    assert view.tolist() == [0, 1, 2, 3]
    del view
    gc.collect()
    assert reference() is None
