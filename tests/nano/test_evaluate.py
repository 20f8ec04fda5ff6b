"""The arithmetic and the table of the evaluation."""

from pathlib import Path

import pytest

from src.inference import Message
from src.nano.corpus import load_split
from src.nano.evaluate import (
    RECALL_FAMILIES,
    SEEN_PER_FAMILY,
    Score,
    pair_messages,
    recall_pairs,
    seen_sample,
    table,
    total,
    weighted_part,
    write_card,
)
from src.nano.pairs import Pair


def test_a_pair_is_asked_after_its_system_prompt_and_setup() -> None:
    pair = Pair("f", "p", "x", "Question?", "Answer", "Be polite.", (("Told.", "Heard."),))
    assert pair_messages(pair) == [
        Message("system", "Be polite."),
        Message("user", "Told."),
        Message("assistant", "Heard."),
        Message("user", "Question?"),
    ]


def test_the_sample_of_training_pairs_is_the_same_each_time() -> None:
    sample = seen_sample()
    assert sample == seen_sample()
    assert max(len(pairs) for pairs in sample.values()) == SEEN_PER_FAMILY


@pytest.mark.parametrize("family", RECALL_FAMILIES)
def test_recall_is_asked_after_other_turns(family: str) -> None:
    near, far = recall_pairs(family, 0), recall_pairs(family, 8)
    assert far == recall_pairs(family, 8)
    for one, other in zip(near, far, strict=True):
        assert one.question == other.question
        assert other.setup[:1] == one.setup
        assert len(other.setup) == 9


def test_a_score_of_nothing_is_zero() -> None:
    assert Score().part == 0.0


def test_the_total_counts_answers_not_families() -> None:
    assert total([Score(10, 10), Score(30, 20)]) == Score(40, 30)


def test_a_large_family_weighs_more() -> None:
    sizes = {family: len(load_split().train[family]) for family in ("sum", "spell")}
    part = weighted_part({"sum": Score(10, 10), "spell": Score(10, 0)})
    assert part == pytest.approx(sizes["sum"] / (sizes["sum"] + sizes["spell"]))


def test_the_table_has_a_row_per_family_and_one_for_all() -> None:
    text = table({"a": Score(4, 3), "b": Score(4, 4)}, {"a": Score(2, 2), "b": Score(2, 1)})
    assert text.splitlines()[2:] == [
        "| a | 3 / 4 | 75.0 % | 2 / 2 | 100.0 % |",
        "| b | 4 / 4 | 100.0 % | 1 / 2 | 50.0 % |",
        "| **all** | 7 / 8 | 87.5 % | 3 / 4 | 75.0 % |",
    ]


def test_the_card_keeps_everything_outside_of_the_marks(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    card.write_text("before\n<!-- evaluation -->\nold\n<!-- end of evaluation -->\nafter\n")
    write_card(card, "new")
    assert card.read_text() == (
        "before\n<!-- evaluation -->\nnew\n<!-- end of evaluation -->\nafter\n"
    )
