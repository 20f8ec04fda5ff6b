"""What clients share: turns, places for large bodies, and responses that are made in
parts.
"""

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack

import pytest

from src.tokenizer import Tokenizer
from tests.server.running import ROOT, Running, running
from tests.server.test_limits import head

pytest.importorskip("starlette", reason="the serve extra is not installed")

from src.server.app import _PART
from src.server.bodies import ChatBody, parse_body
from src.server.errors import RequestError
from src.server.gate import Gate
from src.server.service import _network


def text_of(count: int) -> str:
    """Returns a text with characters of several tokens, quotes and escapes."""
    return ('The "end" of 12 days,\n\\ \x01 naïve 日本 🦙 ' * (count // 30 + 1))[:count]


@pytest.mark.parametrize("count", [0, 1, 3 * _PART, 100_000])
def test_a_response_in_parts_is_the_whole_one(server: Running, bundled, count: int):
    tokenizer: Tokenizer = bundled.tokenizer
    text = text_of(count)
    ids = tokenizer.encode(text, bos=False, eos=False)
    assert (len(ids) > 2 * _PART) == (count > 2 * _PART)
    assert server.ask("/tokenize", {"content": text}) == (200, {"tokens": ids})
    status, answer = server.ask("/tokenize", {"content": text, "with_pieces": True})
    assert status == 200
    assert [entry["id"] for entry in answer["tokens"]] == ids
    pieces = [tokenizer.token_bytes(token).decode(errors="ignore") for token in ids]
    for entry, piece in zip(answer["tokens"], pieces, strict=True):
        assert entry["piece"] == piece or entry["piece"].startswith("bytes:")
    assert server.ask("/detokenize", {"tokens": ids}) == (200, {"content": text})
    cut = ids[: -(-len(ids) * 2 // 3) - 1]  # it may end within a character
    assert server.ask("/detokenize", {"tokens": cut}) == (
        200,
        {"content": tokenizer.decode(cut)},
    )


_FIRST_BODIES = """
import json, sys, threading
from src.server import bodies

sys.setswitchinterval(1e-6)
bodies.prepare(bodies.ChatBody)
tool = {"type": "function", "function": {"name": "f"}}
body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "tools": [tool]}
together = threading.Barrier(8)

def parse():
    together.wait()
    bodies.parse_body(json.dumps(body).encode(), bodies.ChatBody)

threads = [threading.Thread(target=parse) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_bodies_may_come_at_the_same_time():
    for _ in range(6):
        command = [sys.executable, "-c", _FIRST_BODIES]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_id_outside_the_vocabulary_is_an_error_before_the_response(server: Running):
    for wrong in (-1, 1 << 40, 4096):
        status, answer = server.ask("/detokenize", {"tokens": [1] * 20_000 + [wrong]})
        assert (status, answer["error"]["param"]) == (400, "tokens")


def test_a_client_that_leaves_a_response_in_parts_leaves_nothing(server: Running):
    body = json.dumps({"content": "x" * 1_000_000, "with_pieces": True}).encode()
    before = server.descriptors()
    for _ in range(12):
        server.raw(head(len(body), "/tokenize") + body, aborts=True)
    status, answer = server.ask("/tokenize", {"content": "x" * 300_000})
    assert (status, len(answer["tokens"])) == (200, 300_000)
    assert server.descriptors() <= before + 2


def test_each_line_of_a_file_is_a_key(tmp_path):
    (tmp_path / "keys").write_text("sk-one\n\n  sk-two  \n")
    with running(tmp_path, "--api-key-file", str(tmp_path / "keys")) as server:
        for key, status in (("sk-one", 200), ("sk-two", 200), ("sk-on", 401), ("", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.ask("/v1/models", headers=headers)[0] == status


def test_a_client_without_a_key_is_an_address_or_half_of_one():
    class Request:
        def __init__(self, host: str) -> None:
            self.client = type("Address", (), {"host": host})()

    def network(host: str) -> object:
        return _network(Request(host))

    assert network("192.0.2.1") == network("::ffff:192.0.2.1") != network("192.0.2.2")
    assert network("2001:db8:0:1::1") == network("2001:db8:0:1:ffff::2")
    assert network("2001:db8:0:1::1") != network("2001:db8:0:2::1")


def test_places_are_taken_in_turns_and_given_back():
    async def run() -> list[str]:
        gate = Gate(2, 1)
        order = list[str]()
        leave = asyncio.Event()

        async def enter(client: str) -> None:
            async with gate.place(client):
                order.append(client)
                await leave.wait()

        tasks = [asyncio.create_task(enter(client)) for client in "aaab"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["a", "b"]  # one client has one place
        tasks[2].cancel()
        tasks.append(asyncio.create_task(enter("c")))
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        assert order == ["a", "b", "c"]  # whose turn it is before the second of a
        leave.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with AsyncExitStack() as stack:
            for client in "xy":
                await asyncio.wait_for(stack.enter_async_context(gate.place(client)), 1)
        assert not gate._waiting
        assert not gate._inside
        return order

    assert asyncio.run(run()) == ["a", "b", "c", "a"]


def test_lists_and_objects_are_counted_outside_of_texts():
    def body(text: str, metadata: object = None) -> bytes:
        messages = [{"role": "user", "content": text}]
        return json.dumps({"messages": messages, "metadata": metadata}).encode()

    for text in ("[{" * 100_000, '"[{' * 100_000, '\\"[{\\' * 100_000, "[\n" * 100_000):
        assert parse_body(body(text), ChatBody).messages[0].content == text
    assert parse_body(body("x", [[]] * 65_000), ChatBody)
    for text in ("x", '\\"', "[{"):
        with pytest.raises(
            RequestError, match="at most 65536 lists and objects, got 655"
        ):
            parse_body(body(text, [{}] * 65_540), ChatBody)
