"""Pointers are made in one module, and kernels are called where an op or a tensor is defined."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
MODULES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))
SURFACE = (Path(__file__).parents[2] / "csrc" / "kernels.h").read_text(encoding="utf-8")
KERNELS = frozenset(
    re.findall(r"^[a-zA-Z_][\w ]*[ *](\w+)\(", SURFACE.split("cffi: begin")[1], re.MULTILINE)
)
# What makes a pointer out of something else, or moves what one points to.
POINTER_MAKERS = {
    "cast", "from_buffer", "addressof", "new_handle", "from_handle", "gc", "dlopen", "memmove",
}  # fmt: skip
CALLERS = re.compile(r"ml/(ops/\w+|tensor|quantized|quantization|roofline|kernels)\.py")


def names_of(path: str) -> Iterator[tuple[str, str]]:
    """Yield what stands before and after each dot of a module, and its plain names."""
    for node in ast.walk(ast.parse((SRC / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Name):
            yield "", node.id


def test_the_surface_is_read_from_the_header() -> None:
    assert {"linear", "softmax", "attention", "compiler_version", "isa_select"} <= KERNELS


def test_pointers_are_made_in_one_module_and_kernels_called_by_ops_and_tensors() -> None:
    for path in MODULES:
        names = set(names_of(path))
        made = {name for owner, name in names if owner == "ffi" and name in POINTER_MAKERS}
        assert made == ({"cast"} if path == "ml/kernels.py" else set()), path
        assert ("", "ctypes") not in names, path
        if not CALLERS.fullmatch(path):
            assert not {name for owner, name in names if owner == "lib" and name in KERNELS}, path
            assert "pointer" not in {name for _, name in names} or path == "ml/storage.py"


def test_each_kernel_is_called_in_one_place() -> None:
    called = [
        name
        for path in MODULES
        for node in ast.walk(ast.parse((SRC / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("lib.")
        for name in [ast.unparse(node.func).removeprefix("lib.")]
    ]
    twice = {name for name in called if called.count(name) > 1}
    assert twice <= {"product_scratch_bytes", "isa_available", "isa_select", "openmp_version"}
    assert {*called} - KERNELS == set()
    assert KERNELS - {*called} <= {"linear_reference"}
