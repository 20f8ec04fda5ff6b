"""Messages of a conversation as code passes them, and calls of functions."""

import pytest

from src.inference import ChatFormatError, InferenceEngine, Message, ToolCall, as_messages


def test_dicts_and_messages_are_read_alike():
    read = [Message("system", "You are a pirate"), Message("user", "hi")]
    system, user = (
        {"role": message.role, "content": message.content} for message in read
    )
    for given in ([system, user], (system, read[1]), read):
        assert as_messages(given) == read


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (
            "hi",
            r"\[chat\] messages must be a list of Message, or dicts such as .*: got str",
        ),
        (b"hi", "got bytes"),
        ({"role": "user", "content": "hi"}, "must be a list of Message.*: got dict"),
        (Message("user", "hi"), "must be a list of Message.*: got Message"),
        (None, "must be a list of Message.*: got NoneType"),
        ([], "at least one message: got none"),
        (["hi"], r"messages\[0\] must be Message, or dicts such as .*: got str"),
        (
            [Message("user", "hi"), {"role": "user"}],
            r"messages\[1\] must have the keys role and",
        ),
        ([{}], "the keys role and content: got none"),
        (
            [{"role": "user", "content": "hi", "name": "x"}],
            "keys role and content: got 'role', ",
        ),
        ([{1: 2}], "got 1"),
        ([{"role": "boss", "content": "hi"}], "role must be one of"),
        ([{"role": "user", "content": ["hi"]}], "content must be a string: got list"),
    ],
)
def test_what_is_no_conversation_is_refused_with_what_to_pass(model, given, error):
    with pytest.raises(ChatFormatError, match=error) as caught:
        InferenceEngine(model, 64).chat(given)
    assert "\n" not in str(caught.value)
    with pytest.raises(ChatFormatError):
        as_messages(given)


@pytest.mark.parametrize(
    "role",
    [
        "",
        "User",
        "Tool",
        "ipython",
        "<|eot_id|>",
        "user\n",
        "user<|end_header_id|>",
        None,
    ],
)
def test_an_unknown_role_is_refused(role):
    with pytest.raises(
        ChatFormatError, match="role must be one of system, user, assistant, tool"
    ):
        Message(role, "Hi")


@pytest.mark.parametrize(
    "arguments", ["", "[]", "null", "{", '{"a": 1, "a": 2}', "\ud800"]
)
def test_arguments_that_are_no_object_are_refused(arguments):
    with pytest.raises(ChatFormatError, match="must be a JSON object"):
        Message("assistant", "", (ToolCall("a", arguments),))


def test_a_template_reads_what_a_message_has_and_no_more():
    call = ToolCall("f", '{"a": 1}', "call00001")
    message = Message("assistant", "", (call,), reasoning="Hm.")
    function = {"name": "f", "arguments": {"a": 1}}
    assert message.as_variable() == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": function, "id": "call00001"}],
        "reasoning_content": "Hm.",
    }
    (as_text,) = message.as_variable(arguments_as_text=True)["tool_calls"]
    assert as_text["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert Message("user", "Hi").as_variable() == {"role": "user", "content": "Hi"}
    result = Message("tool", "5", name="f", tool_call_id="call00001")
    assert result.as_variable() == {
        "role": "tool", "content": "5", "name": "f", "tool_call_id": "call00001",
    }  # fmt: skip
