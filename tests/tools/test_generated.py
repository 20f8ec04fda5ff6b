"""What a page repeats of the code: lines in links, and blocks between markers."""

from pathlib import Path

import pytest

from tools.generated import line_in, with_blocks, with_lines
from tools.pages import PageError

PRODUCERS = {"twice": lambda _page, argument: f"{argument} {argument}\n"}


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
    ("file", "symbol", "line"),
    [
        ("code.py", "LIMIT", 3), ("code.py", "A", 6), ("code.py", "A.size", 7),
        ("code.py", "A.f", 10), ("code.py", "mark(7)", 11), ("code.py", "g", 14),
        ("code.py", "mark(8)", 15), ("code.py", "f", None), ("code.py", "nothing", None),
        ("code.c", "LANES", 2), ("code.c", "helper", 4), ("code.c", "softmax", 8),
        ("code.c", "x", None),
    ],
)  # fmt: skip
def test_a_symbol_has_the_line_of_its_definition(folder, file, symbol, line):
    assert line_in(folder / file, symbol) == line


def test_a_symbol_that_moved_is_followed(folder):
    text = (
        'A [`A.f`](code.py#L1), [the loop](code.py#L99 "g()"), [softmax](code.c#L3), and\n'
        "[`A.f`](code.py#L10) is right; [whole](code.py), [far](https://x.y/code.py#L1).\n"
    )
    assert with_lines(folder / "page.md", text) == (
        'A [`A.f`](code.py#L10), [the loop](code.py#L14 "g()"), [softmax](code.c#L8), and\n'
        "[`A.f`](code.py#L10) is right; [whole](code.py), [far](https://x.y/code.py#L1).\n"
    )


@pytest.mark.parametrize(
    "link", ["[`A.h`](code.py#L1)", "[`A`](none.py#L1)", "[it](code.py#L1)"]
)
def test_a_link_to_no_symbol_is_refused_with_its_place(folder, link):
    with pytest.raises(
        PageError, match=r"page\.md:3: link: expected a symbol of \w+\.py, got"
    ):
        with_lines(folder / "page.md", f"one\n\n{link}\n")


def test_a_block_between_markers_is_written_and_one_that_shows_markers_is_not():
    text = "<!-- generated: twice a b -->\nold\n<!-- end -->\n"
    shown = "```text\n  <!-- generated: NAME -->\n  <!-- end -->\n```\n"
    written = "<!-- generated: twice a b -->\na b a b\n<!-- end -->\n"
    assert with_blocks(Path("page.md"), text + shown, PRODUCERS) == written + shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: twice -->\nx\n", "expected pairs of markers, got one alone"),
        ("<!-- end -->\n", "expected pairs of markers"),
        (
            "<!-- generated: thrice -->\nx\n<!-- end -->\n",
            "expected one of twice, got thrice",
        ),
    ],
)
def test_markers_that_are_wrong_are_refused(text, message):
    with pytest.raises(PageError, match=message):
        with_blocks(Path("page.md"), text, PRODUCERS)
