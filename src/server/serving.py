"""The server process: its socket, its connections and its end."""

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

_BACKLOG = 128  # connections that the system keeps until they are taken
# Bytes that the system keeps of each direction of a connection; Linux takes twice as
# many.
_SOCKET_BUFFER = 128 << 10
# For what runs when the server is to end, and then for the responses to reach their
# clients.
_SHUTDOWN_SECONDS = 10.0
_LAST_SECONDS = 1
# After how many seconds a thread lets another one run Python. Each pass of the engine
# waits for the interpreter many times, and a thread that encodes a long text would hold
# it for 5 ms each time.
_SWITCH_SECONDS = 0.0005
_SIGNALS = signal.SIGINT, signal.SIGTERM
_SILENT = logging.CRITICAL + 1


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections.

    Raises:
        ServerError: The address cannot be used.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        # Addresses of version 4 reach `::` too, where the system can do that.
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        made = socket.create_server(
            address, family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
        # Of what such a socket accepts asyncio does not know that it is TCP, and leaves
        # out this.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER)
        return made
    except OSError as error:
        reason = error.strerror or error
        raise ServerError(
            f"{host}:{port}: expected a free address, got: {reason}"
        ) from None


def serve(
    service: Service, listener: socket.socket, ready: Callable[[], object]
) -> int | None:
    """Answer requests until SIGINT or SIGTERM; close the engine.

    The first signal lets what runs come to its end, within a limit, and refuses the rest
    with 503; a second one ends at once.

    Args:
        service: What to serve.
        listener: As `listen` gives it.
        ready: Called when connections are taken.

    Returns:
        The number of the signal.
    """
    logging.getLogger("asyncio").setLevel(_SILENT)  # `service.log` says what is wrong
    sys.setswitchinterval(_SWITCH_SECONDS)
    server = _Server(service)
    for number in _SIGNALS:
        signal.signal(number, server.handle_exit)
    ready()
    try:
        server.run([listener])
    finally:
        for number in _SIGNALS:
            # The end is near, and needs no more signals.
            signal.signal(number, signal.SIG_IGN)
        service.engine.close()
        service.close()
    return server.number


def _started_pool() -> ThreadPoolExecutor:
    """Return a pool whose threads run already, so that no request finds that one cannot
    start.

    Raises:
        ServerError: The system does not start them.
    """
    pool = ThreadPoolExecutor(WORKERS, "request")
    all_run = threading.Barrier(WORKERS + 1)
    try:
        for _ in range(WORKERS):
            pool.submit(all_run.wait)
    except RuntimeError as error:
        all_run.abort()
        pool.shutdown(wait=False, cancel_futures=True)
        text = f"{WORKERS} threads must start: the system refuses one ({error})"
        raise ServerError(f"[serve] {text}") from None
    all_run.wait()
    return pool


class _Server(uvicorn.Server):
    """A server whose end the engine decides; `number` is that of the first signal."""

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
            h11_max_incomplete_event_size=MOST_HEADER - 1,  # h11 refuses a longer one
            proxy_headers=False,  # any client can send them
        )
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, _frame: FrameType | None) -> None:
        """Begin to end with the first signal, and end at once with the second one."""
        self.number = self.number or sig
        self._service.is_closing = True
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections."""
        asyncio.get_running_loop().set_default_executor(_started_pool())
        self._watching = asyncio.create_task(self._watch())
        await super().startup(sockets)

    async def _watch(self) -> None:
        """Let each connection look at its limits once a second."""
        while True:
            await asyncio.sleep(1)
            for connection in [*self.server_state.connections]:
                assert isinstance(connection, Connection)
                connection.watch()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs come to its end, and then close the connections."""
        engine = self._service.engine
        engine.close(_SHUTDOWN_SECONDS, wait=False)
        while engine.is_running and not self.force_exit:
            await asyncio.sleep(0.05)
        self._service.close()  # so that no task waits for a grammar
        await super().shutdown(sockets)
