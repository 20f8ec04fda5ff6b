"""The pairs of what newcomers type: each is trained, none contradicts a table."""

import re

import pytest

from tools.nano.corpus import load_split
from tools.nano.facts_chat import SMALL_TALK
from tools.nano.facts_geography import PLACES
from tools.nano.facts_newcomer import TALK_MORE
from tools.nano.facts_unknown import UNKNOWN_ANSWER
from tools.nano.newcomer_pairs import (
    more_topics,
    number_in_words,
    order_pairs,
    yes_no_pairs,
)

TRAIN = load_split().train
CAPITALS = {place.name: place.capital for place in PLACES}


def test_yes_and_no_agree_with_the_table() -> None:
    for pair in yes_no_pairs():
        city, name = pair.fact.split(" | ")
        yes = CAPITALS[name] == city
        assert pair.family == ("yes" if yes else "no")
        assert pair.answer.startswith("Yes, " if yes else "No, ")
        assert name in pair.answer or city in pair.answer


def test_a_wrong_city_is_corrected_and_a_town_that_is_no_capital_is_not_confirmed() -> (
    None
):
    answers = {pair.answer for pair in TRAIN["no"] if pair.fact.endswith(" | Germany")}
    assert "No, the capital of Germany is Berlin." in answers
    of_a_town = {pair.answer for pair in TRAIN["no"] if "Sydney" in pair.question}
    assert of_a_town
    assert all(answer.startswith("No, the capital of ") for answer in of_a_town)


@pytest.mark.parametrize("family", ["sum-forms", "difference-forms", "word-sums"])
def test_other_wordings_of_sums_hold_no_held_out_term(family: str) -> None:
    split = load_split()
    held_out = {
        pair.fact for kind in ("sum", "difference") for pair in split.held_out[kind]
    }
    for pair in TRAIN[family]:
        term, result = pair.answer.removesuffix(".").split(" = ")
        a, sign, b = term.split()
        assert int(result) == (int(a) + int(b) if sign == "+" else int(a) - int(b))
        assert pair.fact not in held_out


def test_an_empty_answer_is_that_of_the_known_topic() -> None:
    answers = {topic.name: topic.answer for topic in SMALL_TALK}
    found = {topic.name: topic.answer for topic in more_topics(TALK_MORE, answers)}
    assert found["bye"] == "Goodbye!"
    assert found["happy"] == "I am glad to hear that."


def test_sums_in_words_ask_for_the_term_of_their_answer() -> None:
    by_word = {number_in_words(number): number for number in range(51)}
    words = ("zero", "nine", "nineteen", "twenty", "forty-two", "fifty")
    assert [by_word[word] for word in words] == [0, 9, 19, 20, 42, 50]
    for pair in TRAIN["word-sums"]:
        asked = [by_word[word] for word in re.findall(r"[a-z-]+", pair.question.lower())
                 if word in by_word]  # fmt: skip
        a, _, b = pair.fact.split()
        assert sorted(asked) == sorted((int(a), int(b)))


def test_orders_are_declined_and_have_no_gap_left() -> None:
    found = list(order_pairs())
    assert len(found) > 5000
    assert all(
        pair.answer == UNKNOWN_ANSWER and "{" not in pair.question for pair in found
    )
