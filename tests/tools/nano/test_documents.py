"""The documents: the same each time, and none tells what is held out."""

import re

import pytest

from tools.nano.corpus import WHOLE_FACT_FAMILIES, load_split
from tools.nano.documents import Document, DocumentStream
from tools.nano.mixtures import EVEN, MIXTURES, Mixture
from tools.nano.questions import newcomer_questions

SPLIT = load_split()


def documents(seed: int, count: int, mixture: Mixture = EVEN) -> list[Document]:
    stream = DocumentStream(seed, mixture)
    return [stream.document(60 if index % 10 == 0 else None) for index in range(count)]


def turns(document: Document) -> tuple[str, list[tuple[str, str]]]:
    """The system prompt and the (user, assistant) turns of a conversation; a raw text has
    none.
    """
    if document.raw:
        return "", []
    system = "".join(content for role, content in document.messages if role == "system")
    talk = [content for role, content in document.messages if role != "system"]
    return system, list(zip(talk[::2], talk[1::2], strict=True))


def test_the_same_seed_gives_the_same_documents() -> None:
    assert documents(3, 200) == documents(3, 200)
    assert documents(3, 200) != documents(4, 200)


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_no_document_tells_a_held_out_pair_or_asks_a_hand_written_question(
    name: str,
) -> None:
    asked = {one.question for one in newcomer_questions()}
    sums = {
        pair.fact
        for family in sorted(WHOLE_FACT_FAMILIES)
        for pair in SPLIT.held_out[family]
    }
    plain: set[tuple[str, str]] = set()
    after_setup: set[tuple[object, str]] = set()
    raw: set[str] = set()
    for pair in (pair for pairs in SPLIT.held_out.values() for pair in pairs):
        if pair.raw:
            raw.add(pair.question + pair.answer)
        elif pair.family == "first-question":
            after_setup.add((("first", pair.setup[0]), pair.question))
        elif pair.setup:
            after_setup.add((pair.setup[0], pair.question))
        else:
            plain.add((pair.system, pair.question))
    for document in documents(5, 3000, MIXTURES[name]):
        if document.raw:
            assert "".join(text for _, text in document.messages) not in raw
            texts = [content for role, content in document.messages if role == "text"]
            assert sums.isdisjoint(text.removesuffix(" =") for text in texts)
        system, talk = turns(document)
        assert system or asked.isdisjoint(user for user, _ in talk)
        for index, (user, _) in enumerate(talk):
            assert (system, user) not in plain
            assert (("first", talk[0]), user) not in after_setup
            assert not any((setup, user) in after_setup for setup in talk[:index])


def test_the_late_mixture_asks_again_for_what_was_said() -> None:
    for mixture, again in ((EVEN, False), (MIXTURES["late"], True)):
        told = [
            sum(content.startswith("You live in ") for _, content in document.messages)
            for document in documents(8, 200, mixture)
        ]
        assert (max(told) > 1) is again


def test_a_long_conversation_recalls_what_was_said_many_turns_ago() -> None:
    distances = []
    for document in documents(7, 400):
        _, talk = turns(document)
        told = {reply: index for index, (_, reply) in enumerate(talk)}
        for index, (question, answer) in enumerate(talk):
            name = answer.removeprefix("Your name is ").removesuffix(".")
            if answer == f"Your name is {name}." and name not in question:
                distances.append(index - told[f"Nice to meet you, {name}!"])
    assert min(distances) == 1
    assert max(distances) > 20


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_every_family_is_in_the_mixture(name: str) -> None:
    mixture = MIXTURES[name]
    drawn = set(mixture.turns) | set(mixture.systems)
    assert drawn == set(SPLIT.train) - {"raw-capital"} | {"nonsense"}


def test_questions_are_varied_answers_are_not_and_what_is_told_is_copied_as_typed() -> (
    None
):
    answers = {pair.answer for pair in SPLIT.train["capital-forms"]}
    asked: dict[str, set[str]] = {}
    for document in documents(12, 4000):
        for question, answer in turns(document)[1]:
            if answer in answers:
                asked.setdefault(answer, set()).add(question)
            copied = re.match(r"(?:Nice to meet you, |I will remember )(\w+)[!.]", answer)
            assert copied is None or copied[1] in question
    forms = asked["The capital of France is Paris."]
    assert any(form.islower() for form in forms)
    assert any(not form.endswith("?") for form in forms)
