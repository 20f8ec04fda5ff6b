"""The table of bad inputs has every row and names tests that there are; the ledger is
full.
"""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.csrc.guard_cases import CASES, calls_of
from tests.hardening.fuzz.targets import TARGETS

# The targets of LoRA adapters, whose parsers have targets of their own.
ADAPTERS = {
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapters.safetensors",
    "adapter.gguf",
}
TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "RELIABILITY.md"
LEDGER = TESTS.parent / "docs" / "FUZZING.md"
COUNTS = {
    "P": 5,
    "T": 5,
    "Z": 4,
    "S": 3,
    "G": 1,
    "C": 2,
    "K": 2,
    "X": 3,
    "R": 5,
    "F": 6,
    "O": 3,
    "W": 3,
    "M": 1,
    "E": 1,
    "D": 4,
}
IDS = [
    f"{letter}{number + 1}" for letter, count in COUNTS.items() for number in range(count)
]


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


def test_the_table_has_every_row_of_the_standard():
    assert list(rows()) == IDS
    assert f"| {len(IDS)} of {len(IDS)} |" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("row", IDS)
def test_each_test_that_a_row_names_is_there(row):
    assert rows()[row]
    for named in rows()[row]:
        file, _, name = named.partition("::")
        if name.endswith("*"):
            assert any(there.startswith(name[:-1]) for there in names_in(file)), named
        else:
            assert name in names_in(file), named


def test_the_ledger_has_five_million_inputs_of_each_parser():
    runs = re.findall(
        r"^\| \w{7} \| (\S+) \| mutation \| \d+ \| \d+ \| (\d+) \| .* \|$",
        LEDGER.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    inputs: Counter[str] = Counter()
    for target, count in runs:
        inputs[target] += int(count)
    few = {name: inputs[name] for name in TARGETS if inputs[name] < 5_000_000}
    assert set(few) <= ADAPTERS
    assert sum(inputs[name] for name in ADAPTERS) >= 1_000_000
    assert set(inputs) == set(TARGETS)


def test_the_table_of_calls_has_those_of_each_kernel():
    levels = ("thorough", "few", "long")  # of guard pages, memcheck and ThreadSanitizer
    calls = {
        name: [sum(1 for _ in calls_of(case, level)) for level in levels]
        for name, case in CASES.items()
    }
    sums = [sum(column) for column in zip(*calls.values(), strict=True)]
    rows = [*calls.items(), (f"{len(calls)} kernels", sums)]
    table = "\n".join(
        f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |"
        for name, counts in rows
    )
    assert table in PAGE.read_text(encoding="utf-8"), f"write this table:\n{table}"
