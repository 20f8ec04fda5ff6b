"""Hundreds of requests, 32 at once, with clients that go away and clients that read slowly."""

import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import Model, load_model
from tests.cli.conftest import run_program
from tests.server.running import JSON, Running, running, wait_until

WORDS = [
    "the", "of", "a", "capital", "Italy", "France", "what", "is", "who", "tell", "me", "story",
    "number", "seven", "hello", "why", "12",
]  # fmt: skip


def body_of(chance: random.Random) -> dict[str, Any]:
    """Returns a random request: short or long, greedy or sampled."""
    text = " ".join(chance.choices(WORDS, k=int(10 ** chance.uniform(0, 2.5))))
    shared = "You are helpful. " * 40 if chance.random() < 0.3 else ""
    return {
        "messages": [{"role": "user", "content": shared + text}],
        "max_tokens": int(10 ** chance.uniform(0, 2)),
        "seed": chance.randrange(1000),
        "temperature": chance.choice([0.0, 0.6, 1.0, 1.5]),
        "top_k": chance.choice([0, 5, 50]),
        "top_p": chance.choice([0.5, 0.9, 1.0]),
        "repeat_penalty": chance.choice([1.0, 1.0, 1.2]),
        "presence_penalty": chance.choice([0.0, 0.0, 0.5]),
        "stream": True,
    }


def alone(model: Model, body: dict[str, Any]) -> str:
    names = ("seed", "temperature", "top_k", "top_p", "repeat_penalty", "presence_penalty")
    sampling = SamplingArgs(**{name: body[name] for name in names})
    messages = [Message("user", body["messages"][0]["content"])]
    steps = InferenceEngine(model, 4096).chat(messages, body["max_tokens"], sampling)
    return "".join(step.text for step in steps)


def ask(server: Running, body: dict[str, Any], kind: str, chance: random.Random) -> str | None:
    """Returns the answer; None of a client that went away."""
    for _ in range(100):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        connection.request("POST", "/v1/chat/completions", json.dumps(body), JSON)
        if kind == "early":
            connection.close()
            return None
        response = connection.getresponse()
        if response.status == 200:
            break
        assert response.status == 429
        connection.close()
        time.sleep(chance.random())
    content = b""
    if kind == "leaves":
        response.read(chance.randrange(1, 2000))
        connection.close()
        return None
    while part := response.read(300 if kind == "slow" else 1 << 16):
        content += part
        if kind == "slow":
            time.sleep(0.002)
    connection.close()
    events = [line[6:] for line in content.decode().split("\n\n") if line]
    assert events[-1] == "[DONE]"
    deltas = (json.loads(event)["choices"][0]["delta"] for event in events[:-1])
    return "".join(delta.get("content", "") for delta in deltas)


def check(server: Running, model: Model, count: int, seed: int) -> None:
    chance = random.Random(seed)
    bodies = [body_of(chance) for _ in range(count)]
    kinds = chance.choices(["whole", "slow", "leaves", "early"], [6, 2, 1, 1], k=count)
    with ThreadPoolExecutor(32) as pool:
        chances = [random.Random(number) for number in range(count)]
        list(pool.map(ask, [server] * 40, bodies[:40], kinds[:40], chances))  # all is warm then
        before = server.descriptors(), server.threads()
        found = list(pool.map(ask, [server] * count, bodies, kinds, chances))
    wait_until(server.is_idle)
    for body, kind, answer in zip(bodies, kinds, found, strict=True):
        if kind in ("whole", "slow"):
            assert answer == alone(model, body), body
    wait_until(lambda: server.descriptors() <= before[0] + 2)
    wait_until(lambda: server.threads() <= before[1] + 2)
    assert server.metric("blocks_used") == 0


def test_sixty_requests_at_once_have_the_answers_that_they_have_alone(server: Running) -> None:
    check(server, load_model(), 60, 1)


@pytest.mark.slow
def test_hundreds_of_requests_have_the_answers_that_they_have_alone(server: Running) -> None:
    check(server, load_model(), 400, 2)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["nf4", "int8", "gguf"])
def test_quantized_models_and_gguf_files_have_the_answers_that_they_have_alone(
    tmp_path: Path, form: str
) -> None:
    if form == "gguf":
        file = tmp_path / "nano.gguf"
        assert run_program("--save-gguf", str(file), "--quantize", "q8_0").returncode == 0
        arguments, model = ("-m", str(file)), load_model(file)
    else:
        arguments, model = ("--quantize", form), load_model(quantize=form)
    with running(tmp_path, *arguments) as server:
        check(server, model, 200, 3)
