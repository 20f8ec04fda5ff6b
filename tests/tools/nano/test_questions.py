"""The hand-written questions and the rules by which an answer to them is right."""

import pytest

from tools.nano.corpus import load_split
from tools.nano.facts_unknown import UNKNOWN_ANSWER
from tools.nano.questions import Question, newcomer_questions


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ("?", UNKNOWN_ANSWER, "The capital of Serbia is Belgrade."),
        ("?", "I do not know a capital of Oz.", "I know a capital of Oz."),
        ("=Boston", "Boston", "Boston."),
        ("Paris", "The capital of France is Paris.", "The capital of France is Parisi."),
        (
            "No & France",
            "No, Paris is the capital of France.",
            "Paris is the capital of France.",
        ),
        ("4", "2 + 2 = 4.", "2 + 2 = 42."),
        ("🇯🇵", "The flag of Japan is 🇯🇵", "The flag of Japan is 🇮🇹"),
        ("No | I do not know", "I do not know that.", "Yes, it is."),
    ],
)
def test_a_rule_tells_right_from_wrong(rule: str, right: str, wrong: str) -> None:
    question = Question("group", "Question?", rule)
    assert question.is_right(right)
    assert not question.is_right(wrong)


def test_a_hand_written_question_occurs_once_and_is_no_pair() -> None:
    questions = [one.question for one in newcomer_questions()]
    asked = set(questions)
    assert len(asked) == len(questions)
    pairs = (pair for members in load_split().train.values() for pair in members)
    assert asked.isdisjoint(pair.question for pair in pairs if not pair.system)
