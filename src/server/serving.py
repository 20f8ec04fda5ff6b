"""The server process: its socket, its connections and its shutdown."""

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import uvicorn

from .app import create_app
from .connections import MOST_HEADER, Connection, State
from .errors import ServerError
from .service import WORKERS, Service

_BACKLOG = 128  # connections that the system queues
# Bytes of the system's buffer per direction of a connection; Linux doubles the value.
_SOCKET_BUFFER = 128 << 10
# The time limits of a shutdown for running requests, and then for sending responses.
_SHUTDOWN_SECONDS = 10.0
_LAST_SECONDS = 1
# The interval at which Python switches threads. Each pass of the engine waits for the
# interpreter many times, and by default a thread that encodes a long text would keep it
# for 5 ms each time.
_SWITCH_SECONDS = 0.0005
_SIGNALS = signal.SIGINT, signal.SIGTERM
_SILENT = logging.CRITICAL + 1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections.

    Raises:
        ServerError: The address cannot be used.
    """
    try:
        addresses = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = addresses[0]
        # `::` also accepts IPv4 addresses, if the system supports it.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(
            address, family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
        # asyncio does not set TCP_NODELAY on sockets accepted from a pre-made listener.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        return listener
    except OSError as error:
        reason = error.strerror or error
        raise ServerError(
            f"{host}:{port}: expected a free address, got {reason}"
        ) from None


def serve(
    service: Service, listener: socket.socket, ready: Callable[[], object]
) -> int | None:
    """Answer requests until SIGINT or SIGTERM; then close the engine.

    The first signal lets running requests finish within a limit and rejects others
    with 503. A second signal ends the process immediately.

    Args:
        service: The service.
        listener: The result of `listen`.
        ready: Called before the first connection is accepted.

    Returns:
        The number of the signal.
    """
    logging.getLogger("asyncio").setLevel(_SILENT)  # `service.log` reports errors
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = _Server(service)
    for number in _SIGNALS:
        signal.signal(number, server.handle_exit)
    ready()
    try:
        server.run([listener])
    finally:
        for number in _SIGNALS:
            # No further signals are needed at the end.
            signal.signal(number, signal.SIG_IGN)
        service.engine.close()
        service.close()
    return server.number


def _started_pool() -> ThreadPoolExecutor:
    """Return a pool whose threads run already, so that no request fails to start.

    Raises:
        ServerError: The system refused a thread.
    """
    pool = ThreadPoolExecutor(WORKERS, "request")
    all_run = threading.Barrier(WORKERS + 1)
    try:
        for _ in range(WORKERS):
            pool.submit(all_run.wait)
    except RuntimeError as error:
        all_run.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        raise ServerError(
            f"[serve] started threads must equal {WORKERS}: the system refused one "
            f"({error})"
        ) from None
    all_run.wait()
    return pool


class _Server(uvicorn.Server):
    """A server whose end the engine determines; `number` is the first signal."""

    number: int | None = None

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            create_app(service),
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=_SILENT,
            access_log=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            backlog=_BACKLOG,
            timeout_keep_alive=int(State.IDLE.value),
            timeout_graceful_shutdown=_LAST_SECONDS,
            h11_max_incomplete_event_size=MOST_HEADER - 1,  # h11 rejects a longer header
            proxy_headers=False,  # any client can send these headers
        )
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Begin the shutdown at the first signal; end immediately at the second."""
        self.number = self.number or sig
        self._service.is_closing = True
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        asyncio.get_running_loop().set_default_executor(_started_pool())
        self._watching = asyncio.create_task(self._watch())
        await super().startup(sockets)

    async def _watch(self) -> None:
        """Check the limits of each connection once a second."""
        while True:
            await asyncio.sleep(1)
            for connection in [*self.server_state.connections]:
                assert isinstance(connection, Connection)
                connection.watch()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests, then close the connections."""
        engine = self._service.engine
        engine.close(_SHUTDOWN_SECONDS, wait=False)
        while engine.is_running and not self.force_exit:
            await asyncio.sleep(0.05)
        self._service.close()  # so that no task waits for a grammar
        await super().shutdown(sockets)
