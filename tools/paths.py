"""List the files of `src` that run for a prompt, a weight or a request.

`python -m tools.paths prompt` lists a file if one of its functions runs in that case:

- `prompt [FLAGS]`: a loaded model answers one prompt, from the session that receives the
  prompt to the kernels and back to the terminal.
- `weight FORMAT`: a weight in a file is opened, and one product with it is computed.
- `request PATH`: an HTTP request is read from the socket and passed to the engine.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from types import FrameType
from typing import Any

from src import ml
from src.cli.session import Session
from src.inference import BatchEngine
from src.main import main
from src.model.saving import save_quantized
from src.model.saving_gguf import save_gguf
from src.model.sources import find_source

from .pages import ROOT

SRC = ROOT / "src"
PROMPT = ("-q", "--no-stats", "-p", "Hello", "-n", "3", "--seed", "1")
WEIGHT = "layers.0.feed_forward.w1.weight"
BODIES = {
    "/v1/completions": {"prompt": "Hello", "max_tokens": 2},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 2,
    },
}
_ANSWERED_SECONDS = 60
# Code that runs at import time, and the server's check of its connections once a second.
_OF_NO_WAY = ("<module>", "_watch")
_ENGINE = "inference/batch.py"


class Noted:
    """Records the files whose functions are called while it is on.

    The files are in the order of their first calls, in this thread and in threads that
    start later.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.paths = list[str]()

    @property
    def files(self) -> list[str]:
        """The files, relative to `src`."""
        return [Path(path).relative_to(SRC).as_posix() for path in self.paths]

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if not self.is_on or event != "call" or frame.f_code.co_name in _OF_NO_WAY:
            return
        if path.startswith(f"{SRC}/") and path not in self.paths:
            self.paths.append(path)

    @contextmanager
    def watching(self, *, is_on: bool) -> Iterator[None]:
        """Record the calls in this thread and in threads that start in the block."""
        self.is_on = is_on
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def files_of_prompt(*flags: str) -> list[str]:
    """Answer a prompt in this process, and return the files that ran."""
    noted = Noted()
    ask = Session.ask

    def noted_ask(session: Session, question: str) -> Any:
        with noted.watching(is_on=True):
            return ask(session, question)

    Session.ask = noted_ask  # type: ignore[assignment, method-assign]
    try:
        code = main([*PROMPT, *flags])
    finally:
        Session.ask = ask  # type: ignore[method-assign]
    assert code == 0, "the prompt is answered"
    return noted.files


def files_of_weight(file_format: str) -> list[str]:
    """Multiply by a weight in a file of the bundled model, and return the files that ran.

    Args:
        file_format: `pth`, `gguf` (with q8_0 weights) or `safetensors` (with int8
            weights).
    """
    noted = Noted()
    with tempfile.TemporaryDirectory() as directory:
        path: Path | None = None
        if file_format == "gguf":
            path = Path(directory, "model.gguf")
            save_gguf(None, path, "q8_0")
        elif file_format == "safetensors":
            path = Path(directory, "model")
            save_quantized(None, path, "int8")
        source = find_source(path)
        x = ml.ones(1, source.args.dim, dtype="bfloat16")
        with noted.watching(is_on=True):
            checkpoint = source.open_checkpoint()
            weight = checkpoint.tensors[WEIGHT]
            ml.linear_transformation(x, weight)
    return noted.files


def files_of_request(path: str) -> list[str]:
    """Serve one request in this process, and return the files that ran, sorted by name.

    They include the files up to the engine. The order of calls would not be
    reproducible, because several threads run.
    """
    noted = Noted()
    answer = BatchEngine.answer

    def noted_answer(engine: BatchEngine, *arguments: Any, **options: Any) -> Any:
        noted.is_on = False
        return answer(engine, *arguments, **options)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    statuses = list[int]()

    def ask() -> None:
        try:
            for method, place in (("GET", "/health"), ("POST", path)):
                connection = _connected(port)
                noted.is_on = method == "POST"
                body = json.dumps(BODIES[path]) if method == "POST" else None
                headers = {"Content-Type": "application/json"}
                connection.request(method, place, body, headers)
                response = connection.getresponse()
                response.read()
                statuses.append(response.status)
                connection.close()
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    BatchEngine.answer = noted_answer  # type: ignore[assignment, method-assign]
    client = threading.Thread(target=ask)
    client.start()
    try:
        with noted.watching(is_on=False):
            main(["-q", "--serve", f"127.0.0.1:{port}"])
    finally:
        BatchEngine.answer = answer  # type: ignore[method-assign]
        client.join()
    assert statuses == [200, 200], "the server answers"
    return sorted({*noted.files, _ENGINE})  # its own thread may be noted or not


def _connected(port: int) -> HTTPConnection:
    """Return a connection to the local server as soon as it accepts connections."""
    last = time.monotonic() + _ANSWERED_SECONDS
    while True:
        connection = HTTPConnection("127.0.0.1", port, timeout=_ANSWERED_SECONDS)
        try:
            connection.connect()
        except ConnectionRefusedError:
            assert time.monotonic() < last, "the server starts"
            time.sleep(0.05)
        else:
            return connection


WAYS: Mapping[str, Callable[..., list[str]]] = {
    "prompt": files_of_prompt,
    "weight": files_of_weight,
    "request": files_of_request,
}


@cache
def files_on_the_way(way: str, *arguments: str) -> tuple[str, ...]:
    """Return the files that run for a prompt, a weight or a request, in a new process.

    Args:
        way: `prompt`, `weight` or `request`.
        arguments: The command-line flags for a prompt, such as `--completion`, the file
            format for a weight, or the path for a request.
    """
    command = [sys.executable, "-m", "tools.paths", way, *arguments]
    output = subprocess.check_output(command, cwd=ROOT, text=True)
    files: list[str] = json.loads(output.splitlines()[-1])
    return tuple(files)


if __name__ == "__main__":
    print(f"\n{json.dumps(WAYS[sys.argv[1]](*sys.argv[2:]))}")
