"""A pointer is taken in one place, of what has been checked, and C is called by one door."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from src.ml import (
    native,
    native_attention,
    native_checks,
    native_memory,
    native_products,
    native_quantized,
    quantized,
    recording,
)
from src.ml.dtype import bfloat16, float32
from src.ml.errors import DTypeError, ShapeError, TensorError
from src.ml.key_value_cache import KeyValueCache
from src.ml.tensor import Tensor

from .guard_cases import CASES, sizes_of
from .guard_pages import Blocks
from .operands import bf16, f32, normal, tensor
from .surface import kernels

SRC = Path(__file__).parents[2] / "src"
MODULES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))
# What makes a pointer out of something else, or moves what one points to.
POINTER_MAKERS = {
    "cast", "from_buffer", "addressof", "new_handle", "from_handle", "gc", "dlopen", "memmove",
}  # fmt: skip
# The door: these call kernels and take pointers. A recorded step takes its arguments again.
DOOR = {
    "ml/native.py", "ml/native_attention.py", "ml/native_products.py", "ml/native_quantized.py",
}  # fmt: skip
TAKERS = DOOR | {"ml/native_memory.py", "ml/quantized.py", "ml/recording.py"}
MAKERS = {"ml/native_memory.py": {"cast"}, "ml/recording.py": {"memmove"}}


def names_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before and after each dot of a module, and its plain names."""
    for node in ast.walk(ast.parse((SRC / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Name):
            yield "", node.id


@pytest.mark.parametrize("path", MODULES)
def test_pointers_are_made_in_one_module_and_kernels_called_by_the_door(path: str) -> None:
    names = set(names_of(path))
    made = {name for owner, name in names if owner == "ffi" and name in POINTER_MAKERS}
    assert made == MAKERS.get(path, set())
    assert ("", "ctypes") not in names
    if path not in TAKERS:
        assert "pointer" not in {name for _, name in names}
    if path not in DOOR:
        assert not {name for owner, name in names if owner == "lib" and name in kernels()}


def test_every_kernel_is_called_by_the_door_once() -> None:
    called = [
        name
        for path in sorted(DOOR)
        for node in ast.walk(ast.parse((SRC / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("lib.")
        for name in [ast.unparse(node.func).removeprefix("lib.")]
        if name in kernels()
    ]
    assert sorted(called) == sorted(kernels())


class Checked:
    """Notes which bytes were checked, and refuses a pointer to any others."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []
        self.pointers = 0

    def dense(self, op: str, label: str, x: Tensor) -> int:
        """Check as native.py does, and note the bytes."""
        address = native_checks.dense(op, label, x)
        self._ranges.append((address, x.nbytes))
        return address

    def output(self, op: str, x: Tensor) -> int:
        """Check as native.py does, and note the bytes."""
        address = native_checks.output(op, x)
        self._ranges.append((address, x.nbytes))
        return address

    def strided_rows(self, label: str, x: Tensor) -> tuple[int, int]:
        """Check as native.py does, and note the bytes."""
        found = native_checks.strided_rows(label, x)
        self._ranges.append(found)
        return found

    def pointer(self, address: int) -> Any:
        """Make a pointer to checked bytes, or to none."""
        inside = (low <= address <= low + nbytes for low, nbytes in self._ranges)
        assert address == 0 or any(inside), f"{address:#x} was not checked"
        self.pointers += 1
        return native_memory.pointer(address)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Watch the checks and the pointers of the door."""
    spy = Checked()
    modules: tuple[Any, ...] = (
        native, native_attention, native_products, native_quantized, quantized, recording,
    )  # fmt: skip
    for module in modules:
        for name in ("dense", "output", "strided_rows", "pointer"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(spy, name))
    return spy


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_pointer_of_a_kernel_is_one_whose_tensor_was_checked(
    checked: Checked, name: str
) -> None:
    memory, case = Blocks(), CASES[name]
    for variant in case.variants:
        case.run(memory, *variant, *sizes_of(case, "few")[-1])
    memory.release()
    tensors = [p for p in kernels()[name] if "void *" in p.type and p.name != "scratch"]
    assert checked.pointers >= len(case.variants) * len(tensors)


def test_a_pointer_that_was_not_checked_is_seen(checked: Checked) -> None:
    x = tensor(normal((2, 3), f32))
    with pytest.raises(AssertionError, match="was not checked"):
        native.pointer(x.data_pointer)
    native.softmax(x, x)
    native.pointer(x.data_pointer)


# ---- byte lengths -------------------------------------------------------------------------------


def beyond(shape: tuple[int, ...], offset: int) -> Tensor:
    """Make a tensor that does not lie in its storage, as no code of ours does."""
    inside = tensor(normal((8, 8), f32))
    packed = tensor(normal(shape, f32)).strides
    return inside._view(shape, packed, offset)


CALLS: list[Callable[[Tensor], None]] = [
    lambda x: native.softmax(x, tensor(normal(x.shape, f32))),
    lambda x: native.softmax(tensor(normal(x.shape, f32)), x),
    lambda x: native.linear(x, [tensor(normal((3, 4), f32))], [tensor(normal((2, 3), f32))]),
    lambda x: native.linear(tensor(normal((1, 4), f32)), [x], [tensor(normal((1, 2), f32))]),
    lambda x: native.batched_matmul(
        x.reshape(1, 2, 4), tensor(normal((1, 3, 4), f32)), tensor(normal((1, 2, 3), f32))
    ),
]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("offset", [-4, 256, 8 * 8 * 4 - 4 * 8 + 4])
def test_a_tensor_beyond_its_storage_is_refused_before_a_pointer_is_taken(
    call: Callable[[Tensor], None], offset: int
) -> None:
    with pytest.raises(TensorError, match=r"must lie in bytes \[0, 256\) of its storage"):
        call(beyond((2, 4), offset))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("offset", [0, 4, 8 * 8 * 4 - 4 * 8])
def test_a_tensor_up_to_the_end_of_its_storage_is_taken(
    call: Callable[[Tensor], None], offset: int
) -> None:
    call(beyond((2, 4), offset))


@pytest.mark.parametrize("part", ["keys", "values"])
def test_a_cache_whose_memory_was_exchanged_for_another_size_or_dtype_is_refused(part: str) -> None:
    x = tensor(normal((1, 2, 4), f32))
    for wrong, error in (((2, 16, 3), ShapeError), ((2, 16, 4), DTypeError)):
        cache = KeyValueCache(5, 2, 4, float32)
        dtype = bf16 if error is DTypeError else f32
        setattr(cache, part, tensor(normal(wrong, dtype)))
        with pytest.raises(error, match=rf"cache\.{part}"):
            native_attention.write_cache(cache, 0, x, x)
        with pytest.raises(error, match=rf"cache\.{part}"):
            native_attention.attention(x, cache, 0, tensor(normal((1, 2, 4), f32)))


def test_a_cache_whose_memory_was_exchanged_for_its_like_is_taken() -> None:
    x = tensor(normal((1, 2, 4), bf16))
    cache = KeyValueCache(5, 2, 4, bfloat16)
    cache.keys = tensor(normal(cache.keys.shape, bf16))
    cache.values = tensor(normal(cache.values.shape, bf16))
    native_attention.write_cache(cache, 0, x, x)
    native_attention.attention(x, cache, 0, tensor(normal((1, 2, 4), bf16)))
