"""A server on a real port, as a process."""

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.mpi import processes

ROOT = Path(__file__).resolve().parent.parent.parent
JSON = {"Content-Type": "application/json"}


@dataclass
class Running:
    """A server that runs."""

    port: int  # on 127.0.0.1
    process: "subprocess.Popen[bytes]"
    log: Path  # its standard error

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        method: str | None = None,
    ) -> tuple[int, Any]:
        """Sends a request; returns the status, and the JSON or the bytes of the
        response.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            method = method or ("GET" if body is None else "POST")
            connection.request(method, path, data, JSON | (headers or {}))
            response = connection.getresponse()
            content = response.read()
            is_json = response.getheader("Content-Type", "").startswith(
                "application/json"
            )
            return response.status, json.loads(content) if is_json else content
        finally:
            connection.close()

    def raw(self, data: bytes, seconds: float = 20, aborts: bool = False) -> bytes:
        """Sends bytes, and resets the connection or returns what comes to its end or for
        a time.
        """
        received = b""
        with socket.create_connection(
            ("127.0.0.1", self.port), timeout=seconds
        ) as stream:
            try:
                stream.sendall(data)
                if aborts:
                    stream.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                    return b""
                while part := stream.recv(65536):
                    received += part
            except (ConnectionResetError, BrokenPipeError, TimeoutError):
                pass
        return received

    def chat(self, text: str = "hi", **fields: Any) -> dict[str, Any]:
        """Answers one message at temperature 0."""
        body = {
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
        } | fields
        status, answer = self.ask("/v1/chat/completions", body)
        assert status == 200, answer
        assert isinstance(answer, dict)
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Returns the events of a stream; the last one is [DONE]."""
        status, content = self.ask(path, body | {"stream": True})
        assert status == 200, content
        lines = [line for line in content.decode().split("\n\n") if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines[:-1]]

    def metric(self, name: str) -> float:
        """Returns a number of `/metrics`."""
        text = self.ask("/metrics")[1].decode()
        found = re.search(rf"^llama_bolts_{name} (\S+)$", text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def is_idle(self) -> bool:
        return not self.metric("running") and not self.metric("waiting")

    def resident(self) -> int:
        """Returns the bytes of its memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) << 10

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Asks 3000 times, which takes a minute or, on a busy machine, more."""
    for _ in range(3000):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come about")


def skip_without_extra() -> None:
    """Skip the test if a package of the serve extra is missing."""
    for package in ("starlette", "uvicorn", "msgspec", "prometheus_client", "llguidance"):
        pytest.importorskip(package, reason="the serve extra is not installed")


@contextmanager
def running(
    directory: Path,
    *arguments: str,
    launch: Sequence[str] = (),
    program: Sequence[str] = (sys.executable, "-m", "src.main"),
) -> Iterator[Running]:
    """Starts `--serve` of a program, with `launch` before it; its end must be clean."""
    skip_without_extra()
    log = directory / "server.log"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*launch, *program, "--serve", "127.0.0.1:0", *arguments],
            cwd=directory, env=environment, stdin=subprocess.DEVNULL, stderr=stream,
        )  # fmt: skip
    try:
        ready = re.compile(r"at http://127.0.0.1:(\d+)/")
        wait_until(
            lambda: (
                bool(ready.search(log.read_text("utf-8"))) or process.poll() is not None
            )
        )
        found = ready.search(log.read_text("utf-8"))
        assert found is not None, log.read_text("utf-8")
        yield Running(int(found[1]), process, log)
        if process.poll() is None:  # mpirun would pass a signal on, and wait no more
            os.kill(processes(process.pid)[0] if launch else process.pid, signal.SIGTERM)
        assert process.wait(timeout=30) in (0, 130)
        assert "Traceback" not in log.read_text("utf-8")
    finally:
        process.kill()
        process.wait()
