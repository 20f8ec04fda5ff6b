"""Measure the bundled adapter with this library's own engine at temperature 0.

Run `python -m tools.nano.evaluate_adapter`. Of each family, up to 150 held-out pairs are
asked. A sum or a difference is right if the whole answer equals the expected one, with a
Roman numeral. The adapter must not change other answers, so that each of them is right
if it equals the answer without the adapter.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .corpus import load_split
from .evaluate import SEEN_PER_FAMILY, Examiner, Score, sampled, total
from .roman import BUNDLED_ADAPTER, with_roman_answer


def scores_of(adapter: Path, most: int) -> tuple[dict[str, Score], dict[str, Score]]:
    """Return the scores of sums by family, and those of other answers by family.

    Args:
        adapter: The adapter.
        most: How many held-out pairs of a family are asked.
    """
    base = Examiner()
    adapted = Examiner(adapter=adapter)
    sums: dict[str, Score] = {}
    others: dict[str, Score] = {}
    for family, pairs in sampled(load_split().held_out, most).items():
        for pair in pairs:
            roman = with_roman_answer(pair)
            is_sum = roman != pair
            expected = roman.answer if is_sum else base.answer(pair)
            score = (sums if is_sum else others).setdefault(family, Score())
            score.asked += 1
            score.right += adapted.answer(pair) == expected
    return sums, others


def table(title: str, scores: dict[str, Score]) -> str:
    """Return a Markdown table with a row for each family and one for all."""
    rows = {**scores, "**all**": total(scores.values())}
    cells = (
        f"| {name} | {one.right} / {one.asked} | {100 * one.part:.1f} % |"
        for name, one in rows.items()
    )
    return "\n".join([f"| family | {title} | |", "|---|---|---|", *cells])


def main() -> None:
    """Parse the arguments, ask, print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--adapter", type=Path, default=BUNDLED_ADAPTER, help="the adapter"
    )
    parser.add_argument(
        "--most", type=int, default=SEEN_PER_FAMILY, help="pairs asked of a family"
    )
    arguments = parser.parse_args()
    sums, others = scores_of(arguments.adapter, arguments.most)
    print(table("right, with a Roman numeral", sums), end="\n\n")
    print(table("unchanged", others))


if __name__ == "__main__":
    main()
