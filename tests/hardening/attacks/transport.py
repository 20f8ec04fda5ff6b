"""Attacks on HTTP itself: headers, connections that stay, readers that do not read."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from src.model import load_model
from tests.hardening.attacks import attack
from tests.hardening.attacks.wire import (
    HOST,
    Held,
    connect,
    hold,
    post,
    read_response,
    request,
    send_what_fits,
    status_of,
)
from tests.server.running import running, wait_until

KEY = "Authorization: Bearer sk-Secret\r\n"
# Seconds beyond a limit: the server looks every second, and a busy machine takes a while.
SLACK = 10
# A client that neither reads nor leaves waits for a place, is refused, and keeps its
# connection.
LONGEST_UNREAD = 20 + 30 + 75 + SLACK
HEADER = 10
BODY = 30
UNREAD = 30


def longest_token() -> int:
    """Returns an id of four digits that stands for as many bytes as possible."""
    tokenizer = load_model().tokenizer
    assert tokenizer is not None
    return max(
        range(1000, tokenizer.vocab_size),
        key=lambda token: len(tokenizer.token_bytes(token)),
    )


@attack(1, "An answer needs the API key, whatever the Host header and the path say.")
def the_host_header_cannot_free_a_request_from_the_key(directory: Path) -> str:
    hosts = (
        "x/health?",
        "[",
        "x/health#",
        "x/explorer/",
        "localhost/health?",
        "@",
        "x@y/health?",
        "[::1",
        "]",
        "x:y",
        "x\\health?",
        "http://x/health?",
        "",
        "x/health?, localhost",
    )
    targets = (
        "/v1/models",
        "/metrics",
        "//metrics",
        "/health/../metrics",
        "/health%2f..%2fmetrics",
        "/metrics?/health",
        "/metrics#/health",
        "http://x/health/../metrics",
        "@x/health",
        "health/../metrics",
    )
    asked = 0
    with running(directory, "--api-key", "sk-Secret") as server:
        for host in hosts:
            fields = f"Host: {host}\r\nConnection: close\r\n"
            for target in targets:
                status = status_of(server.raw(request("GET", target, fields)))
                assert status in (400, 401, 404), (host, target, status)
                asked += 1
            body = {"content": "x"}
            assert status_of(server.raw(post("/tokenize", body, fields))) in (400, 401)
            valid = request("GET", "/v1/models", fields + KEY)
            assert status_of(server.raw(valid)) == 200, host
    return f"{asked} requests without the key, 0 answers"


@attack(
    2, "A connection that stays is given up within the limit of its state.", is_slow=True
)
def a_byte_after_the_response_does_not_keep_a_connection(directory: Path) -> str:
    unfinished = request("POST", "/v1/models", f"{HOST}Content-Length: 99\r\n")
    with running(directory) as server, ExitStack() as stack:
        connections = []
        for number in range(256):
            stream = stack.enter_context(connect(server))
            stream.sendall(unfinished)
            connections.append(Held(str(number), stream, BODY))
        for held in connections:
            assert status_of(read_response(held.stream)) == 405
            held.stream.sendall(b"x")
        assert b"503" in server.raw(b"", 5)[:20]
        hold(connections, SLACK, lambda: None)
        wait_until(lambda: server.descriptors() < 64)
        assert server.ask("/health")[0] == 200
        longest = max(held.ended or 0.0 for held in connections)
    return f"256 connections, the last one ended after {longest:.0f} s"


@attack(2, "Each state of a connection has a limit that no byte extends.", is_slow=True)
def no_state_of_a_connection_lasts(directory: Path) -> str:
    large = post("/detokenize", {"tokens": [longest_token()] * 500_000})
    page = request("GET", "/")
    chunked = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    with running(directory) as server, ExitStack() as stack:

        def held(name: str, sent: bytes, seconds: float, trickle: bytes = b"") -> Held:
            stream = stack.enter_context(connect(server))
            stream.sendall(sent)
            return Held(name, stream, seconds, trickle)

        connections = [
            held("nothing", b"", HEADER),
            held("a header byte by byte", b"GET / HTTP/1.1\r\nX: ", HEADER, b"x"),
            held("empty lines", b"\r\n", HEADER, b"\r\n"),
            held("no body", post("/tokenize", "x" * 99)[:-50], BODY),
            held("a body byte by byte", post("/tokenize", "x" * 999)[:-900], BODY, b"x"),
            held(
                "chunks",
                request("POST", "/tokenize", HOST + chunked),
                BODY,
                b"1\r\n \r\n",
            ),
            held(
                "an endless chunk extension",
                request("POST", "/tokenize", HOST + chunked) + b"1;",
                BODY,
                b"x",
            ),
            held(
                "100-continue",
                request("POST", "/tokenize", HOST + chunked + "Expect: 100-continue\r\n"),
                BODY,
            ),
            held(
                "an upgrade", request("GET", "/health", HOST + upgrade), HEADER + 2, b"x"
            ),
            held(
                "half of a second request", request() + b"GET /health", HEADER + 2, b"x"
            ),
            held(
                "a body after 404",
                request("POST", "/x", HOST + chunked),
                BODY,
                b"1\r\n \r\n",
            ),
        ]
        half_closed = held("half closed", b"GET /health", HEADER)
        half_closed.stream.shutdown(socket.SHUT_WR)
        for name, sent in (("a response unread", large), ("many unread", page * 9000)):
            stream = stack.enter_context(connect(server, receive_buffer=4096))
            send_what_fits(stream, sent)
            connections.append(Held(name, stream, UNREAD + 9, reads=False))
        connections.append(half_closed)
        line = hold(connections, SLACK, lambda: server.ask("/health"))
        wait_until(lambda: server.descriptors() < 64)
    return line


@attack(
    3, "A client that does not read is given up, and memory is bounded.", is_slow=True
)
def clients_that_never_read_are_given_up(directory: Path) -> str:
    body = post("/detokenize", {"tokens": [longest_token()] * 800_000})
    assert 4 << 20 > len(body) > 3 << 20
    with running(directory) as server, ExitStack() as stack:
        server.ask("/health")
        before = server.resident(), server.descriptors()
        streams = [
            stack.enter_context(connect(server, receive_buffer=4096)) for _ in range(12)
        ]
        started = time.monotonic()
        with ThreadPoolExecutor(12) as pool:
            sent = [pool.submit(send_what_fits, stream, body) for stream in streams]
            peak = before[0]
            while server.descriptors() > before[1] or not all(
                each.done() for each in sent
            ):
                peak = max(peak, server.resident())
                seconds = time.monotonic() - started
                assert seconds < LONGEST_UNREAD, (
                    f"{server.descriptors()} descriptors are open"
                )
                time.sleep(0.05)
        assert peak < before[0] + (300 << 20), f"{(peak - before[0]) >> 20} MiB more"
        assert server.ask("/health")[0] == 200
    return f"all ended after {seconds:.0f} s, {(peak - before[0]) >> 20} MiB more at most"


@attack(13, "A header above 16 KiB is 431, however it arrives.")
def a_header_above_the_limit_is_refused(directory: Path) -> str:
    def sized(size: int) -> bytes:
        start = request("GET", "/health", HOST + "Connection: close\r\nX: ")[:-2]
        return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"

    limit = 16 << 10
    body = request("GET", "/health", HOST, b"{}")
    with running(directory) as server:
        for size, expected in (
            (limit, 200),
            (limit + 1, 431),
            (60_000, 431),
            (250_000, 431),
        ):
            for before in (b"", request(), body, request() + body):
                responses = server.raw(before + sized(size))
                last = responses[responses.rindex(b"HTTP/1.1") :]
                assert status_of(last) == expected, (size, before, responses)
            with connect(server) as stream:  # in two pieces
                stream.sendall(sized(size)[:9000])
                time.sleep(0.05)
                stream.sendall(sized(size)[9000:])
                assert status_of(stream.recv(1 << 16)) == expected
        many = (
            HOST + "Connection: close\r\n" + "".join(f"X{n}: y\r\n" for n in range(2000))
        )
        assert status_of(server.raw(request("GET", "/health", many))) == 431
    return "16 384 bytes: 200; 16 385 and more: 431"


@attack(14, "No response leads to the host that the request names.")
def no_request_is_redirected(directory: Path) -> str:
    with running(directory, "--api-key", "sk-Secret") as server:
        for path in ("/health/", "//health", "/v1//models/", "/explorer//", "/tokenize/"):
            for host in ("evil.example", "localhost"):
                fields = f"Host: {host}\r\nConnection: close\r\n{KEY}"
                response = server.raw(request("GET", path, fields)).lower()
                assert status_of(response) in (200, 404, 405), (path, response)
                assert b"location:" not in response
                assert b"evil" not in response
    return "10 paths with a slash too many, 0 redirects"
