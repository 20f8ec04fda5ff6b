"""Attacks on what clients share: memory, the interpreter, threads, and the queue."""

import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.hardening.attacks import attack
from tests.hardening.attacks.wire import HOST, connect, post, status_of
from tests.server.running import Running, running, wait_until

CHAT = "/v1/chat/completions"
CLOSE = f"{HOST}Connection: close\r\n"
_STORY = {
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "temperature": 2.0,
}


def peak_memory(server: Running) -> int:
    """Returns the most bytes of memory that a server had."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert match is not None
    return int(match[1]) << 10


def ask(server: Running, request: bytes, source: str = "127.0.0.1") -> tuple[int, bytes]:
    """Sends a request from an address; returns the status and the content of the
    response.

    The status is 0 where the server has closed the connection before it took the whole
    request.
    """
    parts = []
    with closing(connect(server, source)) as stream:
        stream.settimeout(600)
        try:
            stream.sendall(request)
            while part := stream.recv(1 << 20):
                parts.append(part)
        except (BrokenPipeError, ConnectionResetError):
            pass
    response = b"".join(parts)
    return status_of(response), response.partition(b"\r\n\r\n")[2]


def drain(server: Running, request: bytes) -> int:
    """Sends a request; returns the bytes of the response, of which none is kept."""
    with closing(connect(server)) as stream:
        stream.settimeout(600)
        stream.sendall(request)
        size = 0
        while part := stream.recv(1 << 20):
            size += len(part)
    return size


@contextmanager
def streaming(server: Running, source: str = "127.0.0.1") -> Iterator[list[float]]:
    """Reads streams of answers in a thread, from an address; yields the seconds between
    parts.
    """
    gaps: list[float] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            body = _STORY | {"stream": True, "max_tokens": 300}
            with closing(connect(server, source)) as stream:
                stream.sendall(post(CHAT, body, CLOSE))
                before = time.monotonic()
                while stream.recv(1 << 16):
                    gaps.append(time.monotonic() - before)
                    before = time.monotonic()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            yield gaps
        finally:
            is_over.set()
        reading.result()


@attack(4, "A text of 4 MB takes at most 300 MB, and nobody waits for it.", is_slow=True)
def a_long_text_takes_little_memory_and_nobody_waits(directory: Path) -> str:
    lines = []
    texts = ("x" * 4_000_000, "the end of 12 days, " * 200_000)
    for number, text in enumerate(texts):
        (directory / str(number)).mkdir()
        request = post("/tokenize", {"content": text, "with_pieces": True}, CLOSE)
        longest = float("inf")
        with running(directory / str(number)) as server, streaming(server) as gaps:
            wait_until(lambda gaps=gaps: len(gaps) > 20)
            for _ in range(3):  # another process may take the processors for a while
                gaps.clear()
                assert drain(server, request) > 20_000_000
                longest = min(longest, max(gaps))
                if longest < 1:
                    break
            peak = peak_memory(server)
        assert peak < 300 << 20, f"{peak >> 20} MiB"
        assert longest < 1, f"others waited {longest:.2f} s"
        lines.append(f"{peak >> 20} MiB, others waited {longest:.2f} s")
    return "; ".join(lines)


@attack(22, "Each list of a body is bounded, so that short entries take no time.")
def many_short_entries_are_refused(directory: Path) -> str:
    message = {"role": "user", "content": ""}
    one = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    tool = {"type": "function", "function": {"name": "f"}}
    part = {"type": "text", "text": ""}
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    text = {"prompt": "x", "max_tokens": 1}

    def calls(count: int) -> dict[str, Any]:
        answer = {"role": "assistant", "content": "x", "tool_calls": [call] * count}
        return {"messages": [*one["messages"], answer, *one["messages"]], "max_tokens": 1}

    cases = (
        (
            "messages",
            CHAT,
            {"messages": [message] * 2048},
            {"messages": [message] * 2049},
        ),
        ("messages", CHAT, one, {"messages": [message] * 125_000}),
        ("messages", CHAT, one, one | {"metadata": [[]] * 1_000_000}),
        (
            "content",
            CHAT,
            {"messages": [{"role": "user", "content": [part] * 1024}]},
            {"messages": [{"role": "user", "content": [part] * 1025}]},
        ),
        ("tools", CHAT, one | {"tools": [tool] * 128}, one | {"tools": [tool] * 129}),
        ("tool_calls", CHAT, calls(128), calls(129)),
        ("stop", CHAT, one | {"stop": ["x"] * 16}, one | {"stop": ["x"] * 17}),
        ("stop", CHAT, one | {"stop": "x" * 4096}, one | {"stop": "x" * 4097}),
        (
            "prompt",
            "/v1/completions",
            text | {"prompt": ["x"] * 64},
            text | {"prompt": ["x"] * 65},
        ),
        ("prompt", "/v1/completions", text, text | {"prompt": [[1]] * 900_000}),
    )
    longest = 0.0
    with running(directory, "-c", "512") as server:
        ask(server, post(CHAT, one, CLOSE))
        for field, path, valid, invalid in cases:
            status, content = ask(server, post(path, valid, CLOSE))
            # What fits the list need not fit the context, or be known to the chat format.
            assert b"of length" not in content, (field, status, content)
            started = time.monotonic()
            status, content = ask(server, post(path, invalid, CLOSE))
            longest = max(longest, time.monotonic() - started)
            assert status == 400, (field, status)
            error = json.loads(content)["error"]
            names_field = field in (error["param"] or "")
            assert names_field or "65536 lists and objects" in error["message"], error
    assert longest < 3
    return f"{len(cases)} lists beyond their limit refused, each within {longest:.2f} s"


@attack(22, "Clients take turns, and one cannot fill the queue for others.")
def a_client_with_many_requests_leaves_turns_to_others(directory: Path) -> str:
    body = _STORY | {"max_tokens": 60, "top_k": 0}
    finished: list[str] = []

    def client(source: str) -> int:
        status, _ = ask(server, post(CHAT, body, CLOSE), source)
        if status == 200:
            finished.append(source)
        return status

    with running(directory, "--slots", "1") as server, ThreadPoolExecutor(110) as pool:
        many = [pool.submit(client, "127.0.0.2") for _ in range(100)]
        wait_until(lambda: server.metric("waiting") == 64)
        before = len(finished)
        others = [pool.submit(client, source) for source in ("127.0.0.3", "127.0.0.4")]
        assert [other.result() for other in others] == [200, 200]
        waited_for = (
            max(finished.index("127.0.0.4"), finished.index("127.0.0.3")) - before
        )
        assert {each.result() for each in many} == {200, 429}
        served = finished.count("127.0.0.2")
        # The one that ran when the others came, one of each client, and those that came
        # between.
        assert waited_for <= 6, finished
        assert served > 40
        wait_until(server.is_idle)
    return f"{served} of 100 answered, the others waited for {waited_for} answers"


@attack(
    22,
    "A client with many large bodies leaves threads and memory to others.",
    is_slow=True,
)
def large_bodies_of_one_client_do_not_hold_up_others(directory: Path) -> str:
    large = post("/tokenize", {"content": "the end of 12 days, " * 200_000}, CLOSE)
    small = post("/tokenize", {"content": "hello"}, CLOSE)
    longest = 0.0
    with running(directory) as server, ThreadPoolExecutor(16) as pool:
        many = [pool.submit(ask, server, large, "127.0.0.2") for _ in range(16)]
        time.sleep(1)
        while not all(each.done() for each in many):
            started = time.monotonic()
            assert ask(server, small)[0] == 200
            longest = max(longest, time.monotonic() - started)
            time.sleep(0.1)
        statuses = {each.result()[0] for each in many}
        peak = peak_memory(server)
    # A body that gets no place in time is refused; on a quick machine all of them get
    # one.
    assert 200 in statuses
    assert statuses <= {0, 200, 503}, statuses
    assert longest < 2, f"{longest:.2f} s"
    assert peak < 500 << 20, f"{peak >> 20} MiB"
    return f"small ones within {longest:.2f} s, {peak >> 20} MiB"
