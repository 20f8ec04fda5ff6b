"""The tables of facts."""

import pytest

from src.nano.facts_chat import SMALL_TALK
from src.nano.facts_geography import PLACES, flag_emoji
from src.nano.facts_llama import LIBRARY_TOPICS, LLAMA_TOPICS
from src.nano.facts_types import phrases, topics


def test_the_bare_name_has_neither_article_nor_kind() -> None:
    names = {place.name: place.bare_name for place in PLACES}
    assert names["the Netherlands"] == "Netherlands"
    assert names["the state of Georgia"] == "Georgia"
    assert names["Chad"] == "Chad"


def test_a_flag_is_two_regional_indicators() -> None:
    assert flag_emoji("TR") == "\U0001f1f9\U0001f1f7"


def test_phrases_ignore_line_ends() -> None:
    assert phrases("one two /\n  three\n four") == ("one two", "three four")


def test_topics_read_questions_answer_and_line_breaks() -> None:
    (found,) = topics("\n[name]\nfirst? / second?\n> one | two\n  three\n", ("system",))
    assert found.name == "name"
    assert found.questions == ("first?", "second?")
    assert found.answer == "one\ntwo three"
    assert found.system == ("system",)


def test_the_stages_are_explained_in_run_order() -> None:
    stages = [topic for topic in LLAMA_TOPICS if topic.name.startswith("stage-")]
    assert [topic.name for topic in stages] == [f"stage-{number}" for number in range(1, 22)]
    for number, topic in enumerate(stages, start=1):
        assert topic.answer.startswith(f"Stage {number} is ")


@pytest.mark.parametrize("table", [LLAMA_TOPICS, LIBRARY_TOPICS, SMALL_TALK])
def test_no_question_has_two_answers(table: tuple) -> None:
    questions = [question for topic in table for question in topic.questions]
    assert len(questions) == len(set(questions))
