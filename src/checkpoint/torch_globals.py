"""What the globals of a `torch.save` pickle stand for: descriptions of tensors, never tensors.

The pickle of a state dict says of each tensor which storage it lies in and at what offset, size and
stride. These values only carry what it says; `torch_pth` compares it with the bytes that are there.

Source: PyTorch 2.13, `torch/_utils.py` (`_rebuild_tensor_v2`, `_rebuild_parameter`) and
`torch/serialization.py` (`persistent_id` of `_save`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import ml
from .errors import shown
from .pickle_values import Global, GlobalFunction, OrderedDictValue

__all__ = ["TORCH_GLOBALS", "StorageReference", "TensorReference", "load_storage"]

_LARGEST_SIZE = 1 << 48
_MOST_DIMENSIONS = 8
_LONGEST_KEY = 9


class StorageClass(Global):
    """A typed storage class of torch, known by the dtype of its elements."""

    __slots__ = ("dtype",)

    def __init__(self, name: str, dtype: ml.DType) -> None:
        super().__init__(name)
        self.dtype = dtype


@dataclass(frozen=True, slots=True)
class StorageReference:
    """The record `data/<key>` seen as `element_count` elements of `dtype`."""

    dtype: ml.DType
    key: str
    element_count: int


@dataclass(frozen=True, slots=True)
class TensorReference:
    """A strided window on a storage; offset and strides count elements, as PyTorch counts them."""

    storage: StorageReference
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def load_storage(persistent_id: object) -> StorageReference:
    """Read a persistent id `("storage", class, key, device, element count)`.

    The device is where the tensor lay when it was saved (`cpu`, `cuda:0`) and changes nothing here.

    Raises:
        ValueError: any other form.
    """
    if not isinstance(persistent_id, tuple) or len(persistent_id) != 5:
        raise ValueError("expected a tuple of 5 values, got something else")
    tag, storage_class, key, device, count = persistent_id
    if tag != "storage" or not isinstance(storage_class, StorageClass):
        raise ValueError("expected ('storage', a storage class, ...), got something else")
    if not isinstance(key, str) or not isinstance(device, str):
        raise ValueError("expected a key and a device label as text, got something else")
    if not (key.isascii() and key.isdigit()) or len(key) > _LONGEST_KEY:
        raise ValueError(f"expected a record number as key, got {shown(key)}")
    return StorageReference(storage_class.dtype, key, _size(count, "element count"))


def _size(value: object, what: str) -> int:
    """Check one size, stride or offset; a bool is an int to Python but not here."""
    if type(value) is not int:
        raise ValueError(f"{what}: expected an int, got a value of type {type(value).__name__}")
    if not 0 <= value <= _LARGEST_SIZE:
        raise ValueError(f"{what}: expected 0..{_LARGEST_SIZE}, got {value}")
    return value


def _sizes(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        raise ValueError(f"{what}: expected a tuple of at most {_MOST_DIMENSIONS} ints")
    return tuple(_size(item, what) for item in value)


def _rebuild_tensor(arguments: tuple[object, ...]) -> TensorReference:
    """Stand in for `_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)`."""
    if len(arguments) != 6:
        # A seventh argument carries the conjugate and negative bits, which change the values.
        raise ValueError(f"expected 6 arguments, got {len(arguments)}")
    storage, offset, shape, strides, requires_grad, hooks = arguments
    if not isinstance(storage, StorageReference):
        raise ValueError("expected a storage as first argument, got something else")
    _check_training_state(requires_grad, hooks)
    reference = TensorReference(
        storage, _size(offset, "offset"), _sizes(shape, "size"), _sizes(strides, "stride")
    )
    if len(reference.shape) != len(reference.strides):
        lengths = f"{len(reference.shape)} != {len(reference.strides)}"
        raise ValueError(f"len(size) must equal len(stride): {lengths}")
    return reference


def _rebuild_parameter(arguments: tuple[object, ...]) -> TensorReference:
    """Stand in for `_rebuild_parameter(data, requires_grad, hooks)`: the tensor itself."""
    if len(arguments) != 3 or not isinstance(arguments[0], TensorReference):
        raise ValueError("expected (tensor, requires_grad, hooks), got something else")
    _check_training_state(arguments[1], arguments[2])
    return arguments[0]


def _check_training_state(requires_grad: object, hooks: object) -> None:
    if not isinstance(requires_grad, bool) or not isinstance(hooks, OrderedDictValue) or hooks:
        raise ValueError("expected a bool and an empty OrderedDict of hooks, got something else")


def _ordered_dict(arguments: tuple[object, ...]) -> OrderedDictValue:
    if arguments:
        raise ValueError(f"expected no arguments, got {len(arguments)}")
    return OrderedDictValue()


_ALL: tuple[Global, ...] = (
    GlobalFunction("torch._utils._rebuild_tensor_v2", _rebuild_tensor),
    GlobalFunction("torch._utils._rebuild_parameter", _rebuild_parameter),
    GlobalFunction("collections.OrderedDict", _ordered_dict),
    StorageClass("torch.BFloat16Storage", ml.bfloat16),
    StorageClass("torch.HalfStorage", ml.float16),
    StorageClass("torch.FloatStorage", ml.float32),
)

TORCH_GLOBALS: dict[tuple[str, str], Global] = {
    (module, name): value for value in _ALL for module, _, name in [value.name.rpartition(".")]
}
"""The six allowed globals by (module, name)."""
