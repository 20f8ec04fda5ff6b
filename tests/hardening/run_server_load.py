"""Ask a server at random, 32 requests at once, and compare each answer with the
one-process answer.

`python -m tests.hardening.run_server_load --form nf4` starts a server with the bundled
model. Some clients go away, some read slowly, some ask what is refused. All answers have
to be equal, and then the server has to hold what it held before. In the first round its
memory grows by the pages of the cache, each of which is used then; the exit code is 1 if
it grows in the last of several rounds.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import Model, load_model
from tests.cli.conftest import run_program
from tests.server.running import JSON, Running, running, wait_until

FORMS = ("bfloat16", "nf4", "int8", "gguf")
WORDS = [
    "the",
    "of",
    "a",
    "capital",
    "Italy",
    "France",
    "what",
    "is",
    "who",
    "tell",
    "me",
    "story",
    "number",
    "seven",
    "hello",
    "why",
    "12",
]
SETTINGS = {
    "temperature": [0.0, 0.6, 1.0, 1.5],
    "top_k": [0, 5, 50],
    "top_p": [0.5, 0.9, 1.0],
    "min_p": [0.0, 0.0, 0.1],
    "repeat_penalty": [1.0, 1.0, 1.2],
    "frequency_penalty": [0.0, 0.0, 0.5],
    "presence_penalty": [0.0, 0.0, 0.5],
}
# What a client does, and how often.
KINDS = {"whole": 12, "slow": 3, "leaves": 2, "early": 2, "wrong": 1}
_WARM = 40
GAPS: list[float] = []  # seconds from one token to the next, as clients see them
# Bytes: pages that the allocators keep for themselves.
_MOST_GROWTH = 16 << 20


def body_of(chance: random.Random) -> dict[str, Any]:
    """Returns a random request: a chat or a text, short or long, greedy or sampled."""
    text = " ".join(chance.choices(WORDS, k=int(10 ** chance.uniform(0, 2.5))))
    shared = "You are helpful. " * 40 if chance.random() < 0.3 else ""
    is_chat = chance.random() < 0.7
    messages = {"messages": [{"role": "user", "content": shared + text}]}
    return {
        **(messages if is_chat else {"prompt": shared + text}),
        **{name: chance.choice(values) for name, values in SETTINGS.items()},
        "max_tokens": int(10 ** chance.uniform(0, 2)),
        "seed": chance.randrange(1000),
        "stop": chance.choices(WORDS, k=chance.choice([0, 0, 0, 1, 3])),
        "stream": chance.random() < 0.7,
    }


def alone(model: Model, body: dict[str, Any]) -> str:
    """Returns the answer of an engine that has nothing else to do."""
    sampling = SamplingArgs(**{name: body[name] for name in (*SETTINGS, "seed")})
    engine = InferenceEngine(model, 4096)
    given = (body["max_tokens"], sampling, body["stop"])
    if "messages" in body:
        steps = engine.chat([Message("user", body["messages"][0]["content"])], *given)
    else:
        assert model.tokenizer is not None
        begins = model.tokenizer.adds_bos
        ids = model.tokenizer.encode(body["prompt"], bos=begins, eos=False)
        steps = engine.generate(ids, *given)
    return "".join(step.text for step in steps)


def ask(
    server: Running, body: dict[str, Any], kind: str, chance: random.Random
) -> str | None:
    """Returns the answer; None of a client that went away or was refused."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    sent = body | {"top_p": "x"} if kind == "wrong" else body
    for _ in range(100):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        connection.request("POST", path, json.dumps(sent), JSON)
        if kind == "early":
            connection.close()
            return None
        response = connection.getresponse()
        if response.status != 429:
            break
        connection.close()
        time.sleep(chance.random())
    assert response.status == (400 if kind == "wrong" else 200)
    content = b""
    if kind == "leaves":
        response.read(chance.randrange(1, 2000))
    else:
        before = time.perf_counter()
        while part := response.read1(300 if kind == "slow" else 1 << 16):
            content += part
            if kind == "whole" and body["stream"]:
                GAPS.append(time.perf_counter() - before)
                before += GAPS[-1]
            if kind == "slow":
                time.sleep(0.002)
    connection.close()
    return (
        text_of(content.decode(), body["stream"]) if kind in ("whole", "slow") else None
    )


def text_of(content: str, is_stream: bool) -> str:
    parts = [content]
    if is_stream:
        *parts, end = (line[6:] for line in content.split("\n\n") if line)
        assert end == "[DONE]"
    choices = [json.loads(part)["choices"][0] for part in parts]
    deltas = (
        choice.get("delta") or choice.get("message") or choice for choice in choices
    )
    return "".join(delta.get("content") or delta.get("text", "") for delta in deltas)


def check(server: Running, model: Model, count: int, seed: int) -> tuple[str, int]:
    """Asks; returns what there is to say, and by how many bytes the server has grown.

    Raises AssertionError for another answer, or what is left behind.
    """
    chance = random.Random(seed)
    bodies = [body_of(chance) for _ in range(count)]
    kinds = chance.choices([*KINDS], [*KINDS.values()], k=count)
    with ThreadPoolExecutor(32) as pool:
        chances = [random.Random(number) for number in range(count)]
        list(pool.map(ask, [server] * _WARM, bodies[:_WARM], kinds[:_WARM], chances))
        before = server.resident(), server.descriptors(), server.threads()
        started = time.perf_counter()
        found = list(pool.map(ask, [server] * count, bodies, kinds, chances))
        seconds = time.perf_counter() - started
    wait_until(server.is_idle)
    characters = 0
    for body, kind, answer in zip(bodies, kinds, found, strict=True):
        if kind in ("whole", "slow"):
            assert answer == alone(model, body), body
            characters += len(answer)
    wait_until(lambda: server.descriptors() <= before[1] + 2)
    wait_until(lambda: server.threads() <= before[2] + 2)
    assert server.metric("blocks_used") == 0
    after = server.resident(), server.descriptors(), server.threads()
    resident, descriptors, threads = (
        now - then for now, then in zip(after, before, strict=True)
    )
    slowest = sorted(GAPS)[len(GAPS) * 99 // 100]
    said = (
        f"{dict(Counter(kinds))} in {seconds:.0f} s; {characters} characters equal; 99 % "
        f"of times between tokens within {slowest:.2f} s; {resident / 2**20:+.1f} MiB, "
        f"{descriptors:+d} descriptors, {threads:+d} threads"
    )
    return said, resident


def check_form(
    directory: Path, form: str, count: int, seed: int, rounds: int = 1
) -> list[tuple[str, int]]:
    """Starts a server with the bundled model in one of `FORMS`, and checks it several
    times.
    """
    if form == "gguf":
        path = directory / "nano.gguf"
        assert run_program("--save-gguf", str(path), "--quantize", "q8_0").returncode == 0
        arguments = ["-m", str(path)]
        model = load_model(path)
    else:
        quantize = None if form == "bfloat16" else form
        arguments = [] if quantize is None else ["--quantize", quantize]
        model = load_model(quantize=quantize)
    with running(directory, *arguments) as server:
        return [check(server, model, count, seed + number) for number in range(rounds)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--form", choices=FORMS, default="bfloat16")
    options = parser.parse_args()
    how = options.form, options.requests, options.seed, options.rounds
    with tempfile.TemporaryDirectory() as directory:
        found = check_form(Path(directory), *how)
    for said, _ in found:
        print(f"{options.form}: {said}")
    return int(options.rounds > 1 and found[-1][1] > _MOST_GROWTH)


if __name__ == "__main__":
    sys.exit(main())
