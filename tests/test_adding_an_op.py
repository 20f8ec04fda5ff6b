"""What the recipe for an op in docs/20-extending.md promises of a step that is left out."""

import inspect
import re
from pathlib import Path

import pytest

from src import ml
from src.ml.op import OPS

TESTS = Path(__file__).resolve().parent / "ml"
FUNCTIONS = [name for name in ml.ops.__all__ if inspect.isfunction(getattr(ml, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_ops_exports_is_an_op(name: str) -> None:
    assert OPS[name] is getattr(ml, name)


@pytest.mark.parametrize("name", OPS)
def test_every_op_is_exported_or_a_method(name: str) -> None:
    if OPS[name].__module__.startswith(ml.__name__):
        assert name in ml.ops.__all__ or name in vars(ml.Tensor)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_op_is_called_by_a_test(name: str) -> None:
    texts = (path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    assert any(re.search(rf"\.{name}\b|\"{name}\"", text) for text in texts)
