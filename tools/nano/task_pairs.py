"""Pairs of arithmetic, of memory within the conversation, and of fixed questions and
answers.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import facts_memory as memory
from .facts_chat import ROLE_PLAY, SMALL_TALK
from .facts_llama import LIBRARY_TOPICS, LLAMA_TOPICS
from .facts_types import Topic, phrases
from .facts_unknown import UNKNOWN_ANSWER, UNKNOWN_QUESTIONS
from .pairs import Pair

LARGEST_TERM = 50
JUST_NUMBER = " Answer with the number only."
SUM_QUESTIONS = phrases(
    """
    What is {a} + {b}? / {a} + {b} = ? / How much is {a} plus {b}? / What is {a} plus {b}? /
    Calculate {a} + {b}. / Add {a} and {b}. / What is the sum of {a} and {b}? / {a} + {b}
    """
)
DIFFERENCE_QUESTIONS = phrases(
    """
    What is {a} - {b}? / {a} - {b} = ? / How much is {a} minus {b}? / What is {a} minus {b}? /
    Calculate {a} - {b}. / Subtract {b} from {a}. / What is the difference of {a} and {b}? / {a} -
    {b}
    """
)
WRAPPERS = phrases(
    """
    {q} / Please tell me: {q} / I have a question. {q} / {q} Thank you. / Hey! {q}
    """
)
REMEMBERED_NUMBERS = range(103, 1000, 13)


def sum_pairs() -> Iterator[Pair]:
    """Yield `sum` for all 0 <= a, b <= 50 and `difference` for all 0 <= b <= a <= 50."""
    for a in range(LARGEST_TERM + 1):
        for b in range(LARGEST_TERM + 1):
            yield from _arithmetic("sum", SUM_QUESTIONS, f"{a} + {b}", a, b, a + b)
            if b <= a:
                yield from _arithmetic(
                    "difference", DIFFERENCE_QUESTIONS, f"{a} - {b}", a, b, a - b
                )


def _arithmetic(
    family: str, questions: tuple[str, ...], term: str, a: int, b: int, result: int
) -> Iterator[Pair]:
    for question in questions:
        yield Pair(
            family, question, term, question.format(a=a, b=b), f"{term} = {result}."
        )
    short = questions[0] + JUST_NUMBER
    yield Pair(family, short, term, short.format(a=a, b=b), str(result))


def memory_pairs() -> Iterator[Pair]:
    """Yield the pairs whose answer is said earlier in the same conversation."""
    numbers = tuple(map(str, REMEMBERED_NUMBERS))
    tables = (
        ("name", memory.NAMES, memory.NAME_TALK),
        ("home", memory.HOME_CITIES, memory.HOME_TALK),
        ("number", numbers, memory.NUMBER_TALK),
    )
    for family, facts, talk in tables:
        for fact in facts:
            for introduction in talk.introductions:
                setup = ((introduction.format(x=fact), talk.reply.format(x=fact)),)
                for question in talk.questions:
                    phrasing = f"{introduction} | {question}"
                    answer = talk.answer.format(x=fact)
                    yield Pair(family, phrasing, fact, question, answer, setup=setup)


def first_question_pairs(asked: list[Pair]) -> Iterator[Pair]:
    """Yield `first-question` pairs: each of `asked` opens a conversation and is asked
    for.
    """
    for first in asked:
        setup = ((first.question, first.answer),)
        answer = memory.FIRST_ANSWER.format(x=first.question)
        for question in memory.FIRST_QUESTIONS:
            yield Pair(
                "first-question", question, first.question, question, answer, setup=setup
            )


def repeat_pairs() -> Iterator[Pair]:
    """Yield words to repeat, to say twice and to spell."""
    forms = (
        ("repeat", memory.REPEAT_PHRASINGS, "{x}"),
        ("twice", memory.TWICE_PHRASINGS, "{x} {x}"),
        ("spell", memory.SPELL_PHRASINGS, "{spelled}"),
    )
    for word in memory.WORDS:
        for family, phrasings, answer in forms:
            for phrasing in phrasings:
                text = answer.format(x=word, spelled="-".join(word))
                yield Pair(family, phrasing, word, phrasing.format(x=word), text)


def topic_pairs() -> Iterator[Pair]:
    """Yield the fixed questions and answers, each question in several wrappers."""
    tables = (
        ("llama", LLAMA_TOPICS),
        ("library", LIBRARY_TOPICS),
        ("talk", SMALL_TALK),
        ("role", ROLE_PLAY),
    )
    for family, topics in tables:
        for topic in topics:
            yield from _topic(family, topic)
    for question in UNKNOWN_QUESTIONS:
        for wrapper in WRAPPERS:
            yield Pair(
                "unknown", wrapper, question, wrapper.format(q=question), UNKNOWN_ANSWER
            )


def _topic(family: str, topic: Topic) -> Iterator[Pair]:
    for question in topic.questions:
        for system in topic.system:
            yield Pair(
                family,
                system,
                f"{topic.name}: {question}",
                question,
                topic.answer,
                system,
            )
        for wrapper in () if topic.system else WRAPPERS:
            yield Pair(
                family, wrapper, question, wrapper.format(q=question), topic.answer
            )
