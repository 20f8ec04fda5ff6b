"""The server process: its socket, its connections and its end."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import create_app
from .errors import RequestError, ServerError
from .service import Service

# Connections that are open at a time, and those that the system keeps until they are taken.
_MOST_CONNECTIONS, _BACKLOG = 256, 128
# Bytes of a request's line and header, and seconds for them to come.
_MOST_HEADER, _HEADER_SECONDS = 16 << 10, 10
_KEEP_ALIVE_SECONDS = 75
# For what runs when the server is to end, and then for the responses to reach their clients.
_SHUTDOWN_SECONDS, _LAST_SECONDS = 10.0, 1
_SIGNALS = signal.SIGINT, signal.SIGTERM
_SILENT = logging.CRITICAL + 1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections.

    Raises:
        ServerError: The address cannot be used.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        # Addresses of version 4 reach `::` too, where the system can do that.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        made = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=both)
        # Of what such a socket accepts asyncio does not know that it is TCP, and leaves out this.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except OSError as error:
        reason = error.strerror or error
        raise ServerError(f"{host}:{port}: expected a free address, got: {reason}") from None


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
    logging.getLogger("asyncio").setLevel(_SILENT)  # `service.log` says what is wrong
    server = _Server(service)
    for number in _SIGNALS:
        signal.signal(number, server.handle_exit)
    ready()
    try:
        server.run([listener])
    finally:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the end is near, and needs no more signals
        service.engine.close()
        service.close()
    return server.number


class _Server(uvicorn.Server):
    """A server whose end the engine decides; `number` is that of the first signal."""

    number: int | None = None

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            create_app(service),
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=_SILENT,
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_SECONDS,
            h11_max_incomplete_event_size=_MOST_HEADER,
        )
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Begin to end with the first signal, and end at once with the second one."""
        self.number, self._service.is_closing = self.number or sig, True
        self.force_exit, self.should_exit = self.should_exit, True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(3, "request"))
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs come to its end, and then close the connections."""
        # Not in the pool of the requests: those that wait there would put off the end.
        closing = Thread(target=self._service.engine.close, args=(_SHUTDOWN_SECONDS,))
        closing.start()
        while closing.is_alive() and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


class _Protocol(H11Protocol):
    """One connection; refuses one beyond the limit, and a header that does not come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_header()
        if len(self.connections) > _MOST_CONNECTIONS:
            self._refuse(503, f"expected at most {_MOST_CONNECTIONS} connections, got more")

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()  # it would keep what has come of a header
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._timer.cancel()
        elif self._timer.cancelled():
            self._wait_for_header()

    def send_400_response(self, _message: str) -> None:
        self._refuse(400, "the request: expected HTTP/1.1")

    def _wait_for_header(self) -> None:
        message = f"the header: expected within {_HEADER_SECONDS} seconds"
        self._timer = self.loop.call_later(_HEADER_SECONDS, self._refuse, 408, message)

    def _refuse(self, status: int, message: str) -> None:
        """Answer in the place of the application, and close the connection."""
        self._timer.cancel()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else the client has gone
            answer = RequestError(status, message).response()
            answer.headers["Connection"] = "close"
            for part in (
                h11.Response(status_code=status, headers=answer.raw_headers),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()
