"""Programs that people use with such a server: libraries in Python, and `lm-eval`.

`test_examples.py` has curl, and `llm`.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from src.model.sources import BUNDLED_MODEL
from tests.server.running import ROOT

QUESTION = "What is the capital of Italy?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
ASKED: Any = {"model": "bundled", "messages": MESSAGES, "temperature": 0}


@pytest.fixture
def openai():
    return pytest.importorskip("openai", reason="the clients extra is not installed")


@pytest.fixture
def client(server, openai):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as made:
        yield made


@pytest.fixture
def expected(server):
    return server.chat(QUESTION)["choices"][0]["message"]["content"]


def test_the_openai_package(client, openai, expected):
    create = client.chat.completions.create
    answer = create(**ASKED)
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens > answer.usage.prompt_tokens > 0
    content = create(**ASKED, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(entry.token for entry in content) == expected
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    france = {"prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}
    assert "Paris" in client.completions.create(model="bundled", **france).choices[0].text
    assert [model.id for model in client.models.list()] == ["bundled"]
    with pytest.raises(openai.NotFoundError):
        create(**ASKED | {"model": "gpt-4o"})
    with pytest.raises(openai.BadRequestError, match="web_search_options"):
        create(**ASKED, web_search_options={})


def test_the_openai_package_streams(client, expected):
    create = client.chat.completions.create
    chunks = list(create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert (
        "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    )
    assert chunks[-1].usage.completion_tokens > 0
    stream = create(**ASKED | {"temperature": 2}, top_p=1, stream=True)
    next(iter(stream))
    stream.close()


def test_the_openai_package_without_waiting(server, openai, expected):
    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none"
        ) as client:

            async def ask() -> str:
                stream = await client.chat.completions.create(**ASKED, stream=True)
                return "".join(
                    [chunk.choices[0].delta.content or "" async for chunk in stream]
                )

            return await asyncio.gather(*(ask() for _ in range(8)))

    assert asyncio.run(ask_all()) == [expected] * 8


def test_the_openai_package_parses_structures(client):
    pydantic = pytest.importorskip("pydantic")
    city = pydantic.create_model("City", city=(str, pydantic.Field(max_length=12)))
    message = (
        client.chat.completions.parse(**ASKED, response_format=city).choices[0].message
    )
    assert message.parsed == city(**json.loads(message.content))


WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Paris"]},
        "days": {"type": "integer", "maximum": 9, "minimum": 1},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now", "description": "the time"}},
]


def test_the_openai_package_calls_functions(client):
    jsonschema = pytest.importorskip("jsonschema")
    named = {"type": "function", "function": {"name": "get_weather"}}
    create = client.chat.completions.create
    asked = ASKED | {"tools": TOOLS}
    choice = create(**asked, tool_choice=named).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert (call.type, call.function.name) == ("function", "get_weather")
    jsonschema.validate(json.loads(call.function.arguments), WEATHER)
    streamed = [
        chunk.choices[0] for chunk in create(**asked, tool_choice=named, stream=True)
    ]
    deltas = [d for chunk in streamed for d in chunk.delta.tool_calls or ()]
    assert [(d.index, d.function) for d in deltas] == [(0, deltas[0].function)]
    assert deltas[0].function.model_dump() == call.function.model_dump()
    assert "".join(chunk.delta.content or "" for chunk in streamed) == ""
    assert streamed[-1].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": "20 degrees"}
    asked["messages"] = [*MESSAGES, choice.message.model_dump(exclude_none=True), result]
    for tool_choice in ("auto", "none", "required"):
        choice = create(**asked, tool_choice=tool_choice, max_tokens=200).choices[0]
        is_call = choice.finish_reason == "tool_calls"
        assert is_call == bool(choice.message.tool_calls)
        assert is_call or isinstance(choice.message.content, str)
        assert is_call or tool_choice != "required" or choice.finish_reason == "length"
        assert not is_call or tool_choice != "none"


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("langchain_openai", "clients"),
        ("autogen_ext", "clients"),
        ("pydantic_ai", "clients"),
        ("litellm", "more-clients"),
    ],
)
def test_what_a_library_sends_by_default_is_answered(
    server, expected, tmp_path, name, extra
):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: the {extra} extra has it")
    own = ("OPENAI_", "LANGCHAIN_", "LANGSMITH_", "LITELLM_")
    environment = {
        name: os.environ[name] for name in os.environ if not name.startswith(own)
    }
    # The prices of the models of others, which LiteLLM reads from a network otherwise.
    environment |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(tmp_path)}
    program = f"tests.server.client_programs.{name}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", program, f"{server.url}/v1"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])
    assert results.pop("asked") == results.pop("streamed") == expected
    assert results.pop("waited", expected) == expected
    assert results.pop("tokens") > 0
    assert results.pop("called")[1] in ("Rome", "Paris")
    assert results.pop("after the call") in ("stop", "length", "tool_calls")
    for structure in ("by a schema", "by a function"):
        assert results.pop(structure, {"city": "Rome"}) == {"city": "Rome"}
    assert all(text and isinstance(text, str) for text in results.values()), results


@pytest.mark.slow
def test_lm_eval_scores_as_the_library_does(server, tmp_path):
    program = shutil.which(
        "lm-eval", path=os.environ.get("LM_EVAL_PATH", os.environ["PATH"])
    )
    if program is None:
        pytest.skip("lm-eval is not installed")
    (tmp_path / "capitals.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "question": f"The capital of {country} is",
                    "choices": choices,
                    "answer": 0,
                }
            )
            + "\n"
            for country, choices in (
                ("France", ["Paris", "Rome"]),
                ("Italy", ["Rome", "Oslo"]),
                ("Norway", ["Oslo", "Paris"]),
            )
        )
    )
    (tmp_path / "capitals.yaml").write_text(
        f"task: capitals\ndataset_path: json\ndataset_kwargs:\n  data_files:\n"
        f"    test: {tmp_path / 'capitals.jsonl'}\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: '{{question}}'\n"
        "doc_to_choice: '{{choices}}'\ndoc_to_target: answer\nmetric_list:\n"
        "  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )
    arguments = (
        f"model=bundled,base_url={server.url}/v1/completions,tokenizer_backend=huggingface,"
        f"tokenizer={BUNDLED_MODEL},tokenized_requests=True,num_concurrent=2"
    )
    done = subprocess.run(
        [
            program,
            "run",
            "--model",
            "local-completions",
            "--model_args",
            arguments,
            "--include_path",
            str(tmp_path),
            "--tasks",
            "capitals",
            "--output_path",
            str(tmp_path / "out"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (result,) = (tmp_path / "out").rglob("results*.json")
    assert json.loads(result.read_text())["results"]["capitals"]["acc,none"] == 1.0
