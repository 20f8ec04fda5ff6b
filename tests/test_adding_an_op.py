"""What the recipes for an op and for a dtype promise of a step that is left out."""

import inspect
import re
from pathlib import Path

import pytest

from src import ml
from src.ml.op import OPS

ROOT = Path(__file__).resolve().parent.parent
FUNCTIONS = {
    name: getattr(ml, name) for name in ml.ops.__all__ if inspect.isfunction(getattr(ml, name))
}


def texts_of_tests(folder: Path) -> str:
    return "\n".join(path.read_text("utf-8") for path in folder.rglob("test_*.py"))


def test_every_function_that_ops_exports_is_an_op():
    assert FUNCTIONS.items() <= OPS.items()


def test_every_op_is_exported_or_a_method():
    ours = {name for name, op in OPS.items() if op.__module__.startswith(ml.__name__)}
    assert ours <= {*ml.ops.__all__, *vars(ml.Tensor)}


def test_every_op_is_called_by_a_test():
    text = texts_of_tests(ROOT / "tests" / "ml")
    named = {*re.findall(r"\.(\w+)", text), *re.findall(r'"(\w+)"', text)}
    assert FUNCTIONS.keys() - named == set()


@pytest.mark.parametrize("page", ["20-extending.md", "ADDING-A-DTYPE.md"])
def test_every_test_that_a_recipe_names_is_there(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / page).read_text("utf-8")))
    assert named
    assert named - {*re.findall(r"def (test_\w+)\(", texts_of_tests(ROOT / "tests"))} == set()
