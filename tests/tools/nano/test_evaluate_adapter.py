"""The tables of the adapter's evaluation."""

from tools.nano.evaluate import Score
from tools.nano.evaluate_adapter import scores_of, table
from tools.nano.roman import BUNDLED_ADAPTER


def test_sums_are_compared_with_numerals_and_others_with_the_base() -> None:
    sums, others = scores_of(BUNDLED_ADAPTER, most=2)
    assert sums.keys() == {"sum", "difference"}
    asked = sum(score.asked for score in sums.values())
    assert asked >= 3
    assert {"capital-country", "llama", "talk", "raw-capital"} <= others.keys()
    assert sum(score.right for score in sums.values()) == asked
    assert sum(score.right for score in others.values()) > len(others)


def test_a_table_has_a_row_for_each_family_and_the_total() -> None:
    text = table("right", {"sum": Score(4, 3), "difference": Score(4, 4)})
    assert text.splitlines() == [
        "| family | right | |",
        "|---|---|---|",
        "| sum | 3 / 4 | 75.0 % |",
        "| difference | 4 / 4 | 100.0 % |",
        "| **all** | 7 / 8 | 87.5 % |",
    ]
