"""What the recipes for an op and for a dtype promise of a step that is left out."""

import inspect
import re
from pathlib import Path

import pytest

from src import ml
from src.ml.op import OPS

ROOT = Path(__file__).resolve().parent.parent
TEXTS = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
TEXTS_OF_ML = [path.read_text("utf-8") for path in (ROOT / "tests" / "ml").rglob("test_*.py")]
FUNCTIONS = [name for name in ml.ops.__all__ if inspect.isfunction(getattr(ml, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_ops_exports_is_an_op(name):
    assert OPS[name] is getattr(ml, name)


@pytest.mark.parametrize("name", OPS)
def test_every_op_is_exported_or_a_method(name):
    if OPS[name].__module__.startswith(ml.__name__):
        assert name in ml.ops.__all__ or name in vars(ml.Tensor)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_op_is_called_by_a_test(name):
    assert any(re.search(rf"\.{name}\b|\"{name}\"", text) for text in TEXTS_OF_ML)


@pytest.mark.parametrize("page", ["20-extending.md", "ADDING-A-DTYPE.md"])
def test_every_test_that_a_recipe_names_is_there(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text("utf-8")))
    assert named
    assert {name for name in named if not any(f"def {name}(" in text for text in TEXTS)} == set()
