"""A hub on this machine: the part of its API that a download uses, and its faults."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_LARGE_FILES = (".safetensors", ".gguf")


@dataclass
class Hub:
    """What the hub has, what is wrong with it, and what it was asked.

    Attributes:
        repository: The one repository.
        files: Its files by their paths.
        cdn: The address of another host that large files are at, or None.
        denied: The status and the code of all answers about files, or None.
        missing: The status of an answer about another repository.
        cut_at: The bytes of a large file after which the connection is closed, in turn.
        seconds: What the hub waits before it sends a large file.
        sent: What is sent of a file, where that is not what is described.
        sizes: What the header says of the size of a file, where that is wrong.
        etags: The ETag of a file, where the hub chooses another one.
        described: What the API says of the repository, where that is something else.
        requests: Method, path and headers, by lower-case names, of each request.
    """

    repository: str = "org/model"
    files: dict[str, bytes] = field(default_factory=dict)
    cdn: str | None = None
    denied: tuple[int, str] | None = None
    missing: int = 404
    cut_at: list[int] = field(default_factory=list)
    seconds: float = 0.0
    sent: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    described: Any = None
    requests: list[tuple[str, str, Mapping[str, str]]] = field(default_factory=list)
    url: str = ""

    def asked_for(self, method: str, ending: str = "") -> list[Mapping[str, str]]:
        """Returns the headers of the requests with a method, of paths with an ending."""
        return [
            h for m, path, h in self.requests if m == method and path.endswith(ending)
        ]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_large(file: str) -> bool:
    return file.endswith(_LARGE_FILES)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        hub = self.hub
        path = unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.requests.append((self.command, path, headers))
        if path in (
            f"/api/models/{hub.repository}",
            f"/api/models/{hub.repository}/revision/main",
        ):
            self._send(200, json.dumps(self._description()).encode())
            return
        start = f"/{hub.repository}/resolve/"
        if not path.startswith(start):
            self._send(hub.missing, b"{}", {"X-Error-Code": "RepoNotFound"})
            return
        file = path.removeprefix(start).partition("/")[2]
        if hub.denied is not None:
            status, code = hub.denied
            self._send(status, b"", {"X-Error-Code": code})
        elif file not in hub.files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._send_file(file, with_body)

    def _description(self) -> Any:
        hub = self.hub
        if hub.described is not None:
            return hub.described
        siblings = []
        for name, data in hub.files.items():
            row = {"rfilename": name, "size": len(data), "blobId": _sha256(data)[:40]}
            if is_large(name):
                row["lfs"] = {
                    "size": len(data),
                    "sha256": _sha256(data),
                    "pointerSize": 130,
                }
            siblings.append(row)
        return {
            "id": hub.repository,
            "sha": COMMIT,
            "private": False,
            "siblings": siblings,
        }

    def _send_file(self, file: str, with_body: bool) -> None:
        hub = self.hub
        data = self.hub.sent.get(file, self.hub.files[file])
        described = hub.files[file]
        etag = hub.etags.get(
            file, _sha256(described) if is_large(file) else _sha256(described)[:40]
        )
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"', "Accept-Ranges": "bytes"}
        if hub.cdn is not None and is_large(file):
            linked = {"X-Linked-Size": str(len(described)), "X-Linked-Etag": f'"{etag}"'}
            location = {"Location": f"{hub.cdn}{self.path}"}
            self._send(302, b"", headers | linked | location)
            return
        size = hub.sizes.get(file, len(data))
        if not with_body:
            self._send(200, b"", headers, size)
            return
        begin = 0
        if wanted := self.headers.get("Range"):
            begin = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        rest = data[begin:]
        if is_large(file):
            time.sleep(hub.seconds)
            if hub.cut_at:
                self._send(
                    206 if begin else 200, rest[: hub.cut_at.pop(0)], headers, len(rest)
                )
                self.close_connection = True
                return
        self._send(206 if begin else 200, rest, headers, size - begin)

    def _send(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] = {},
        size: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serves a hub until the end of the block; it has its address."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
