"""The server process: its socket, its connections and its end."""

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import create_app
from .errors import RequestError, ServerError
from .service import Limits, Service

# Connections that the system keeps until they are taken.
_BACKLOG = 128
_KEEP_ALIVE_SECONDS = 75
# For responses that are made already to reach their clients at the end.
_LAST_SECONDS = 1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections.

    Raises:
        ServerError: The address cannot be used.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        reason = error.strerror or error
        raise ServerError(f"{host}:{port}: expected a free address, got: {reason}") from None
    return listener


def serve(service: Service, listener: socket.socket, ready: Callable[[], object]) -> int | None:
    """Answer requests until SIGINT or SIGTERM; close the engine.

    The first signal lets what runs come to its end, within a limit, and refuses the rest with 503;
    a second one ends at once.

    Args:
        service: What to serve.
        listener: As `listen` gives it.
        ready: Called when connections are taken.

    Returns:
        The number of the signal.
    """
    for name in ("uvicorn.error", "uvicorn.access", "asyncio"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    limits = service.limits
    config = uvicorn.Config(
        create_app(service),
        loop="asyncio",
        http=_protocol(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_LAST_SECONDS,
        h11_max_incomplete_event_size=limits.header,
    )
    server = _Server(config, service, ready)
    try:
        server.run([listener])
    finally:
        service.engine.close()
        service.close()
    return server.number


class _Server(uvicorn.Server):
    """A server whose end the engine decides.

    Attributes:
        number: Of the first signal, or None.
    """

    def __init__(
        self, config: uvicorn.Config, service: Service, ready: Callable[[], object]
    ) -> None:
        super().__init__(config)
        self._service, self._ready = service, ready
        self.number: int | None = None
        self._ending: asyncio.Task[None] | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hear signals inside, in the event loop."""
        loop = asyncio.get_running_loop()
        numbers = signal.SIGINT, signal.SIGTERM
        for number in numbers:
            loop.add_signal_handler(number, self._end, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)  # the end is near, and needs no more signals

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections, and say so."""
        await super().startup(sockets)
        self._ready()

    def _end(self, number: int) -> None:
        if self._ending is None:
            self.number, self._service.is_closing = number, True
            self._ending = asyncio.ensure_future(self._finish())
        else:
            self.should_exit = self.force_exit = True

    async def _finish(self) -> None:
        engine, seconds = self._service.engine, self._service.limits.shutdown_seconds
        await asyncio.get_running_loop().run_in_executor(None, engine.close, seconds)
        self.should_exit = True


def _protocol(limits: Limits) -> type[H11Protocol]:
    """Return the protocol of one connection, with limits that uvicorn's own has not."""

    class Protocol(H11Protocol):
        """Refuses a connection beyond the limit and a header that does not come."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                self._refuse(503, f"expected at most {limits.connections} connections, got more")
            else:
                self._wait_for_header()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_waiting()
            elif self._timer is None:
                self._wait_for_header()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def send_400_response(self, _message: str) -> None:
            self._refuse(400, "the request: expected HTTP/1.1")

        def _wait_for_header(self) -> None:
            self._timer = self.loop.call_later(
                limits.header_seconds,
                lambda: self._refuse(
                    408, f"the header: expected within {limits.header_seconds:g} seconds"
                ),
            )

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _refuse(self, status: int, message: str) -> None:
            """Answer in the place of the application, and close the connection."""
            self._stop_waiting()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                body = json.dumps(RequestError(status, message).body).encode()
                headers = [("Content-Type", "application/json"),
                           ("Content-Length", str(len(body))), ("Connection", "close")]  # fmt: skip
                for part in (
                    h11.Response(status_code=status, headers=headers),
                    h11.Data(data=body),
                    h11.EndOfMessage(),
                ):
                    self.transport.write(self.conn.send(part) or b"")
            self.transport.close()

    return Protocol
