"""The corpus: what it holds, and what is held out; its tables of facts."""

from collections import defaultdict

import pytest

from tools.nano.corpus import BOSTON, PINNED, WHOLE_FACT_FAMILIES, load_split
from tools.nano.facts_geography import COUNTRIES, PLACES, STATES
from tools.nano.facts_llama import LLAMA_TOPICS
from tools.nano.facts_types import phrases, topics

SPLIT = load_split()
ALL_PAIRS = [
    pair
    for part in (SPLIT.train, SPLIT.held_out)
    for pairs in part.values()
    for pair in pairs
]


@pytest.mark.parametrize("family", sorted(SPLIT.held_out))
def test_a_tenth_of_each_family_is_held_out_whose_facts_and_phrasings_are_trained(
    family: str,
):
    train = SPLIT.train[family]
    held_out = SPLIT.held_out[family]
    assert 10 * len(held_out) >= len(train) + len(held_out)
    if family not in WHOLE_FACT_FAMILIES:
        assert {pair.fact for pair in held_out} <= {pair.fact for pair in train}
        assert {pair.phrasing for pair in held_out} <= {pair.phrasing for pair in train}


@pytest.mark.parametrize(
    ("family", "facts"),
    [
        ("capital-country-reversed", COUNTRIES), ("capital-state-reversed", STATES),
        ("flag", COUNTRIES), ("flag-reversed", COUNTRIES), ("raw-capital", PLACES),
    ],
)  # fmt: skip
def test_every_fact_is_trained(family: str, facts: tuple) -> None:
    assert {pair.fact for pair in SPLIT.train[family]} == {place.name for place in facts}


def test_a_pair_occurs_once_and_a_prompt_with_its_setup_has_one_answer() -> None:
    assert len({pair.key for pair in ALL_PAIRS}) == len(ALL_PAIRS)
    answers: dict[tuple[object, ...], set[str]] = defaultdict(set)
    for pair in ALL_PAIRS:
        answers[pair.system, pair.setup, pair.question, pair.raw].add(pair.answer)
    assert [prompt for prompt, found in answers.items() if len(found) > 1] == []


def test_the_prompts_of_the_documentation_are_trained() -> None:
    trained = {
        (pair.system, pair.question): pair.answer
        for pairs in SPLIT.train.values()
        for pair in pairs
    }
    assert trained["", BOSTON] == "Boston"
    assert trained["Answer with only one emoji", "What is the flag of Turkey?"] == "🇹🇷"
    assert set(trained) >= PINNED


# ---- tables of facts -------------------------------------------------------------------


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
    assert [topic.name for topic in stages] == [
        f"stage-{number}" for number in range(1, 22)
    ]
    for number, topic in enumerate(stages, start=1):
        assert topic.answer.startswith(f"Stage {number} is ")
