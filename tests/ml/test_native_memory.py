"""Pointers and scratch: what the kernels are handed."""

import threading

import pytest

from src.ml import native_memory
from src.ml.kernel_settings import ffi
from src.ml.native_memory import allocate, pointer, scratch


def test_a_pointer_is_the_address_it_was_made_from() -> None:
    memory = allocate(8)
    address = int(ffi.cast("uintptr_t", memory))
    assert int(ffi.cast("uintptr_t", pointer(address))) == address
    assert pointer(0) == ffi.NULL


def test_scratch_is_kept_and_is_replaced_only_when_more_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_memory, "_local", threading.local())
    first = scratch(100)
    assert len(first) == 100
    assert scratch(1) is scratch(100) is first
    assert len(scratch(101)) == 101
    assert len(scratch(100)) == 101


def test_scratch_that_cannot_be_had_leaves_the_old_one_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(native_memory, "_local", threading.local())
    first = scratch(100)
    with pytest.raises((MemoryError, OverflowError)):
        scratch(1 << 62)
    assert scratch(100) is first


def test_each_thread_has_scratch_of_its_own() -> None:
    found = []
    other = threading.Thread(target=lambda: found.append(scratch(64)))
    other.start()
    other.join()
    assert found[0] is not scratch(64)
