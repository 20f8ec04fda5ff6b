"""Which paths are found, and that the endpoint that answers is the one whose key is
checked.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running import Running, running

KEY = {"Authorization": "Bearer sk-Secret"}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a key, at a local address."""
    directory: Path = tmp_path_factory.mktemp("locked")
    with running(directory, "--api-key", "sk-Secret") as server:
        yield server


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "/"),
        ("", "/"),
        ("//", "/"),
        ("/v1/models", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("//v1///models//", "/v1/models"),
        ("/v1/models/a.b/", "/v1/models/a.b"),
        ("/../health", "/../health"),
    ],
)
def test_a_normal_path_has_no_empty_parts(path, expected):
    pytest.importorskip("starlette", reason="the serve extra is not installed")
    from src.server.app import normal_path

    assert normal_path(path) == expected


def test_slashes_too_many_change_no_answer(server):
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    expected = server.ask("/v1/chat/completions", body)[1]["choices"]
    for path in (
        "/v1//chat/completions",
        "/v1/chat/completions/",
        "//v1/chat//completions//",
    ):
        status, answer = server.ask(path, body)
        assert (status, answer["choices"]) == (200, expected)
    models = server.ask("/v1/models")
    assert models[0] == 200
    for path in ("/v1/models/", "//v1/models", "/v1//models/"):
        assert server.ask(path) == models
    model = server.ask("/v1/models/bundled")
    assert model == (200, models[1]["data"][0])
    assert server.ask("/v1/models/bundled/") == model
    assert server.ask("//")[0] == 200
    assert server.ask("/tokenize/", {"content": "x"}) == server.ask(
        "/tokenize", {"content": "x"}
    )
    for path in ("/v1", "/v1/", "/v1/model", "/v1/models/other/", "/%2e%2e/health"):
        assert server.ask(path)[0] == 404


def test_no_path_is_answered_by_a_redirect(server):
    for path in (
        "/health/",
        "/v1/models/",
        "//",
        "/explorer//",
        "/nothing/",
        "/v1/models/other/",
    ):
        for host in (b"evil.example", b"localhost"):
            request = b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n"
            response = server.raw(request % (path.encode(), host)).lower()
            assert response.split(b" ", 2)[1] in (b"200", b"400", b"404", b"405"), (
                response
            )
            assert b"location:" not in response
            assert b"evil.example" not in response


def test_the_endpoint_that_answers_is_the_one_whose_key_is_checked(locked):
    hosts = (b"x", b"x/health?", b"x/health#", b"[", b"x/explorer/", b"//health", b"\xff")
    for host in hosts:
        for path in (
            b"/v1/models",
            b"/v1/models/",
            b"//v1/models",
            b"/metrics",
            b"/health/../metrics",
        ):
            request = b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (
                path,
                host,
            )
            response = locked.raw(request)
            status = int(response.split(b" ", 2)[1])
            assert status in (400, 401, 404), response
    for closed in (
        "/metrics",
        "//metrics",
        "/v1/models/",
        "/explorer/../metrics",
        "/%6detrics",
    ):
        status, answer = locked.ask(closed)
        assert status in (401, 404), closed
        assert "bundled" not in json.dumps(answer)
    for public in ("/health", "/health/", "//health", "/", "//"):
        assert locked.ask(public)[0] == 200
    assert locked.ask("/v1/models/", headers=KEY)[0] == 200
    assert locked.ask("/v1/models/", headers=KEY | {"Host": "x/health?"})[0] == 200
