"""Pointers are made in one module, and kernels are called where an op or a tensor is defined."""

import ast
import re
from pathlib import Path

import pytest

from tests.csrc.surface import functions

SRC = Path(__file__).parents[2] / "src"
KERNELS = functions().keys()
# What makes a pointer out of something else, or moves what one points to.
POINTER_MAKERS = {
    "cast", "from_buffer", "addressof", "new_handle", "from_handle", "gc", "dlopen", "memmove",
}  # fmt: skip
CALLERS = re.compile(r"ml/(ops/\w+|tensor|quantized|roofline|kernels)\.py")


@pytest.fixture(scope="module")
def trees() -> dict[str, list[ast.AST]]:
    """The nodes of each module, by its path."""
    parsed = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SRC.rglob("*.py")}
    return {path.relative_to(SRC).as_posix(): [*ast.walk(tree)] for path, tree in parsed.items()}


def test_pointers_are_made_in_one_module_and_kernels_called_by_ops_and_tensors(
    trees: dict[str, list[ast.AST]],
) -> None:
    for path, nodes in trees.items():
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        dotted = [node for node in nodes if isinstance(node, ast.Attribute)]
        of_ffi, of_lib = (
            {node.attr for node in dotted if ast.unparse(node.value) == owner}
            for owner in ("ffi", "lib")
        )
        assert of_ffi & POINTER_MAKERS == ({"cast"} if path == "ml/kernels.py" else set()), path
        assert "ctypes" not in names, path
        if not CALLERS.fullmatch(path):
            assert not of_lib & KERNELS, path
            assert "pointer" not in names | {node.attr for node in dotted}, path


def test_each_kernel_is_called_in_one_place(trees: dict[str, list[ast.AST]]) -> None:
    calls = [node for nodes in trees.values() for node in nodes if isinstance(node, ast.Call)]
    texts = [ast.unparse(call.func) for call in calls]
    called = [text.removeprefix("lib.") for text in texts if text.startswith("lib.")]
    twice = {name for name in called if called.count(name) > 1}
    assert twice <= {"product_scratch_bytes", "isa_available", "isa_select", "openmp_version"}
    assert {*called} - KERNELS == set()
    assert KERNELS - {*called} <= {"linear_reference"}
