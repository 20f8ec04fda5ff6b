"""Connections: each state of one has a limit in time and in memory that no byte extends.

| state | begins with | seconds |
|---|---|---|
| header | the first byte of a request, or the connection itself | 10 |
| body | the end of the header, whether or not the answer has come | 30 |
| answer | the end of the body | 720 |
| idle | the last byte of a response, until the first byte of the next request | 75 |

In every state, and after the server has closed a connection, the client has to take 64
KiB of a response in each 30 seconds, or all of it. A connection whose limit is over is
answered with 408 where no answer has begun, and closed; one whose client does not take
its response is reset.
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

# Connections that are open at a time.
MOST_CONNECTIONS = 256
# Bytes of the line and the header of a request.
MOST_HEADER = 16 << 10
# The key, in the state of a request, of an object that no other connection has.
CONNECTION = "connection"
# What a client has to take of a response in a time, in bytes and seconds.
_LEAST_TAKEN = 64 << 10
_WRITE_SECONDS = 30


class State(Enum):
    """What a connection waits for; the value is for how many seconds."""

    HEADER = 10.0
    BODY = 30.0
    ANSWER = 720.0  # the time limit of an answer, and two minutes to take it
    IDLE = 75.0


class _CountingTransport:
    """A transport that counts the bytes that it was given to write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(H11Protocol):
    """One connection, which `watch` ends when the limit of its state is over."""

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        """Take a connection, or refuse one beyond the limit."""
        self._counter = _CountingTransport(transport)
        self._unparsed = bytearray()
        self._state = State.HEADER
        self._state_cycle: object = None
        self._deadline = self.loop.time() + State.HEADER.value
        self._taken = 0
        self._taken_at = self.loop.time()
        self.app_state = {**self.app_state, CONNECTION: object()}
        super().connection_made(cast(asyncio.Transport, self._counter))
        if len(self.connections) > MOST_CONNECTIONS:
            self._refuse(
                503, f"expected at most {MOST_CONNECTIONS} connections, got more"
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection at once."""
        self._unparsed.clear()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse the bytes, or keep them until the response to the request before is
        complete.
        """
        self._unset_keepalive_if_required()
        self._unparsed += data
        self._parse()

    def on_response_complete(self) -> None:
        """Go on with the next request, which may have come already."""
        super().on_response_complete()
        self._parse()

    def send_400_response(self, _message: str) -> None:
        """Refuse bytes that h11 cannot parse."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(
                431, f"the header: expected at most {MOST_HEADER} bytes, got more"
            )
        else:
            self._refuse(400, "the request: expected HTTP/1.1")

    def watch(self) -> None:
        """End the connection if a limit is over; to be called every second."""
        now = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        taken = self._counter.written - unsent
        if unsent == 0 or taken >= self._taken + _LEAST_TAKEN:
            self._taken = taken
            self._taken_at = now
        if now >= self._taken_at + _WRITE_SECONDS:
            self._reset()
            return
        self._update_state()
        if now < self._deadline or self.transport.is_closing():
            return
        seconds = f"{self._state.value:.0f} seconds"
        match self._state:
            case State.HEADER:
                self._refuse(408, f"the header: expected within {seconds}")
            case State.BODY:
                self._refuse(408, f"the body: expected within {seconds}")
            case State.ANSWER:
                self._reset()
            case State.IDLE:
                self.timeout_keep_alive_handler()

    def _reset(self) -> None:
        """End the connection, and drop the bytes that the system keeps for the client."""
        without_lingering = struct.pack("ii", 1, 0)
        stream = self.transport.get_extra_info("socket")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, without_lingering)
        self.transport.abort()

    def _parse(self) -> None:
        """Give h11 the bytes in pieces that end where a header has its limit."""
        while self._unparsed and not self.transport.is_closing():
            if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
                self.flow.pause_reading()
                break
            buffered, _ = self.conn.trailing_data
            size = max(MOST_HEADER - len(buffered), 1)
            piece = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            super().data_received(piece)
        self._update_state()

    def _update_state(self) -> None:
        """Set the deadline of the state if it has been entered since the last call."""
        state = self._current_state()
        if (state, self.cycle) != (self._state, self._state_cycle):
            self._state = state
            self._state_cycle = self.cycle
            self._deadline = self.loop.time() + state.value

    def _current_state(self) -> State:
        """Return the state that the connection is in."""
        if self.conn.their_state is h11.SEND_BODY:
            return State.BODY
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.get_write_buffer_size():
            return State.ANSWER
        if self.cycle is None or self._unparsed or self.conn.trailing_data[0]:
            return State.HEADER
        return State.IDLE

    def _refuse(self, status: int, message: str) -> None:
        """Answer instead of the application, unless it answers already, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = RequestError(status, message).response()
            answer.headers["Connection"] = "close"
            with suppress(h11.LocalProtocolError):  # a response to HEAD has no body
                for part in (
                    h11.Response(status_code=status, headers=answer.raw_headers),
                    h11.Data(data=bytes(answer.body)),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
