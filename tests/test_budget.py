"""Each package keeps the budget of lines that docs/DEVELOPING.md states."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "DEVELOPING.md"
SUFFIXES = {".py", ".c", ".h", ".inc"}
# It builds the kernels and is none of them.
NOT_COUNTED = {"csrc/build_kernels.py"}
ROWS = re.findall(
    r"^\| `(csrc|src/\w+|src/\*\.py)` \| (\d+) \|$", PAGE.read_text("utf-8"), flags=re.M
)
BUDGETS = {place: int(most) for place, most in ROWS}


def lines_of(place: Path) -> int:
    """Counts the lines of a package, or of the modules beside the packages."""
    found = place.parent.glob(place.name) if "*" in place.name else place.rglob("*")
    files = [path for path in found if path.suffix in SUFFIXES]
    counted = [path for path in files if path.relative_to(ROOT).as_posix() not in NOT_COUNTED]
    return sum(len(path.read_text("utf-8").splitlines()) for path in counted)


def test_every_package_has_a_budget() -> None:
    packages = {f"src/{path.parent.name}" for path in ROOT.glob("src/*/__init__.py")}
    assert set(BUDGETS) == packages | {"csrc", "src/*.py"}
    assert len(ROWS) == len(BUDGETS)


@pytest.mark.parametrize("place", BUDGETS)
def test_a_package_keeps_its_budget(place: str) -> None:
    assert 0 < lines_of(ROOT / place) <= BUDGETS[place]
