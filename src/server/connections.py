"""HTTP connections with time and memory limits that clients cannot extend.

| state | begins with | seconds |
|---|---|---|
| header | the first byte of a request, or the connection itself | 10 |
| body | the end of the header, whether or not the response has begun | 30 |
| answer | the end of the body | 720 |
| idle | the last byte of a response, until the first byte of the next request | 75 |

In every state, and also after the server has closed a connection, the client must read at
least 64 KiB of a response, or all of it, every 30 seconds. Otherwise, the connection is
reset. A connection that exceeds the time limit of its state is closed, after a response
with status 408 if no answer has begun.
"""

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from enum import Enum
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import RequestError

# Maximum number of open connections.
MOST_CONNECTIONS = 256
# Maximum size of the request line and header, in bytes.
MOST_HEADER = 16 << 10
# The request state key whose value identifies the connection.
CONNECTION = "connection"
# Bytes of a response that a client must read within `_WRITE_SECONDS`.
_LEAST_READ = 64 << 10
_WRITE_SECONDS = 30


class State(Enum):
    """The state of a connection; the value is its time limit in seconds."""

    HEADER = 10.0
    BODY = 30.0
    ANSWER = 720.0  # the time limit of an answer, plus two minutes for reading it
    IDLE = 75.0


class _CountingTransport:
    """A transport that counts the bytes written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(H11Protocol):
    """A connection; `watch` closes it after too long a time in one state."""

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Accept a connection, or reject it if there are too many."""
        self._counter = _CountingTransport(transport)
        self._unparsed = bytearray()
        self._state = State.HEADER
        self._state_cycle: object = None
        self._deadline = self.loop.time() + State.HEADER.value
        self._read_bytes = 0
        self._read_at = self.loop.time()
        self.app_state = {**self.app_state, CONNECTION: object()}
        super().connection_made(cast(asyncio.Transport, self._counter))
        if len(self.connections) > MOST_CONNECTIONS:
            self._reject(
                503, f"connections: expected at most {MOST_CONNECTIONS}, got more"
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's buffers immediately."""
        self._unparsed.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse the data, or keep it until the previous response is complete."""
        self._unset_keepalive_if_required()
        self._unparsed += data
        self._parse()

    def on_response_complete(self) -> None:
        """Continue with the next request, which may have arrived already."""
        super().on_response_complete()
        self._parse()

    def send_400_response(self, _message: str) -> None:
        """Reject data that h11 cannot parse."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._reject(
                431, f"the header: expected at most {MOST_HEADER} bytes, got more"
            )
        else:
            self._reject(400, "the request: expected HTTP/1.1, got other bytes")

    def watch(self) -> None:
        """End the connection if it exceeds a limit. This is called every second."""
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        read_bytes = self._counter.written - unsent
        if unsent == 0 or read_bytes >= self._read_bytes + _LEAST_READ:
            self._read_bytes = read_bytes
            self._read_at = now
        if now >= self._read_at + _WRITE_SECONDS:
            self._reset()
            return
        self._update_state()
        if now < self._deadline or self.transport.is_closing():
            return
        seconds = f"{self._state.value:.0f} seconds"
        match self._state:
            case State.HEADER:
                self._reject(
                    408, f"the header: expected its end within {seconds}, got a part"
                )
            case State.BODY:
                self._reject(
                    408, f"the body: expected its end within {seconds}, got a part"
                )
            case State.ANSWER:
                self._reset()
            case State.IDLE:
                self.timeout_keep_alive_handler()

    def _reset(self) -> None:
        """End the connection and discard unsent bytes."""
        without_lingering = struct.pack("ii", 1, 0)
        stream = self.transport.get_extra_info("socket")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, without_lingering)
        self.transport.abort()

    def _parse(self) -> None:
        """Split the data at the maximum header size, and pass the parts to h11."""
        while self._unparsed and not self.transport.is_closing():
            if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                self.flow.pause_reading()
                break
            buffered, _ = self.conn.trailing_data
            size = max(MOST_HEADER - len(buffered), 1)
            part = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            super().data_received(part)
        self._update_state()

    def _update_state(self) -> None:
        """Set the deadline if the connection has entered another state."""
        state = self._current_state()
        if (state, self.cycle) != (self._state, self._state_cycle):
            self._state = state
            self._state_cycle = self.cycle
            self._deadline = self.loop.time() + state.value

    def _current_state(self) -> State:
        """Return the current state of the connection."""
        if self.conn.their_state is h11.SEND_BODY:
            return State.BODY
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.get_write_buffer_size():
            return State.ANSWER
        if self.cycle is None or self._unparsed or self.conn.trailing_data[0]:
            return State.HEADER
        return State.IDLE

    def _reject(self, status: int, message: str) -> None:
        """Send an error unless the application is already responding, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = RequestError(status, message).response()
            answer.headers["Connection"] = "close"
            with suppress(h11.LocalProtocolError):  # responses to HEAD have no body
                for part in (
                    h11.Response(status_code=status, headers=answer.raw_headers),
                    h11.Data(data=bytes(answer.body)),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
