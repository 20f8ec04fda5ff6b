"""Raw connections to a server, for attacks that no HTTP client makes."""

import json
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.server.running import Running

HOST = "Host: localhost\r\n"


def request(
    method: str = "GET", path: str = "/health", fields: str = HOST, body: bytes = b""
) -> bytes:
    """Returns a request; a body gets its type and its length."""
    if body:
        fields += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{method} {path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1") + body


def post(path: str, body: Any, fields: str = HOST) -> bytes:
    """Returns a request with a body of JSON."""
    return request("POST", path, fields, json.dumps(body, separators=(",", ":")).encode())


def connect(
    server: Running, source: str = "127.0.0.1", receive_buffer: int | None = None
) -> socket.socket:
    """Returns a connection, from an address of this machine."""
    stream = socket.socket()
    if receive_buffer is not None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    stream.settimeout(30)
    try:
        stream.bind((source, 0))
        stream.connect(("127.0.0.1", server.port))
    except OSError:
        stream.close()
        raise
    return stream


def send_what_fits(stream: socket.socket, data: bytes) -> int:
    """Sends bytes until nobody takes more of them for a second; returns how many were
    sent.
    """
    sent = 0
    stream.settimeout(1)
    try:
        while sent < len(data):
            sent += stream.send(data[sent : sent + (1 << 16)])
    except OSError:  # nobody takes more, or the connection was reset
        pass
    return sent


def status_of(response: bytes) -> int:
    """Returns the status of a response, after those that say that a body may come."""
    while response.startswith(b"HTTP/1.1 100"):
        response = response.partition(b"\r\n\r\n")[2]
    return int(response.split(b" ", 2)[1]) if response else 0


def read_response(stream: socket.socket) -> bytes:
    """Returns a response with a Content-Length, and nothing after it."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = stream.recv(1)
        assert part, received
        received += part
    head = received.lower()
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    while length:
        part = stream.recv(length)
        assert part, received
        received += part
        length -= len(part)
    return received


@dataclass
class Held:
    """A connection that an attacker holds.

    Attributes:
        name: What the attacker does with it.
        stream: The connection.
        seconds: The time after which the server has to have ended it.
        trickle: Sent again and again, every second.
        reads: Whether the attacker reads what comes.
    """

    name: str
    stream: socket.socket
    seconds: float
    trickle: bytes = b""
    reads: bool = True
    ended: float | None = None


def is_over(held: Held) -> bool:
    """Tells whether the server has ended a connection, by sending and by reading."""
    try:
        if held.trickle:
            held.stream.sendall(held.trickle)
        while held.reads and select.select([held.stream], [], [], 0)[0]:
            if not held.stream.recv(1 << 16):
                return True
    except OSError:
        return True
    if held.reads:
        return False
    poll = select.poll()  # an unread connection that was reset says so
    poll.register(held.stream, select.POLLRDHUP)
    return bool(poll.poll(0))


def hold(
    connections: Sequence[Held], slack: float, meanwhile: Callable[[], object]
) -> str:
    """Holds connections until the server has ended each of them; tells when that was.

    Args:
        connections: The connections.
        slack: Seconds that each may take beyond its limit.
        meanwhile: Called every second.
    """
    started = time.monotonic()
    last = started + max(held.seconds for held in connections) + slack
    while time.monotonic() < last and any(held.ended is None for held in connections):
        for held in connections:
            if held.ended is None and is_over(held):
                held.ended = time.monotonic() - started
        meanwhile()
        time.sleep(1)
    for held in connections:
        held.stream.close()
    late = {
        held.name: held.ended
        for held in connections
        if held.ended is None or held.ended > held.seconds + slack
    }
    assert not late, late
    ends = {held.name: held.ended or 0.0 for held in connections}
    return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in ends.items())
