"""The corpus: what it holds, that it is the same each time, and that nothing held out leaks."""

from collections import defaultdict

import pytest

from src.nano.corpus import (
    BOSTON,
    EVEN,
    MIXTURES,
    PINNED,
    WHOLE_FACT_FAMILIES,
    Document,
    DocumentStream,
    Mixture,
    load_split,
)
from src.nano.facts_geography import COUNTRIES, PLACES, STATES
from src.nano.geography_pairs import CAPITAL_QUESTIONS, FLAG_QUESTIONS, REVERSE_QUESTIONS
from src.nano.pairs import Pair

SPLIT = load_split()
ALL_PAIRS = [
    pair for part in (SPLIT.train, SPLIT.held_out) for pairs in part.values() for pair in pairs
]


def documents(seed: int, count: int, mixture: Mixture = EVEN) -> list[Document]:
    stream = DocumentStream(seed, mixture)
    return [stream.document(60 if index % 10 == 0 else None) for index in range(count)]


def turns(document: Document) -> tuple[str, list[tuple[str, str]]]:
    """The system prompt and the (user, assistant) turns of a conversation."""
    system = "".join(content for role, content in document.messages if role == "system")
    talk = [content for role, content in document.messages if role != "system"]
    return system, list(zip(talk[::2], talk[1::2], strict=True))


def test_the_same_seed_gives_the_same_documents() -> None:
    assert documents(3, 200) == documents(3, 200)
    assert documents(3, 200) != documents(4, 200)


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


def test_every_place_is_asked_in_at_least_twenty_phrasings() -> None:
    phrasings: dict[str, set[str]] = defaultdict(set)
    for place in PLACES:
        for pair in SPLIT.train[f"capital-{place.kind}"]:
            phrasings[pair.fact].add(pair.phrasing)
    assert len(CAPITAL_QUESTIONS) >= 20
    assert set(phrasings) == {place.name for place in PLACES}
    assert min(len(found) for found in phrasings.values()) >= 20


@pytest.mark.parametrize(
    ("family", "facts"),
    [
        ("capital-country-reversed", COUNTRIES),
        ("capital-state-reversed", STATES),
        ("flag", COUNTRIES),
        ("flag-reversed", COUNTRIES),
        ("raw-capital", PLACES),
    ],
)
def test_every_fact_is_trained(family: str, facts: tuple) -> None:
    assert {pair.fact for pair in SPLIT.train[family]} == {place.name for place in facts}


def test_every_phrasing_is_trained() -> None:
    trained = {pair.phrasing for pairs in SPLIT.train.values() for pair in pairs}
    for question in (*CAPITAL_QUESTIONS, *REVERSE_QUESTIONS):
        assert question in trained
        assert question + " Answer in one word." in trained
    assert set(FLAG_QUESTIONS) <= trained


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_every_family_is_in_the_mixture(name: str) -> None:
    mixture = MIXTURES[name]
    drawn = set(mixture.turns) | set(mixture.systems)
    assert drawn == set(SPLIT.train) - {"raw-capital"} | {"nonsense"}


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


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_no_document_tells_a_held_out_pair(name: str) -> None:
    plain: set[tuple[str, str]] = set()
    after_setup: set[tuple[object, str]] = set()
    raw: set[str] = set()
    for pairs in SPLIT.held_out.values():
        for pair in pairs:
            _note(pair, plain, after_setup, raw)
    for document in documents(5, 3000, MIXTURES[name]):
        if document.raw:
            assert "".join(content for _, content in document.messages) not in raw
            continue
        system, talk = turns(document)
        for index, (user, _) in enumerate(talk):
            assert (system, user) not in plain
            for setup in talk[:index]:
                assert (setup, user) not in after_setup
            assert (("first", talk[0]), user) not in after_setup


def _note(
    pair: Pair, plain: set[tuple[str, str]], after_setup: set[tuple[object, str]], raw: set[str]
) -> None:
    if pair.raw:
        raw.add(pair.question + pair.answer)
    elif pair.family == "first-question":
        after_setup.add((("first", pair.setup[0]), pair.question))
    elif pair.setup:
        after_setup.add((pair.setup[0], pair.question))
    else:
        plain.add((pair.system, pair.question))


def test_held_out_sums_are_in_no_list_of_equations() -> None:
    terms = {pair.fact for family in sorted(WHOLE_FACT_FAMILIES) for pair in SPLIT.held_out[family]}
    for document in documents(6, 3000):
        if document.raw:
            for role, content in document.messages:
                assert role != "text" or content.removesuffix(" =") not in terms


def test_the_context_mixture_asks_again_for_what_was_said() -> None:
    for mixture, again in ((EVEN, False), (MIXTURES["context"], True)):
        most = 0
        for document in documents(8, 200, mixture):
            answers = [content for role, content in document.messages if role == "assistant"]
            most = max(most, sum(answer.startswith("Your name is ") for answer in answers))
        assert (most > 1) is again


def test_a_long_conversation_recalls_what_was_said_many_turns_ago() -> None:
    distances = []
    for document in documents(7, 400):
        _, talk = turns(document) if not document.raw else ("", [])
        told = {reply: index for index, (_, reply) in enumerate(talk)}
        for index, (_, answer) in enumerate(talk):
            if answer.startswith("Your name is "):
                name = answer.removeprefix("Your name is ").removesuffix(".")
                distances.append(index - told[f"Nice to meet you, {name}!"])
    assert min(distances) == 1
    assert max(distances) > 20
