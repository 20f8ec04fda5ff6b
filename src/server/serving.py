"""The server process: its socket, connections and shutdown."""

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

_BACKLOG = 128  # maximum number of connections queued by the system
# Size of each connection's socket buffers in bytes, which Linux doubles.
_SOCKET_BUFFER = 128 << 10
# Time limits during a shutdown: first for running requests, then for sending responses.
_SHUTDOWN_SECONDS = 10.0
_LAST_SECONDS = 1
# The interval at which Python switches threads. Each pass of the engine must acquire the
# interpreter lock many times. With the default interval, a thread that encodes a long
# text would keep the lock for 5 ms each time.
_SWITCH_SECONDS = 0.0005
_SIGNALS = signal.SIGINT, signal.SIGTERM
_SILENT = logging.CRITICAL + 1


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ServerError: The address cannot be used.
    """
    try:
        addresses = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = addresses[0]
        # A socket bound to `::` also accepts IPv4 connections if the system supports it.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(
            address, family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
        # asyncio does not set TCP_NODELAY on connections from an existing listener.
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
    """Answer requests until SIGINT or SIGTERM, then close the engine.

    After the first signal, running requests may finish within a time limit, and new ones
    are rejected with status 503. A second signal ends the process immediately.

    Args:
        service: The service.
        listener: A listening socket, as returned by `listen`.
        ready: Called before the first connection is accepted.

    Returns:
        The number of the signal that ended the server.
    """
    logging.getLogger("asyncio").setLevel(_SILENT)  # errors are reported by `service.log`
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = _Server(service)
    for number in _SIGNALS:
        signal.signal(number, server.handle_exit)
    ready()
    try:
        server.run([listener])
    finally:
        for number in _SIGNALS:
            # Further signals are ignored, because the server is already ending.
            signal.signal(number, signal.SIG_IGN)
        service.engine.close()
        service.close()
    return server.number


def _started_pool() -> ThreadPoolExecutor:
    """Return a thread pool whose threads are already running.

    A request thus cannot fail because a thread cannot be started.

    Raises:
        ServerError: A thread cannot be started.
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
    """A server that stops when the engine stops; `number` is the first signal."""

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
            h11_max_incomplete_event_size=MOST_HEADER - 1,  # h11 rejects longer headers
            proxy_headers=False,  # any client can send these headers
        )
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Begin the shutdown on the first signal; end immediately on the second."""
        self.number = self.number or sig
        self._service.is_closing = True
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting connections."""
        asyncio.get_running_loop().set_default_executor(_started_pool())
        self._watching = asyncio.create_task(self._watch())
        await super().startup(sockets)

    async def _watch(self) -> None:
        """Check the limits of all connections once a second."""
        while True:
            await asyncio.sleep(1)
            for connection in [*self.server_state.connections]:
                assert isinstance(connection, Connection)
                connection.watch()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for running requests to finish, then close all connections."""
        engine = self._service.engine
        engine.close(_SHUTDOWN_SECONDS, wait=False)
        while engine.is_running and not self.force_exit:
            await asyncio.sleep(0.05)
        self._service.close()  # otherwise, tasks could wait for a grammar
        await super().shutdown(sockets)
