"""The table of bad inputs in the documentation has every row, and names tests that there are."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "RELIABILITY.md"
COUNTS = {"P": 5, "T": 5, "Z": 4, "S": 3, "C": 2, "K": 2, "X": 3, "R": 5, "F": 6, "O": 3}
IDS = [f"{letter}{number + 1}" for letter, count in COUNTS.items() for number in range(count)]


def rows() -> dict[str, list[str]]:
    """Returns the tests that each row of the table names."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^\| ([A-Z]\d) \|.*\| ([^|]*) \|$", text, flags=re.MULTILINE)
    assert len(found) == len(dict(found))
    return {row: re.findall(r"`([^`]+)`", tests) for row, tests in found}


@cache
def names_in(file: str) -> tuple[str, ...]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    names = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return tuple(name for name in names if name.startswith("test_"))


def test_the_table_has_every_row_of_the_standard() -> None:
    assert list(rows()) == IDS


@pytest.mark.parametrize("row", IDS)
def test_each_test_that_a_row_names_is_there(row: str) -> None:
    assert rows()[row]
    for named in rows()[row]:
        file, _, name = named.partition("::")
        if name.endswith("*"):
            assert any(there.startswith(name[:-1]) for there in names_in(file)), named
        else:
            assert name in names_in(file), named
