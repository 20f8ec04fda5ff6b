"""The family tree of errors."""

import pytest

from src import ml


@pytest.mark.parametrize("kind", [ml.ShapeError, ml.DTypeError, ml.IndexOutOfRangeError])
def test_every_error_of_the_library_is_a_tensor_error(kind):
    assert issubclass(kind, ml.TensorError)
    assert issubclass(ml.TensorError, ml.LlamaBoltsError)
    assert not issubclass(kind, (IndexError, TypeError, ValueError))


def test_a_refused_allocation_can_be_caught_as_either_family():
    with pytest.raises(ml.TensorMemoryError, match=r"\[empty\] bytes must fit into memory: "):
        ml.Tensor.empty((2**61,), ml.uint8)
    assert issubclass(ml.TensorMemoryError, ml.TensorError)
    assert issubclass(ml.TensorMemoryError, MemoryError)
