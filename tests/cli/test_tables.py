import pytest

from src.cli.console import Console
from src.cli.tables import table

ROWS = (("a.long.name.weight", "[2, 3]", "12"), ("b", "[20, 3]", "120"))
COLUMNS = (("name", "left"), ("shape", "left"), ("bytes", "right"))
HALF = (("name", "left"), ("value", "left"))


def lines(columns: tuple[tuple[str, str], ...], rows: object, width: int | None) -> list[str]:
    from rich.console import Console as RichConsole

    console = RichConsole(width=width or 1000, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table(columns, rows, width))  # type: ignore[arg-type]
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_table_that_fits_has_a_line_per_row() -> None:
    for width in (None, 34, 100):
        assert lines(COLUMNS, ROWS, width) == [
            "name                shape    bytes",
            "a.long.name.weight  [2, 3]      12",
            "b                   [20, 3]    120",
        ]


def test_in_a_narrow_window_the_name_has_a_line_of_its_own() -> None:
    assert lines(COLUMNS, ROWS, 33) == [
        "a.long.name.weight",
        "  [2, 3]    12",
        "b",
        "  [20, 3]  120",
    ]


def test_in_a_very_narrow_window_every_cell_has() -> None:
    assert lines(COLUMNS, (("b", "[20, 3]", ""), ("c", "[2, 3]", "12")), 10) == [
        "b",
        "  [20, 3]",
        "c",
        "  [2, 3]",
        "  12",
    ]


@pytest.mark.parametrize("width", [1, 2, 7, 20])
def test_nothing_of_two_columns_is_left_out(width: int) -> None:
    rows = (("abcdefghij", "klmnopqrst"),)
    shown = lines((("", ""), ("", "")), rows, width)
    assert all(len(line) <= width for line in shown)
    assert sorted("".join(shown).replace(" ", "")) == sorted("abcdefghijklmnopqrst")


def test_without_headings_there_is_no_line_of_them() -> None:
    assert lines((("", "left"), ("", "left")), (("a", "b"),), 80) == ["a  b"]
    assert lines(HALF, (("a", "b"),), 80) == ["name  value", "a     b"]


def test_a_table_without_rows_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Console().report_table((("", "left"), ("", "left")), ())
    assert capsys.readouterr().out.strip() == ""


def test_cells_are_escaped() -> None:
    assert lines(HALF, (("\x1b[2J", "a\nb"),), None)[1] == r"\x1b[2J  a\nb"
