from pathlib import Path

import pytest

from tools.links import corrected, line_in
from tools.pages import ROOT, PageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text(
        '"""Text."""\n\nLIMIT: int = 3\n\n\nclass A:\n    size = 1\n\n    @property\n'
        "    def f(self):\n        mark(7)\n\n\ndef g():\n    mark(8, x=1)\n"
    )
    (tmp_path / "code.c").write_text(
        "/* softmax is here */\n#define LANES 16\nvoid softmax(int n);\n"
        "static int helper(int n)\n{\n    softmax(n);\n}\nvoid softmax(int n)\n{\n}\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("symbol", "line"),
    [
        ("LIMIT", 3), ("A", 6), ("A.size", 7), ("A.f", 10), ("mark(7)", 11), ("g", 14),
        ("mark(8)", 15), ("f", None), ("nothing", None),
    ],
)  # fmt: skip
def test_a_symbol_of_a_module_has_a_line(folder: Path, symbol: str, line: int | None) -> None:
    assert line_in(folder / "code.py", symbol) == line


@pytest.mark.parametrize(
    ("symbol", "line"), [("LANES", 2), ("helper", 4), ("softmax", 8), ("x", None)]
)
def test_a_symbol_of_a_c_file_has_the_line_of_its_definition(
    folder: Path, symbol: str, line: int | None
) -> None:
    assert line_in(folder / "code.c", symbol) == line


def test_a_symbol_that_moved_is_followed(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text(
        'A [`A.f`](code.py#L1), [the loop](code.py#L99 "g()"), [softmax](code.c#L3), and\n'
        "[`A.f`](code.py#L10) is right; [whole](code.py), [far](https://x.y/code.py#L1).\n"
    )
    assert corrected(page) == (
        'A [`A.f`](code.py#L10), [the loop](code.py#L14 "g()"), [softmax](code.c#L8), and\n'
        "[`A.f`](code.py#L10) is right; [whole](code.py), [far](https://x.y/code.py#L1).\n"
    )


@pytest.mark.parametrize("link", ["[`A.h`](code.py#L1)", "[`A`](none.py#L1)", "[it](code.py#L1)"])
def test_a_link_to_no_symbol_is_refused_with_its_place(folder: Path, link: str) -> None:
    page = folder / "page.md"
    page.write_text(f"one\n\n{link}\n")
    with pytest.raises(PageError, match=r"page\.md:3: link: expected a symbol of \w+\.py, got"):
        corrected(page)


def test_the_functions_of_the_kernels_are_found() -> None:
    attention = ROOT / "csrc" / "attention.c"
    line = line_in(attention, "attention")
    assert line is not None
    assert attention.read_text("utf-8").splitlines()[line - 1].startswith("void attention(")
