"""Messages as code passes them: ours, or the dicts that APIs for chats share."""

from typing import Any

import pytest

from src.inference import ChatFormatError, InferenceEngine, Message, PromptError, as_messages
from src.inference.sampling import SamplingArgs
from src.model import Model, load_model

GREEDY = SamplingArgs(temperature=0.0)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model()


def test_dicts_and_messages_are_answered_alike(model: Model) -> None:
    engine = InferenceEngine(model, 128)
    system = {"role": "system", "content": "You are a pirate"}
    ours = [Message("system", "You are a pirate"), Message("user", "hi")]
    answers = [
        "".join(step.text for step in engine.chat(messages, 16, GREEDY))
        for messages in (ours, [system, {"role": "user", "content": "hi"}], (system, ours[1]))
    ]
    assert answers[0]
    assert answers == [answers[0]] * 3


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("hi", r"\[chat\] messages must be a list of Message, or dicts such as .*: got str"),
        (b"hi", "got bytes"),
        ({"role": "user", "content": "hi"}, "must be a list of Message.*: got dict"),
        (Message("user", "hi"), "must be a list of Message.*: got Message"),
        (None, "must be a list of Message.*: got NoneType"),
        ([], "at least one message: got none"),
        (["hi"], r"messages\[0\] must be Message, or dicts such as .*: got str"),
        ([Message("user", "hi"), {"role": "user"}], r"messages\[1\] must have the keys role and"),
        ([{}], "the keys role and content: got none"),
        ([{"role": "user", "content": "hi", "name": "x"}], "keys role and content: got 'role', "),
        ([{1: 2}], "got 1"),
        ([{"role": "boss", "content": "hi"}], "role must be one of"),
        ([{"role": "user", "content": ["hi"]}], "content must be a text: got list"),
    ],
)
def test_what_is_no_conversation_is_refused_with_what_to_pass(
    model: Model, given: Any, error: str
) -> None:
    with pytest.raises(ChatFormatError, match=error) as caught:
        InferenceEngine(model, 64).chat(given)
    assert "\n" not in str(caught.value)
    with pytest.raises(ChatFormatError):
        as_messages(given)


@pytest.mark.parametrize("given", ["hi", b"hi", ""])
def test_a_text_in_the_place_of_token_ids_is_refused_with_what_to_pass(
    model: Model, given: Any
) -> None:
    with pytest.raises(PromptError, match=r"prompt_ids must be token ids, such as .*encode\(text"):
        InferenceEngine(model, 64).generate(given)
