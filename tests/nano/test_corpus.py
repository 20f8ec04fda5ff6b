"""The corpus: what it holds, and what is held out."""

from collections import defaultdict

import pytest

from src.nano.corpus import BOSTON, PINNED, WHOLE_FACT_FAMILIES, load_split
from src.nano.facts_geography import COUNTRIES, PLACES, STATES

SPLIT = load_split()
ALL_PAIRS = [
    pair for part in (SPLIT.train, SPLIT.held_out) for pairs in part.values() for pair in pairs
]


def test_a_pair_occurs_once() -> None:
    keys = [pair.key for pair in ALL_PAIRS]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("family", sorted(SPLIT.held_out))
def test_at_least_a_tenth_of_each_family_is_held_out(family: str) -> None:
    train, held_out = SPLIT.train[family], SPLIT.held_out[family]
    assert 10 * len(held_out) >= len(train) + len(held_out)


@pytest.mark.parametrize("family", sorted(set(SPLIT.held_out) - WHOLE_FACT_FAMILIES))
def test_each_held_out_fact_and_phrasing_is_trained_otherwise(family: str) -> None:
    facts = {pair.fact for pair in SPLIT.train[family]}
    phrasings = {pair.phrasing for pair in SPLIT.train[family]}
    for pair in SPLIT.held_out[family]:
        assert pair.fact in facts
        assert pair.phrasing in phrasings


@pytest.mark.parametrize(
    ("family", "facts"),
    [
        ("capital-country-reversed", COUNTRIES), ("capital-state-reversed", STATES),
        ("flag", COUNTRIES), ("flag-reversed", COUNTRIES), ("raw-capital", PLACES),
    ],
)  # fmt: skip
def test_every_fact_is_trained(family: str, facts: tuple) -> None:
    assert {pair.fact for pair in SPLIT.train[family]} == {place.name for place in facts}


def test_a_prompt_with_its_setup_has_one_answer() -> None:
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
