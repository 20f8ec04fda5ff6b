"""The tables of facts."""

from src.nano.facts_geography import PLACES
from src.nano.facts_llama import LLAMA_TOPICS
from src.nano.facts_types import phrases, topics


def test_the_bare_name_has_neither_article_nor_kind() -> None:
    names = {place.name: place.bare_name for place in PLACES}
    assert names["the Netherlands"] == "Netherlands"
    assert names["the state of Georgia"] == "Georgia"
    assert names["Chad"] == "Chad"


def test_phrases_and_topics_read_questions_answer_and_line_breaks() -> None:
    assert phrases("one two /\n  three\n four") == ("one two", "three four")
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
