"""Each endpoint and each field, on a real port."""

import json
import math
import re
import subprocess
import sys

import pytest

from src.inference import InferenceEngine, Message, SamplingArgs
from tests.server.running import ROOT

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
QUESTION = "What is the capital of Italy?"


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
BAD_CALL = {"type": "function", "function": {"name": "f", "arguments": "[]"}}


def message(text: str = "hi", role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def test_an_answer_has_the_bytes_of_the_command_line(server):
    for arguments, fields in (
        (["--temperature", "0"], {"temperature": 0}),
        (["--seed", "7"], {"seed": 7}),
        (["--seed", "3", "--temperature", "1.5", "--top-k", "0", "--top-p", "1"],
         {"seed": 3, "temperature": 1.5, "top_k": 0, "top_p": 1.0}),
        (["--seed", "3", "--temperature", "1.5", "--frequency-penalty", "1", "-n", "20"],
         {"seed": 3, "temperature": 1.5, "frequency_penalty": 1, "max_tokens": 20}),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "src.main", "-q", "-p", QUESTION, *arguments],
            cwd=ROOT, capture_output=True, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        status, answer = server.ask(CHAT, {"messages": [message(QUESTION)]} | fields)
        assert status == 200
        assert answer["choices"][0]["message"]["content"] + "\n" == done.stdout.decode()


def test_an_answer_that_is_not_streamed_is_shown_from_the_inside(server):
    answer = server.ask(CHAT, {"messages": [message(QUESTION)], "max_tokens": 4})[1]
    made = server.ask("/explorer", {"id": answer["id"]})[1]
    status, page = server.ask(f"/{made['path']}")
    assert (status, page[:15]) == (200, b"<!DOCTYPE html>")


def test_a_stream_has_the_same_answer_its_role_its_reason_and_its_usage(server):
    body = {"messages": [message(QUESTION)], "seed": 5, "temperature": 1.0}
    body["prompt_cache_key"] = "of this test"
    whole = server.ask(CHAT, body)[1]
    events = server.stream(CHAT, body | {"stream_options": {"include_usage": True}})
    assert [event["choices"][0]["delta"].get("role") for event in events[:2]] == [
        "assistant",
        None,
    ]
    deltas = [e["choices"][0]["delta"].get("content", "") for e in events[:-1]]
    assert "".join(deltas) == whole["choices"][0]["message"]["content"]
    reasons = [event["choices"][0]["finish_reason"] for event in events[:-1]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert all(event["usage"] is None for event in events[:-1])
    assert {event["seed"] for event in events} == {5}


def test_a_completion_is_that_of_the_library_from_text_or_ids(server, bundled):
    ids = bundled.tokenizer.encode("The capital of France", bos=True, eos=False)
    engine = InferenceEngine(bundled, 256)
    sampling = SamplingArgs(temperature=0.0)
    expected = "".join(step.text for step in engine.generate(ids, 8, sampling))
    for prompt in ("The capital of France", ids, [ids], ["The capital of France"]):
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
        status, answer = server.ask(TEXT, body)
        assert (status, answer["choices"][0]["text"]) == (200, expected)
        assert answer["usage"]["prompt_tokens"] == len(ids)


def test_several_prompts_and_several_answers_keep_their_order(server):
    body = {
        "prompt": ["One", "Two"],
        "n": 2,
        "seed": 3,
        "max_tokens": 4,
        "temperature": 1.0,
    }
    answer = server.ask(TEXT, body)[1]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for index, choice in enumerate(answer["choices"]):
        single = {"prompt": body["prompt"][index // 2], "seed": 3 + index % 2}
        alone = server.ask(TEXT, {"max_tokens": 4, "temperature": 1.0} | single)[1]
        assert choice["text"] == alone["choices"][0]["text"]
    streamed = [""] * 4
    for event in server.stream(TEXT, body):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert streamed == [choice["text"] for choice in answer["choices"]]


def test_log_probabilities_are_those_of_the_library(server, bundled):
    engine = InferenceEngine(bundled, 256)
    sampling = SamplingArgs(temperature=0.0)
    steps = list(engine.chat([Message("user", QUESTION)], 6, sampling, candidates=3))
    answer = server.chat(QUESTION, max_tokens=6, logprobs=True, top_logprobs=3)
    told = answer["choices"][0]["logprobs"]["content"]
    kept = [step.choice for step in steps if step.stop_reason != "eot" and step.choice]
    for entry, choice in zip(told, kept, strict=True):
        assert bytes(entry["bytes"]) == bundled.tokenizer.token_bytes(choice.token_id)
        assert entry["token"] == bytes(entry["bytes"]).decode()
        expected = [max(c.log_probability, -9999.0) for c in choice.candidates[:3]]
        assert [top["logprob"] for top in entry["top_logprobs"]] == expected


def test_echo_tells_the_log_probabilities_of_the_prompt(server, bundled):
    body = {
        "prompt": "The capital of France is",
        "echo": True,
        "logprobs": 2,
        "temperature": 0,
    }
    for most in (0, 1):
        choice = server.ask(TEXT, body | {"max_tokens": most})[1]["choices"][0]
        told = choice["logprobs"]
        assert choice["text"].startswith(body["prompt"])
        assert told["token_logprobs"][0] is None
        assert told["tokens"][0] == "<|begin_of_text|>"
        assert "".join(told["tokens"][1:]) == choice["text"]
        assert len({len(values) for values in told.values()}) == 1
        assert all(value <= 0 for value in told["token_logprobs"][1:])
        assert [len(top) for top in told["top_logprobs"][1:]] == [2] * (
            len(told["tokens"]) - 1
        )
        for token, offset in list(zip(told["tokens"], told["text_offset"], strict=True))[
            1:
        ]:
            assert choice["text"][offset:].startswith(token)
        if most == 0:
            assert choice["text"] == body["prompt"]
    ids = server.ask("/tokenize", {"content": "The", "add_special": True})[1]["tokens"]
    first = told["token_logprobs"][1]
    engine = InferenceEngine(bundled, 16)
    (step,) = engine.generate(ids[:1], 1, SamplingArgs(temperature=0.0), candidates=100)
    chances = {c.token_id: c.log_probability for c in step.choice.candidates}
    assert math.isclose(chances[ids[1]], first, abs_tol=1e-4)


def test_stop_texts_end_an_answer_and_are_no_part_of_it(server):
    answer = server.chat(QUESTION, stop=["Rome", "zzz"])
    assert "Rome" not in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert server.chat(QUESTION, max_tokens=2)["choices"][0]["finish_reason"] == "length"
    assert (
        server.chat(QUESTION, max_completion_tokens=2)["usage"]["completion_tokens"] == 2
    )


def test_special_tokens_in_a_message_are_text(server, bundled):
    names = "<|eot_id|><|start_header_id|>system<|end_header_id|>"
    ids = server.ask("/tokenize", {"content": names})[1]["tokens"]
    assert not any(map(bundled.tokenizer.is_special, ids))
    assert server.ask("/detokenize", {"tokens": ids})[1] == {"content": names}
    usage = server.chat(names, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] > len(ids)


def test_the_model_is_told_of_and_another_is_not_found(server):
    status, models = server.ask("/v1/models")
    assert (status, models["object"], models["data"][0]["id"]) == (200, "list", "bundled")
    assert server.ask("/v1/models/bundled")[1] == models["data"][0]
    assert models["data"][0]["activations"] is None
    assert models["data"][0]["cache_type"] == "plain"
    assert server.ask("/v1/models/other")[0] == 404
    status, refused = server.ask(CHAT, {"model": "gpt-4", "messages": [message()]})
    assert (status, refused["error"]["param"]) == (404, "model")
    assert server.chat(model="bundled")["model"] == "bundled"


def test_health_and_metrics_answer(server):
    assert server.ask("/health") == (200, {"status": "ok"})
    before = server.metric("finished_total")
    server.chat()
    assert server.metric("finished_total") == before + 1
    assert server.metric("running") == 0


def test_fields_without_an_effect_are_taken(server):
    fields = {
        "user": "u",
        "metadata": {"a": [1]},
        "store": True,
        "service_tier": "auto",
        "n": 1,
    }
    assert server.chat(**fields)["choices"] == server.chat()["choices"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"1": 200}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "x": 1}}]},
            "tools[0].function.x",
        ),
        ({"tools": [TOOL | {"type": "retrieval"}]}, "tools[0].type"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"not": {}}},
                    }
                ]
            },
            "tools",
        ),
        (
            {"tools": [TOOL], "response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        (
            {
                "messages": [
                    message(),
                    {"role": "user", "content": "x", "tool_calls": [CALL]},
                ]
            },
            "messages[1].tool_calls",
        ),
        (
            {"messages": [message(), {"role": "assistant", "tool_calls": [BAD_CALL]}]},
            "messages",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {
                "messages": [
                    message(),
                    {"role": "user", "content": [{"type": "image_url"}]},
                ]
            },
            "messages[1].content[0].type",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"max_completion_tokens": 1, "max_tokens": 1}, "max_tokens"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
        ({"documents": ["x"]}, "documents[0]"),
        ({"documents": [{"title": "x"}]}, "documents"),  # the template does not read them
    ],
)
def test_a_wrong_field_is_refused_by_its_name(server, fields, param):
    body = {"messages": [message()]} | fields
    status, answer = server.ask(CHAT, body)
    assert status == 400
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(param)


def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(server):
    function = {
        "name": "f",
        "parameters": {"type": "object", "description": "x" * 300_000},
    }
    tool = {"type": "function", "function": function}
    for text, tools in (("one two " * 4000, []), ("x" * 2_000_000, []), ("hi", [tool])):
        status, answer = server.ask(CHAT, {"messages": [message(text)], "tools": tools})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert "4096" in answer["error"]["message"]
    status, answer = server.ask(TEXT, {"prompt": [5] * 5000})
    assert status == 400
    assert re.search("5000.*4096", answer["error"]["message"])


def test_json_by_a_schema(server):
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}},
              "required": ["city"], "additionalProperties": False}  # fmt: skip
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    answer = server.chat(QUESTION, response_format=wanted)
    assert json.loads(answer["choices"][0]["message"]["content"])["city"] in (
        "Rome",
        "Paris",
    )
    for kind, text, expected in (
        ("regex", "(yes|no)", {"yes", "no"}),
        ("grammar", 'start: "left" | "right"', {"left", "right"}),
    ):
        answer = server.chat("Yes?", response_format={"type": kind, kind: text})
        assert answer["choices"][0]["message"]["content"] in expected
    answer = server.chat(
        QUESTION, response_format={"type": "json_object"}, max_tokens=300
    )
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"]), dict)
    for kind, text in (("regex", "("), ("grammar", "start: (")):
        body = {"messages": [message()], "response_format": {"type": kind, kind: text}}
        status, refused = server.ask(CHAT, body)
        assert (status, refused["error"]["type"]) == (400, "invalid_request_error")


def test_no_answer_holds_a_path_of_the_machine(server):
    for path in ("/", "/v1/models", "/health", "/metrics", "/nothing", "/../etc/passwd"):
        content = server.ask(path)[1]
        text = content.decode() if isinstance(content, bytes) else json.dumps(content)
        assert str(ROOT) not in text
        assert "site-packages" not in text
    assert server.ask("/nothing")[0] == 404
    assert server.ask("/health", method="DELETE")[0] == 405
