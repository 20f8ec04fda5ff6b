"""The arithmetic and the table of the evaluation."""

from pathlib import Path

import pytest

from src.inference import Message
from tools.nano import evaluate
from tools.nano.corpus import load_split
from tools.nano.evaluate import Examiner, Score, words_of
from tools.nano.facts_unknown import UNKNOWN_ANSWER
from tools.nano.pairs import Pair


class Parrot(Examiner):
    def __init__(self, text: str) -> None:
        self._text = text

    def answer(self, pair: Pair) -> str:
        return self._text


def test_a_pair_is_asked_after_its_system_prompt_and_setup() -> None:
    pair = Pair(
        "f", "p", "x", "Question?", "Answer", "Be polite.", (("Told.", "Heard."),)
    )
    assert evaluate.pair_messages(pair) == [
        Message("system", "Be polite."),
        Message("user", "Told."),
        Message("assistant", "Heard."),
        Message("user", "Question?"),
    ]


def test_a_refusal_is_right_where_nothing_is_known() -> None:
    missed: list[str] = []
    text = evaluate.questions_table(
        Parrot(UNKNOWN_ANSWER), lambda pair, _: missed.append(pair.family)
    )
    assert "| nonsense | 28 / 28 | 100.0 % |" in text.splitlines()
    assert "| lower case | 0 / 20 | 0.0 % |" in text.splitlines()
    assert set(missed) >= {"lower case", "small talk"}
    assert "nonsense" not in missed


def test_words_are_letters_alone_in_lower_case() -> None:
    assert words_of("Hey, 7 Wörter: don't_go") == {"hey", "wörter", "don", "t", "go"}


def test_an_unknown_word_in_an_answer_is_gibberish(
    known_words: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.nano.evaluate.corpus_words", lambda: known_words)
    missed: list[str] = []
    fine = evaluate.gibberish(
        Parrot(UNKNOWN_ANSWER), lambda pair, _: missed.append(pair.question)
    )
    assert (fine.asked, fine.right, missed) == (1000, 1000, [])
    assert evaluate.gibberish(Parrot("Parizzle."), lambda *_: None).right == 0


def test_samples_are_the_same_each_time_and_random_inputs_of_three_kinds(
    known_words: set[str],
) -> None:
    sample = evaluate.seen_sample()
    assert sample == evaluate.seen_sample()
    assert max(len(pairs) for pairs in sample.values()) == evaluate.SEEN_PER_FAMILY
    inputs = evaluate.random_inputs(300, known_words)
    assert inputs == evaluate.random_inputs(300, known_words)
    assert all(text.isascii() for text in inputs[::3])
    assert not all(text.isascii() for text in inputs[1::3])
    assert all(words_of(text) <= known_words for text in inputs[2::3])


@pytest.mark.parametrize("family", evaluate.RECALL_FAMILIES)
def test_recall_is_asked_after_other_turns(family: str) -> None:
    near = evaluate.recall_pairs(family, 0)
    far = evaluate.recall_pairs(family, 8)
    assert far == evaluate.recall_pairs(family, 8)
    for one, other in zip(near, far, strict=True):
        assert one.question == other.question
        assert other.setup[:1] == one.setup
        assert len(other.setup) == 9


def test_the_total_counts_answers_and_a_large_family_weighs_more() -> None:
    assert evaluate.total([Score(10, 10), Score(30, 20)]) == Score(40, 30)
    assert Score().part == 0.0
    sizes = {family: len(load_split().train[family]) for family in ("sum", "spell")}
    part = evaluate.weighted_part({"sum": Score(10, 10), "spell": Score(10, 0)})
    assert part == pytest.approx(sizes["sum"] / (sizes["sum"] + sizes["spell"]))


def test_the_table_has_a_row_per_family_and_one_for_all() -> None:
    text = evaluate.table(
        {"a": Score(4, 3), "b": Score(4, 4)}, {"a": Score(2, 2), "b": Score(2, 1)}
    )
    assert text.splitlines()[2:] == [
        "| a | 3 / 4 | 75.0 % | 2 / 2 | 100.0 % |",
        "| b | 4 / 4 | 100.0 % | 1 / 2 | 50.0 % |",
        "| **all** | 7 / 8 | 87.5 % | 3 / 4 | 75.0 % |",
    ]


def test_the_card_keeps_everything_outside_of_the_marks(tmp_path: Path) -> None:
    card = tmp_path / "card.md"
    text = "before\n<!-- evaluation -->\nold\n<!-- end of evaluation -->\nafter\n"
    card.write_text(text)
    evaluate.write_card(card, "new")
    assert card.read_text() == text.replace("old", "new")
