"""The fields of OpenAI's API: each as null and as its neutral value changes no answer.

The lists of fields are those of the `openai` package, so that a new version shows new
fields.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from src.inference import ChatTemplate, Message, named_template
from src.inference.chat_encoding import encode_chat
from tests.inference.chat_tokenizers import hermes
from tests.server.running import JSON, Running, running

chat_params = pytest.importorskip(
    "openai.types.chat.completion_create_params",
    reason="the clients extra is not installed",
)
chat_types = pytest.importorskip("openai.types.chat")
text_params = pytest.importorskip("openai.types.completion_create_params")

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MESSAGES = [{"role": "user", "content": "What is the capital of Italy?"}]
CHAT_BODY = {"messages": MESSAGES, "temperature": 0, "max_tokens": 12, "seed": 7}
TEXT_BODY = {"prompt": "The capital of", "temperature": 0, "max_tokens": 12, "seed": 7}
NONE: list[Any] = []  # for fields of which every value but null asks for something
# For each field the values that change nothing.
NEUTRAL: dict[str, list[Any]] = {
    "frequency_penalty": [0, 0.0],
    "logit_bias": [{}],
    "max_tokens": [4000],
    "n": [1],
    "presence_penalty": [0],
    "seed": [0, 7],  # at temperature 0
    "stop": [[], "never said"],
    "stream": [False],
    "stream_options": [{}, {"include_usage": False}, {"include_obfuscation": False}],
    "temperature": [0.6],  # the default of this server
    "top_p": [1, 0.9],  # at temperature 0
    "user": ["", "u"],
}
CHAT_NEUTRAL: dict[str, list[Any]] = NEUTRAL | {
    "audio": NONE,
    "function_call": ["none", "auto"],
    "functions": [[]],
    "logprobs": [False],
    "max_completion_tokens": [4000],
    "metadata": [{}, {"a": "b"}],
    "modalities": [["text"]],
    "moderation": NONE,
    "parallel_tool_calls": [True, False],
    "prediction": [{"type": "content", "content": "Rome"}],
    "prompt_cache_key": ["", "k"],
    "prompt_cache_options": [{}, {"mode": "implicit"}],
    "prompt_cache_retention": ["in_memory", "24h"],
    "reasoning_effort": ["none", "minimal", "low", "medium", "high", "xhigh"],
    "response_format": [{"type": "text"}],
    "safety_identifier": ["", "s"],
    "service_tier": ["auto", "default"],
    "store": [False, True],
    "tool_choice": ["none", "auto"],
    "tools": [[]],
    "top_logprobs": [0],
    "verbosity": ["medium"],
    "web_search_options": NONE,
}
TEXT_NEUTRAL: dict[str, list[Any]] = NEUTRAL | {
    "best_of": [1],
    "echo": [False],
    "logprobs": NONE,
    "suffix": [""],
}
UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"audio": {"voice": "alloy", "format": "wav"}}),
    (CHAT, {"modalities": ["text", "audio"]}),
    (CHAT, {"modalities": []}),
    (CHAT, {"web_search_options": {}}),
    (CHAT, {"moderation": {"model": "omni-moderation-latest"}}),
    (CHAT, {"functions": [{"name": "f"}]}),
    (CHAT, {"function_call": {"name": "f"}}),
    (CHAT, {"verbosity": "low"}),
    (CHAT, {"stream_options": {"include_usage": True}}),
    (CHAT, {"stream_options": {"include_obfuscation": True}}),
    (CHAT, {"unheard_of": False}),
    (TEXT, {"suffix": "end"}),
    (TEXT, {"best_of": 2}),
    (TEXT, {"messages": MESSAGES}),
]


def optional(*types: Any) -> list[str]:
    """Returns the fields of typed dictionaries but for those that a request cannot do
    without.
    """
    names = {name for each in types for name in each.__annotations__}
    return sorted(names - {"messages", "prompt", "model"})


CHAT_FIELDS = optional(
    chat_params.CompletionCreateParamsNonStreaming,
    chat_params.CompletionCreateParamsStreaming,
)
TEXT_FIELDS = optional(
    text_params.CompletionCreateParamsNonStreaming,
    text_params.CompletionCreateParamsStreaming,
)


@pytest.fixture(scope="module")
def answers(server: Running) -> dict[str, Any]:
    """Answers of bodies that were asked before."""
    return {}


def answer(
    server: Running, answers: dict[str, Any], path: str, body: dict[str, Any]
) -> Any:
    key = repr((path, sorted(body.items())))
    if key not in answers:
        status, content = server.ask(path, body)
        assert status == 200, content
        answers[key] = content["choices"], content["usage"]["completion_tokens"]
    return answers[key]


def check(
    server: Running,
    answers: dict[str, Any],
    path: str,
    base: dict[str, Any],
    field: str,
    value: Any,
) -> None:
    without = {name: base[name] for name in base if name != field}
    if field == "max_completion_tokens":
        del without["max_tokens"]
    expected = answer(server, answers, path, without)
    status, content = server.ask(path, without | {field: value})
    assert status == 200, content
    assert (content["choices"], content["usage"]["completion_tokens"]) == expected


@pytest.mark.parametrize("field", CHAT_FIELDS)
def test_a_field_of_chats_that_asks_for_nothing_changes_no_answer(server, answers, field):
    for value in (None, *CHAT_NEUTRAL[field]):
        check(server, answers, CHAT, CHAT_BODY, field, value)


@pytest.mark.parametrize("field", TEXT_FIELDS)
def test_a_field_of_completions_that_asks_for_nothing_changes_no_answer(
    server, answers, field
):
    for value in (None, *TEXT_NEUTRAL[field]):
        check(server, answers, TEXT, TEXT_BODY, field, value)


def test_all_fields_together_change_no_answer(server):
    for path, base, neutral in (
        (CHAT, CHAT_BODY, CHAT_NEUTRAL),
        (TEXT, TEXT_BODY, TEXT_NEUTRAL),
    ):
        given = {"max_tokens", "max_completion_tokens", "temperature", "seed"}
        nulls = dict.fromkeys(neutral.keys() - given)
        values = {name: neutral[name][0] for name in nulls if neutral[name]}
        expected = server.ask(path, base)[1]["choices"]
        for fields in (
            nulls,
            values,
            nulls | values,
            {"model": None, "not a field": None},
        ):
            status, content = server.ask(path, base | fields)
            assert status == 200, content
            assert content["choices"] == expected


@pytest.mark.parametrize(("path", "fields"), UNSUPPORTED)
def test_a_field_that_cannot_be_supported_is_an_error_that_names_it(server, path, fields):
    (name,) = fields
    status, content = server.ask(
        path, (CHAT_BODY if path == CHAT else TEXT_BODY) | fields
    )
    assert status == 400
    assert content["error"]["param"].startswith(name)
    assert content["error"]["message"].startswith(content["error"]["param"])


CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
# For each role a message, and for its further fields the values that change nothing.
ROLES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "system": ("System", []),
    "developer": ("Developer", []),
    "user": ("User", []),
    "assistant": ("Assistant", [{"tool_calls": []}]),
    "tool": ("Tool", [{"tool_call_id": "c"}]),
}


@pytest.mark.parametrize("role", ROLES)
def test_a_field_of_messages_that_asks_for_nothing_changes_no_answer(
    server, answers, role
):
    name, neutral = ROLES[role]
    fields = getattr(chat_types, f"ChatCompletion{name}MessageParam").__annotations__
    bare = {"role": role, "content": "Rome."}
    tried = [dict.fromkeys([field]) for field in fields if field not in bare]
    tried += [{"name": "x"}] if "name" in fields else []
    tried += [*neutral, {"not_a_field": None}, dict.fromkeys(set(fields) - set(bare))]
    body = CHAT_BODY | {"messages": [*MESSAGES, bare, *MESSAGES]}
    expected = answer(server, answers, CHAT, body)
    for more in tried:
        body["messages"] = [*MESSAGES, bare | more, *MESSAGES]
        status, content = server.ask(CHAT, body)
        assert status == 200, content
        assert content["choices"] == expected[0], more


def test_parts_of_a_body_may_have_nulls_and_the_order_of_calls(server, answers):
    function = {"name": "f", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": function}]
    turn = {"role": "assistant", "content": None, "tool_calls": CALLS}
    result = {"role": "tool", "tool_call_id": "c", "content": "Rome"}
    body = CHAT_BODY | {"tools": tools, "messages": [*MESSAGES, turn, result]}
    expected = answer(server, answers, CHAT, body)
    nulls = {"description": None, "strict": None}
    call = {"index": 0, "id": None, "function": CALLS[0]["function"]}
    part = {"type": "text", "text": "Rome", "prompt_cache_breakpoint": None}
    body |= {
        "tools": [{"type": "function", "function": function | nulls}],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": MESSAGES[0]["content"]}],
            },
            turn
            | {
                "tool_calls": [call],
                "refusal": None,
                "audio": None,
                "function_call": None,
            },
            result | {"content": [part], "name": None},
        ],
    }
    status, content = server.ask(CHAT, body)
    assert status == 200, content
    assert content["choices"] == expected[0]
    # A null inside of a schema is a value: here the only one that validates.
    schema = {
        "type": "json_schema",
        "json_schema": {"name": None, "schema": {"const": None}},
    }
    said = server.ask(CHAT, CHAT_BODY | {"response_format": schema, "audio": None})[1]
    assert said["choices"][0]["message"]["content"] == "null"


def test_negative_seeds_are_seeds(server):
    def told(seed: int, n: int = 1) -> tuple[int, list[str]]:
        body = CHAT_BODY | {"temperature": 1.5, "seed": seed, "n": n}
        status, content = server.ask(CHAT, body)
        assert status == 200, content
        return content["seed"], [one["message"]["content"] for one in content["choices"]]

    assert told(-1) == told(2**53 - 1) == (2**53 - 1, told(-1, 2)[1][:1])
    assert told(-1, 2)[1][1:] == told(0)[1]
    assert told(-5)[0] == 2**53 - 5
    assert told(-(2**63))[0] == 0


def test_a_logit_bias_is_that_of_the_library(server, bundled):
    from src.inference import InferenceEngine, SamplingArgs

    rome = server.ask("/tokenize", {"content": " Rome"})[1]["tokens"]
    bias = {str(token): -100 for token in rome} | {"17": 3.5}
    plain = server.ask(CHAT, CHAT_BODY)[1]["choices"][0]["message"]["content"]
    assert "Rome" in plain
    for settings in ({"temperature": 0}, {"temperature": 1.3, "seed": 4}):
        fields = {"logit_bias": bias, "max_tokens": 10} | settings
        ids = {int(token): value for token, value in bias.items()}
        sampling = SamplingArgs(**settings, logit_bias=ids)
        engine = InferenceEngine(bundled, 256)
        steps = list(engine.chat([Message("user", MESSAGES[0]["content"])], 10, sampling))
        expected = "".join(step.text for step in steps)
        assert " Rome" not in expected
        body = {"messages": MESSAGES} | fields
        said = server.ask(CHAT, body)[1]
        assert said["choices"][0]["message"]["content"] == expected
        deltas = server.stream(CHAT, body)
        streamed = [one["choices"][0]["delta"].get("content", "") for one in deltas]
        assert "".join(streamed) == expected
    prompt = bundled.tokenizer.encode("The capital of", bos=True, eos=False)
    forced = SamplingArgs(temperature=0.0, logit_bias={rome[0]: 100})
    steps = list(InferenceEngine(bundled, 256).generate(prompt, 3, forced))
    body = TEXT_BODY | {"max_tokens": 3, "logit_bias": {str(rome[0]): 100}, "logprobs": 1}
    choice = server.ask(TEXT, body)[1]["choices"][0]
    assert choice["text"] == "".join(step.text for step in steps) == " Rome" * 3
    # Log-probabilities are those of the model, which the bias leaves as they are.
    plain = server.ask(TEXT, TEXT_BODY | {"max_tokens": 1, "logprobs": 1})[1]["choices"][
        0
    ]
    assert (
        choice["logprobs"]["top_logprobs"][0].items()
        >= plain["logprobs"]["top_logprobs"][0].items()
    )
    form = {"type": "regex", "regex": "(Rome|Oslo)"}
    assert "Rome" in str(
        server.ask(CHAT, CHAT_BODY | {"response_format": form})[1]["choices"]
    )
    banned = {
        str(token): -100
        for token in server.ask("/tokenize", {"content": "Rome"})[1]["tokens"]
    }
    said = server.ask(CHAT, CHAT_BODY | {"response_format": form, "logit_bias": banned})[
        1
    ]
    assert said["choices"][0]["message"]["content"] == "Oslo"


@pytest.mark.parametrize(
    ("bias", "said"),
    [
        (
            {"99999999": 1},
            "logit_bias must have ids below the size of the vocabulary: 99999999 >=",
        ),
        ({"-1": 1}, "logit_bias: expected token ids, got '-1'"),
        ({"x": 1}, "logit_bias: expected token ids, got 'x'"),
        ({"1": 101}, "logit_bias must be from -100 to 100 for token 1: got 101.0"),
        ({"1": "a"}, "logit_bias"),
        ([[1, 2]], "logit_bias"),
        ({str(token): 1 for token in range(1025)}, "logit_bias"),
    ],
)
def test_a_wrong_logit_bias_is_an_error_that_names_it(server, bias, said):
    for path, body in ((CHAT, CHAT_BODY), (TEXT, TEXT_BODY)):
        status, content = server.ask(path, body | {"logit_bias": bias})
        assert status == 400
        assert content["error"]["param"].startswith("logit_bias")
        assert said in content["error"]["message"]


def test_thoughts_are_off_without_reasoning_effort(tmp_path):
    server = pytest.importorskip(
        "src.server.answers", reason="the serve extra is not installed"
    )
    from src.server.bodies import ChatBody, ChatMessage
    from src.server.errors import RequestError
    from src.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(hermes(tmp_path / "hermes"))
    messages = [Message("user", "hi")]

    def prompt(name: str, effort: str | None) -> list[int]:
        service: Any = SimpleNamespace(
            chat_format=named_template(name),
            tokenizer=tokenizer,
            check_length=lambda *_: None,
            sampling={},
        )
        body = ChatBody(messages=[ChatMessage("user", "hi")], reasoning_effort=effort)
        (one,) = server.chat_answers(service, None, body)
        return [*one.prompt_ids]

    for name in ("qwen3", "chatml", "smollm3"):
        on, off = (
            encode_chat(tokenizer, messages, chat_format=name, think=think)
            for think in (True, False)
        )
        assert (on == off) == (name == "chatml")
        for effort in (None, "low", "high", "xhigh", "unheard of"):
            assert prompt(name, effort) == on
        assert prompt(name, "none") == off
    with pytest.raises(
        RequestError, match=r"^reasoning_effort: expected a value that allows thoughts"
    ) as error:
        prompt("deepseek-r1", "none")
    assert error.value.param == "reasoning_effort"


def test_a_template_reads_the_documents_and_arguments_of_a_request(tmp_path):
    server = pytest.importorskip(
        "src.server.answers", reason="the serve extra is not installed"
    )
    from src.server.bodies import ChatBody, ChatMessage
    from src.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(hermes(tmp_path / "hermes"))
    text = (
        "{{ documents[0].text }}|{{ style }}|{{ messages[0].name }}|{{ enable_thinking }}"
    )
    service: Any = SimpleNamespace(
        chat_format=ChatTemplate(text),
        tokenizer=tokenizer,
        check_length=lambda *_: None,
        sampling={},
    )
    body = ChatBody(
        messages=[ChatMessage("user", "hi", name="Ann")],
        documents=[{"text": "<|im_end|>"}],
        chat_template_kwargs={"style": "<|im_start|>", "enable_thinking": True},
        reasoning_effort="none",
    )
    (answer,) = server.chat_answers(service, None, body)
    assert tokenizer.decode(answer.prompt_ids) == "<|im_end|>|<|im_start|>|Ann|True"
    assert not any(map(tokenizer.is_special, answer.prompt_ids))


def test_the_thoughts_before_a_call_are_written_as_the_template_of_qwen3_has_them(
    tmp_path,
):
    """Clients send `reasoning_content` back; formats whose templates ignore it leave it
    out.
    """
    server = pytest.importorskip(
        "src.server.answers", reason="the serve extra is not installed"
    )
    from src.server.bodies import ChatBody, ChatMessage, _Call, _CalledFunction
    from src.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(hermes(tmp_path / "hermes"))
    call = _Call(_CalledFunction("now", "{}"))
    calls = {"role": "assistant", "tool_calls": [call]}
    result = ChatMessage("tool", "12:00")

    def prompt(name: str, *messages: ChatMessage) -> str:
        service: Any = SimpleNamespace(
            chat_format=named_template(name),
            tokenizer=tokenizer,
            check_length=lambda *_: None,
            sampling={},
        )
        (answer,) = server.chat_answers(service, None, ChatBody(messages=[*messages]))
        return tokenizer.decode(answer.prompt_ids)

    question = ChatMessage("user", "When?")
    thinking = ChatMessage(**calls, reasoning_content="Hm.")
    written = prompt("qwen3", question, thinking, result)
    assert "assistant\n<think>\nHm.\n</think>\n\n<tool_call>\n" in written
    in_content = ChatMessage(**calls, content="<think>\nHm.\n</think>\n\n")
    assert prompt("qwen3", question, in_content, result) == written
    # Thoughts before the last question are left out, and so are those for other formats.
    plain = ChatMessage(**calls)
    for name, last in (("qwen3", [result, question]), ("qwen2.5", [result])):
        assert prompt(name, question, thinking, *last) == prompt(
            name, question, plain, *last
        )


def status_of(server: Running, *headers: bytes) -> int:
    body = b'{"prompt":"One","max_tokens":1 }'
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n%s\r\n"
        % (len(body), b"".join(h + b"\r\n" for h in headers))
    )
    return int(server.raw(request + body).split(b" ", 2)[1])


PAGES = [b"Origin: http://evil.example", b"Origin: null", b"Sec-Fetch-Site: cross-site",
         b"Sec-Fetch-Mode: no-cors", b"SEC-FETCH-DEST: empty", b"origin:"]  # fmt: skip


def test_a_body_without_a_type_is_json_unless_a_page_may_have_sent_it(server):
    assert status_of(server) == 200
    assert status_of(server, b"Content-Type:") == 200
    assert status_of(server, b"Content-Type: Application/JSON; charset=utf-8") == 200
    for page in PAGES:
        assert status_of(server, page) == 400
        assert status_of(server, page, b"Content-Type:") == 400
        # There is no key.
        assert status_of(server, page, b"Authorization: Bearer x") == 400
        assert status_of(server, page, b"Content-Type: application/json") == 200
    for kind in (
        b"text/plain",
        b"application/x-www-form-urlencoded",
        b"application/jsonp",
    ):
        assert status_of(server, b"Content-Type: " + kind) == 400
    message = server.ask(TEXT, TEXT_BODY, JSON | {"Content-Type": "text/plain"})[1][
        "error"
    ]
    assert (
        message["message"] == 'Content-Type: expected application/json, got "text/plain"'
    )


def test_a_body_without_a_type_is_json_if_it_comes_with_the_key(tmp_path):
    with running(tmp_path, "--api-key", "sk-Secret") as locked:
        key = b"Authorization: Bearer sk-Secret"
        for page in PAGES:
            assert status_of(locked, page, key) == 200
            assert status_of(locked, page, b"Authorization: Bearer sk-Other") == 401
            assert status_of(locked, page, key, b"Content-Type: text/plain") == 400
        assert status_of(locked) == 401


def test_a_model_of_another_name_is_an_error_with_both_names(server):
    """Names that `-m` takes are neither loaded nor downloaded for a request."""
    for name in (
        "",
        "gpt-4o",
        "smollm2",
        "org/repo:Q4_K_M",
        "ollama:a",
        "/etc/passwd",
        "../..",
    ):
        status, content = server.ask(CHAT, CHAT_BODY | {"model": name})
        assert status == 404
        said = f'model: expected "bundled" or no model, got "{name}"'
        assert content["error"]["message"] == said
    assert server.ask(CHAT, CHAT_BODY | {"model": "bundled"})[0] == 200
