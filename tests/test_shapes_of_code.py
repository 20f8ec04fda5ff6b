"""How the code is cut: functions with few parameters, and one class for each name."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"
MOST_PARAMETERS = 6
# Public functions, and constructors of public classes, that only build one object of
# them.
PUBLIC = {
    "inference/batch.py BatchEngine.__init__",
    "inference/batch.py BatchEngine.submit",
    "inference/chat_encoding.py encode_chat",
    "inference/engine.py InferenceEngine.chat",
    "inference/engine.py InferenceEngine.generate",
}
# Words of which the project has one class each.
ONE_CLASS = ("Answer", "Part", "Request", "Stage", "Step", "Turn")


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.arguments]]:
    """Yields each function with its name and arguments."""
    for node in ast.iter_child_nodes(tree):
        name = prefix + (getattr(node, "name", "") or "")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node.args
        is_scope = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from functions(node, f"{name}." if is_scope else prefix)


def parameters(arguments: ast.arguments) -> list[str]:
    """Returns the names of parameters, without that of the object itself."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [each.arg for each in every if each.arg not in ("self", "cls")]


@pytest.mark.parametrize("package", ["inference", "server", "cli"])
def test_functions_have_at_most_six_parameters(package):
    long = set()
    for path in sorted((SRC / package).rglob("*.py")):
        for name, arguments in functions(ast.parse(path.read_text(encoding="utf-8"))):
            if len(parameters(arguments)) > MOST_PARAMETERS:
                long.add(f"{path.relative_to(SRC)} {name}")
    assert long == {name for name in PUBLIC if name.startswith(f"{package}/")}


@pytest.mark.parametrize("word", ONE_CLASS)
def test_a_word_is_the_name_of_one_class(word):
    found = []
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and node.name == word:
                found.append(path.relative_to(SRC).as_posix())
    assert len(found) == 1, found
