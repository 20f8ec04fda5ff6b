"""Requests that are wrong in every way: each is answered in the 400s, and the server
stays well.
"""

import json
import random
from collections import Counter

import pytest

from tests.server.running import Running

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
VALID = (
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    {"prompt": "hi", "max_tokens": 1},
    {"content": "hi"},
    {"tokens": [1, 2]},
)
VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    17,
    1e308,
    -0.0,
    2**63,
    -(2**63),
    10**30,
    "",
    "x",
    "\x00",
    "\ud800",
    "\u202e",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    [1] * 300,
    ["x"] * 300,
    "x" * 10_000,
    [[[[1]]]],
    {"type": "json_schema"},
    {"type": "regex", "regex": "("},
    {"type": "grammar", "grammar": "x"},
)
FIELDS = (
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "n",
    "response_format",
    "messages",
    "prompt",
    "echo",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "logit_bias",
    "tokens",
    "content",
    "suffix",
    "best_of",
    "frequency_penalty",
    "presence_penalty",
    "repeat_penalty",
    "with_pieces",
    "add_special",
    "max_completion_tokens",
    "functions",
    "__proto__",
    "",
    "\u0000",
)
BODIES = (
    b"",
    b"null",
    b"[]",
    b"{",
    b"}",
    b'"',
    b"nul",
    b"NaN",
    b"1e999",
    b'{"a":1,}',
    b"{}x",
    b"\xff\xfe{}",
    b'{"messages":NaN}',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"messages":' + b"[" * 5000,
    b'{"messages":[{"role":"user","content":"\xff"}]}',
    b'{"prompt":"\\ud800"}',
    b"\xef\xbb\xbf{}",
    b'{"metadata":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b"\x00" * 1000,
    b"<xml/>",
    b"a=b&c=d",
)


def body_of(chance: random.Random, kind: int) -> bytes:
    """Returns a body that is wrong, or may be."""
    which = chance.randrange(4)
    if which == 0:
        return chance.choice(BODIES)
    valid = json.dumps(VALID[kind]).encode()
    if which == 1:  # some bytes of a valid one changed
        data = bytearray(valid)
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(data))
            data[place : place + chance.randrange(2)] = chance.randbytes(
                chance.randrange(3)
            )
        return bytes(data)
    if which == 2:
        return valid[: chance.randrange(len(valid))]
    fields = dict(VALID[kind]) | {"max_tokens": 1} if kind < 2 else dict(VALID[kind])
    for _ in range(chance.randrange(1, 3)):
        fields[chance.choice(FIELDS)] = chance.choice(VALUES)
    return json.dumps(fields).encode("utf-8", "surrogatepass")


def request_of(chance: random.Random) -> bytes:
    """Returns a request: often only its body is wrong,
    else something of it or all of it.
    """
    kind = chance.randrange(4)
    body = body_of(chance, kind)
    method = "POST"
    path = PATHS[kind]
    version = "HTTP/1.1"
    length = str(len(body))
    headers = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Connection": "close",
    }
    match chance.randrange(12):
        case 0:
            method = chance.choice(
                ["GET", "PUT", "DELETE", "HEAD", "BREW", "post", "\x01"]
            )
        case 1:
            path = chance.choice(
                [
                    "/",
                    "//",
                    "/v1",
                    "/%ff",
                    "/../..",
                    "*",
                    "x",
                    "/" + "a" * 9000,
                    "/v1/models/" + "%2e%2e%2f" * 5,
                ]
            )
        case 2:
            length = chance.choice(["-1", "x", "0", "1", "9" * 20, str(len(body) + 9)])
        case 3:
            version = chance.choice(["HTTP/0.9", "HTTP/9.9", "HTTP/1.0", "HTTP", ""])
        case 4:
            name = chance.choice(
                [
                    "Host",
                    "Content-Type",
                    "Transfer-Encoding",
                    "Authorization",
                    "Expect",
                    "Upgrade",
                    "X" * 300,
                    "Bad Name",
                    "",
                ]
            )
            texts = [
                "",
                "x",
                "chunked",
                "\x00",
                "100-continue",
                "websocket",
                "é",
                "y" * 9000,
            ]
            headers[name] = chance.choice(texts)
        case 5:
            return chance.randbytes(chance.randrange(1, 300)) + b"\r\n\r\n"
    lines = [
        f"{method} {path} {version}",
        *(f"{name}: {text}" for name, text in headers.items()),
    ]
    lines.append(f"Content-Length: {length}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def check(server: Running, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for warm in range(3):
        server.raw(request_of(chance), 0.5, warm == 0)
    before = server.resident()
    descriptors = server.descriptors()
    statuses: Counter[int] = Counter()
    for number in range(count):
        request = request_of(chance)
        response = server.raw(request, 0.5, number % 20 == 19)
        if not response:
            continue
        for _ in range(2):  # that a body may come is said before the answer
            response = response.removeprefix(b"HTTP/1.1 100 \r\n\r\n")
        status = int(response.split(b" ", 2)[1])
        assert status < 500, (request[:500], response)
        statuses[status] += 1
        if status >= 400 and b"json" in response.partition(b"\r\n\r\n")[0]:
            text = response.partition(b"\r\n\r\n")[2]
            if text:  # nothing comes after a HEAD
                error = json.loads(text)["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert len(error["message"]) <= 500
    assert statuses[400] > count // 3, statuses
    assert {400, 404, 405} <= set(statuses)
    assert "Traceback" not in server.log.read_text("utf-8")
    assert "fault" not in server.log.read_text("utf-8")
    assert server.chat()["choices"][0]["finish_reason"] == "stop"
    assert server.resident() < before + (64 << 20)
    assert server.descriptors() <= descriptors + 8


def test_hundreds_of_malformed_requests(server):
    check(server, 400, 1)


@pytest.mark.slow
def test_10_000_malformed_requests(server):
    check(server, 10_000, 2)
