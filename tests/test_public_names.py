"""The names that the top of the package offers, and what it costs to import it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import src
from src import inference, ml, model, tokenizer

ROOT = Path(__file__).resolve().parent.parent


def test_the_names_are_those_of_the_packages():
    assert src.ml is ml
    for name in set(src.__all__) - {"ml", "__version__"}:
        [package] = (p for p in (inference, ml, model, tokenizer) if name in p.__all__)
        assert getattr(src, name) is getattr(package, name)
    assert set(src.__all__) <= set(dir(src))


def test_type_checkers_see_the_names_that_are_imported_on_demand():
    tree = ast.parse((ROOT / "src" / "__init__.py").read_text("utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = {a.name for node in checked.body for a in getattr(node, "names", ())}
    assert names | {"__version__"} == set(src.__all__)


def test_a_name_that_there_is_not_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'src' has no attribute 'nothing'"):
        _ = src.nothing


def run(code: str) -> bytes:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True
    ).stdout


def test_the_import_alone_loads_nothing_heavy():
    code = (
        "import sys, src; print(sorted({'numpy', 'src.ml', 'src.model'} & "
        "set(sys.modules)))"
    )
    assert run(code) == b"[]\n"


def test_a_prompt_loads_at_most_95_modules():
    code = """
import sys
from src.main import main
assert main(["-q", "-p", "Hello", "-n", "1"]) == 0
names = [name for name in sys.modules if name.partition(".")[0] == "src"]
print(len([name for name in names if (sys.modules[name].__file__ or "").endswith(".py")]))
"""
    assert int(run(code).split()[-1]) <= 95


def test_a_prompt_with_the_bundled_model_imports_no_family():
    code = """
import sys
from src.main import main
assert main(["-q", "-p", "Hello", "-n", "1"]) == 0
print([name for name in sys.modules if name.startswith("src.model.families")])
"""
    assert run(code).split(b"\n")[-2] == b"[]"
