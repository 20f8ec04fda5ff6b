"""The pairs of what newcomers type: each is trained, none contradicts a table."""

import pytest

from src.nano.corpus import load_split
from src.nano.facts_chat import SMALL_TALK
from src.nano.facts_geography import PLACES
from src.nano.facts_newcomer import TALK_MORE
from src.nano.newcomer_pairs import more_topics, yes_no_pairs

TRAIN = load_split().train
CAPITALS = {place.name: place.capital for place in PLACES}


def test_yes_and_no_agree_with_the_table() -> None:
    for pair in yes_no_pairs():
        city, name = pair.fact.split(" | ")
        yes = CAPITALS[name] == city
        assert pair.family == ("yes" if yes else "no")
        assert pair.answer.startswith("Yes, " if yes else "No, ")
        assert name in pair.answer or city in pair.answer


def test_a_wrong_city_is_corrected() -> None:
    answers = {pair.answer for pair in TRAIN["no"] if pair.fact.endswith(" | Germany")}
    assert "No, the capital of Germany is Berlin." in answers


@pytest.mark.parametrize("family", ["sum-forms", "difference-forms"])
def test_other_wordings_of_sums_hold_no_held_out_term(family: str) -> None:
    held_out = {pair.fact for pair in load_split().held_out[family.removesuffix("-forms")]}
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
