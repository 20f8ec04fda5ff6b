"""Who may ask, what is too much, clients that go away, and the end of the server."""

import asyncio
import gc
import json
import os
import random
import re
import shutil
import signal
import socket
import threading
import time
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest

from src.cli.arguments import DEFAULT_ADDRESS, parse_arguments
from src.inference import BatchEngine, batch, named_template
from src.ml.errors import LlamaBoltsError
from src.model.sources import BUNDLED_MODEL
from tests.cli.conftest import run_program
from tests.server.running import running, wait_until

CHAT = "/v1/chat/completions"
# Whatever a model would say of itself, this schema keeps it from ending soon.
TEXT = {"name": "text", "schema": {"type": "string", "minLength": 2000}}
LONG = {"messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 2.0,
        "top_k": 0, "top_p": 1.0, "seed": 25, "stream": True,
        "response_format": {"type": "json_schema", "json_schema": TEXT}}  # fmt: skip


def head(length: int, path: str = CHAT, extra: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{extra}\r\n"
    ).encode()


def error_of(response: bytes) -> tuple[int, dict[str, str]]:
    status = int(response.split(b" ", 2)[1])
    error = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error


def test_an_address_is_read_in_all_its_forms():
    for text, expected in (
        ("8081", ("127.0.0.1", 8081)), (":0", ("127.0.0.1", 0)), ("[::1]:9", ("::1", 9)),
        ("localhost", ("localhost", 8080)), ("0.0.0.0:80", ("0.0.0.0", 80)),
    ):  # fmt: skip
        assert parse_arguments(["--serve", text, "--no-api-key"]).serve == expected
    assert parse_arguments(["--serve"]).serve == DEFAULT_ADDRESS
    for wrong in (["--serve", "x:70000"], ["--slots", "2"], ["--serve", "--seed", "1"],
                  ["--serve", "-p", "x"], ["--api-key", "x"]):  # fmt: skip
        with pytest.raises(SystemExit):
            parse_arguments(wrong)


def test_an_address_that_needs_a_key_or_is_in_use_is_one_line(server):
    for address, code, said in (
        *(
            (each, 2, rb".*expected a loopback address or --api-key KEY.*")
            for each in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0")
        ),
        (
            f"127.0.0.1:{server.port}",
            3,
            rb"error: 127.0.0.1:\d+: expected a free address, got .*",
        ),
    ):
        done = run_program("--serve", address)
        assert (done.returncode, done.stdout) == (code, b"")
        assert re.fullmatch(said + rb"\n", done.stderr)


def test_a_key_is_asked_for_everywhere_but_health_and_the_page(tmp_path):
    (tmp_path / "key").write_text("sk-Secret\n")
    with running(tmp_path, "--api-key-file", str(tmp_path / "key")) as server:
        good = {"Authorization": "Bearer sk-Secret"}
        for key in ("", "Bearer sk-secret", "sk-Secret", "Bearer ", "Basic sk-Secret"):
            headers = {"Authorization": key} if key else {}
            for path, body in (("/v1/models", None), (CHAT, LONG), ("/metrics", None),
                               ("/tokenize", {"content": "x"})):  # fmt: skip
                status, answer = server.ask(path, body, headers)
                assert (status, answer["error"]["type"]) == (401, "authentication_error")
        assert server.ask("/health")[0] == server.ask("/")[0] == 200
        assert server.ask("/v1/models", headers=good)[0] == 200
        assert server.ask("/v1/models", headers=good | {"Host": "any.example"})[0] == 200
        assert "sk-Secret" not in server.log.read_text("utf-8")


def test_a_page_of_another_site_cannot_ask(server):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for headers in ({"Host": "evil.example"}, {"Host": "localhost.evil.example:80"},
                    {"Content-Type": "text/plain"},
                    {"Content-Type": "", "Origin": "http://evil.example"}):  # fmt: skip
        status, answer = server.ask(CHAT, body, headers)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert server.ask("/v1/models", headers={"Host": "localhost:1"})[0] == 200
    asked = (
        f"OPTIONS {CHAT} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n"
    )
    response = server.raw(f"{asked}Connection: close\r\n\r\n".encode()).lower()
    assert response.startswith(b"http/1.1 405")
    assert b"access-control" not in response
    asked = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert b"x-content-type-options: nosniff" in server.raw(asked.encode()).lower()


def test_a_body_may_have_4_mib_and_no_more(server):
    for size, code in (
        (4 << 20, "context_length_exceeded"),
        ((4 << 20) + 1, "too_large"),
    ):
        body = b'{"messages":[{"role":"user","content":"' + b"x" * size
        body = body[: size - 4] + b'"}]}'
        status, answer = server.ask(CHAT, body)
        assert (status, answer["error"]["code"]) == (400 if code[0] == "c" else 413, code)
    response = server.raw(head(1 << 40))  # all that comes until the server closes
    status, error = error_of(response)
    assert (status, error["code"]) == (413, "too_large")
    assert b"connection: close" in response.lower()


def test_a_header_may_have_16_kib_and_no_more(server):
    fits = server.raw(head(0, "/health", f"X: {'x' * 8000}\r\nConnection: close\r\n"))
    assert fits.startswith(b"HTTP/1.1 405")
    assert error_of(server.raw(b"GET / HTTP/1.1\r\nX: " + b"x" * (1 << 20)))[0] == 431
    start = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    for size, status in ((16 << 10, 200), ((16 << 10) + 1, 431), (60 << 10, 431)):
        header = start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"
        assert len(header) == size
        assert server.raw(header).startswith(b"HTTP/1.1 %d" % status)
    assert error_of(server.raw(b"\x16\x03\x01 what is this\r\n\r\n"))[0] == 400


def test_a_connection_that_ends_within_a_header_is_forgotten_at_once():
    uvicorn = pytest.importorskip("uvicorn", reason="the serve extra is not installed")
    from src.server.connections import Connection

    async def is_forgotten() -> bool:
        protocol = Connection(
            uvicorn.Config(lambda: None), uvicorn.server.ServerState(), {}
        )
        nothing = {
            "get_extra_info": lambda *_: None,
            "close": lambda: None,
            "is_closing": lambda: False,
            "get_write_buffer_size": lambda: 0,
        }
        protocol.connection_made(SimpleNamespace(**nothing))
        protocol.data_received(b"GET / HTTP/1.1\r\nX: ")
        protocol.connection_lost(None)
        kept = weakref.ref(protocol)
        del protocol
        gc.collect()
        return kept() is None

    assert asyncio.run(is_forgotten())


@pytest.mark.parametrize("fails", [False, True])
def test_an_answer_that_is_not_sent_is_given_up_at_once(fails):
    app = pytest.importorskip("src.server.app", reason="the serve extra is not installed")
    service = SimpleNamespace(check=lambda *_: None, log=print)
    ended = list[bool]()

    async def events() -> AsyncIterator[bytes]:
        try:
            yield b""
            yield b""
        finally:
            ended.append(True)

    async def status() -> tuple[int, list[bool]]:
        gone = asyncio.Event()

        async def receive() -> dict[str, str]:
            await gone.wait()
            return {"type": "http.disconnect"}

        async def endpoint(_service: object, _body: object, _caller: object) -> object:
            stream = events()
            await anext(stream)
            if fails:
                raise app.RequestError(404, "none")
            gone.set()
            # The client is known to be gone in the step after which this ends.
            await asyncio.sleep(0)
            return app.EventStream(stream)

        request = app.Request(
            {"type": "http", "path": "/", "path_params": {}, "headers": []}, receive
        )
        answers = app.Endpoint(path="/", handler=endpoint)
        response = await app._response(service, answers, request)
        await asyncio.sleep(0.01)
        return response.status_code, [*ended]  # before the loop ends what is left

    gc.disable()
    try:
        assert asyncio.run(status()) == (404 if fails else 499, [True])
    finally:
        gc.enable()


@pytest.mark.slow
def test_a_header_or_a_body_that_does_not_come_is_given_up(server):
    assert error_of(server.raw(b"GET / HTTP/1.1\r\nHost: x"))[0] == 408
    assert error_of(server.raw(head(100) + b"{", 40))[0] == 408


def test_a_client_that_goes_away_frees_its_place(server):
    for streams in (True, False):
        before = server.metric("cancelled_total")
        body = json.dumps(LONG | {"stream": streams, "n": 4}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as stream:
            stream.sendall(head(len(body)) + body)
            if streams:
                assert stream.recv(100)
            else:
                wait_until(lambda: bool(server.metric("running")))
        wait_until(server.is_idle)
        assert server.metric("cancelled_total") > before


def test_a_slow_reader_gets_the_same_answer_and_holds_up_nobody(server):
    body = json.dumps(
        LONG | {"max_tokens": 400, "logprobs": True, "top_logprobs": 5}
    ).encode()
    expected = server.stream(CHAT, json.loads(body))
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(head(len(body), extra="Connection: close\r\n") + body)
        assert server.chat()["choices"][0]["message"]["content"]
        received = b""
        while part := slow.recv(1 << 16):
            received += part
            time.sleep(0.0005)
    deltas = re.findall(r'"delta":(\{.*?\}),"logprobs"', received.decode())
    assert [json.loads(d) for d in deltas] == [e["choices"][0]["delta"] for e in expected]


def test_more_requests_than_wait_are_refused(tmp_path):
    with running(tmp_path, "--slots", "1") as server, ThreadPoolExecutor(12) as clients:
        body = LONG | {"stream": False, "max_tokens": 20, "n": 16}
        answers = clients.map(server.ask, [CHAT] * 12, [body] * 12)
        assert {status for status, _ in answers} == {200, 429}
        wait_until(server.is_idle)


def test_more_connections_than_there_may_be_are_refused(server):
    with ExitStack() as held:
        for _ in range(256):
            held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        refused = [server.raw(b"", 5) for _ in range(3)]
        assert {error_of(response)[0] for response in refused if response} == {503}
    wait_until(lambda: server.ask("/health")[0] == 200)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_end_and_refuses_the_rest(tmp_path, number):
    with running(tmp_path, "--slots", "1") as server, ThreadPoolExecutor(3) as clients:
        body = LONG | {"stream": False, "max_tokens": 500}
        asked = [clients.submit(server.ask, CHAT, body) for _ in range(3)]
        states = ("running", "waiting", "finished_total")
        # None comes to a closed door.
        wait_until(lambda: sum(map(server.metric, states)) == 3)
        server.process.send_signal(number)
        assert {200} <= {one.result()[0] for one in asked} <= {200, 503}
        expected = 0 if number == signal.SIGTERM else 130
        assert server.process.wait(timeout=12) == expected
        assert server.log.read_text("utf-8").count("\n") == 1


def test_the_end_does_not_wait_for_requests_that_have_no_thread_yet():
    serving = pytest.importorskip(
        "src.server.serving", reason="the serve extra is not installed"
    )
    engine = SimpleNamespace(close=lambda _seconds, wait: None, is_running=False)

    async def end() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        is_over = threading.Event()
        request = asyncio.ensure_future(asyncio.to_thread(is_over.wait, 10))
        server = serving._Server(SimpleNamespace(engine=engine, close=lambda: None))
        server.handle_exit(signal.SIGTERM, None)
        server.lifespan = SimpleNamespace(shutdown=lambda: asyncio.sleep(0))
        server.servers = []
        await server.shutdown()
        assert not request.done()
        is_over.set()
        assert await request

    asyncio.run(end())


class RefusedThread(threading.Thread):
    """A thread that the system does not start."""

    def start(self) -> None:
        raise RuntimeError("can't start new thread")


def test_an_engine_without_a_thread_is_503_until_it_has_one(bundled, monkeypatch):
    testing = pytest.importorskip("starlette.testclient", reason="httpx is not installed")
    server = pytest.importorskip("src.server", reason="the serve extra is not installed")
    from src.server.app import create_app

    engine = BatchEngine(bundled, sequence_length=256, max_requests=1)
    log: list[str] = []
    served = server.ServedModel(
        "bundled", named_template("llama3"), loading=None, sampling={}
    )
    access = server.Access(api_keys=(), is_local=False, shares_prefixes=False)
    service = server.Service(engine, served, access, log.append)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    reason = (
        "the thread of the engine must start: the system refuses it (can't start new "
        "thread)"
    )
    with testing.TestClient(create_app(service)) as client, engine:
        with monkeypatch.context() as patch:
            patch.setattr(batch, "threading", SimpleNamespace(Thread=RefusedThread))
            for response in (client.get("/health"), client.post(CHAT, json=body)):
                assert response.status_code == 503
                assert response.json()["error"]["code"] == "no_thread"
                assert response.json()["error"]["message"] == reason
                assert response.headers["Retry-After"] == "1"
        assert client.get("/health").status_code == 200
        assert client.post(CHAT, json=body).status_code == 200
    assert log == []


def test_a_server_whose_threads_the_system_refuses_does_not_start(monkeypatch):
    serving = pytest.importorskip(
        "src.server.serving", reason="the serve extra is not installed"
    )
    monkeypatch.setattr("concurrent.futures.thread.threading.Thread", RefusedThread)
    rule = (
        r"\[serve\] started threads must equal 3: the system refused one \(can't start new "
        r"thread\)"
    )
    with pytest.raises(LlamaBoltsError, match=rule):
        serving._started_pool()


def test_a_weight_file_that_was_touched_is_503_in_health_and_requests(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(BUNDLED_MODEL, model)
    with running(tmp_path, "-m", str(model)) as server:
        assert server.ask("/health") == (200, {"status": "ok"})
        server.chat(max_tokens=1)
        [weights] = model.glob("*.pth")
        os.utime(weights)
        message = "a weight file has changed since loading: restart the server"
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
        for path, sent in (("/health", None), (CHAT, body), (CHAT, body)):
            status, answer = server.ask(path, sent)
            assert (status, answer["error"]["code"]) == (503, "model_changed")
            assert answer["error"]["message"] == message
        log = server.log.read_text("utf-8")
        assert "unchanged since loading" in log


def test_an_address_of_version_6_is_served_where_sockets_cannot_be_of_both_versions(
    monkeypatch,
):
    serving = pytest.importorskip(
        "src.server.serving", reason="the serve extra is not installed"
    )
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with suppress(LlamaBoltsError), serving.listen("::1", 0) as listener:
        assert listener.getsockname()[0] == "::1"


def test_a_response_is_sent_at_once_and_not_held_back_for_an_acknowledgement():
    serving = pytest.importorskip(
        "src.server.serving", reason="the serve extra is not installed"
    )
    with serving.listen("127.0.0.1", 0) as listener, ExitStack() as clients:
        clients.enter_context(socket.create_connection(listener.getsockname()))
        accepted = clients.enter_context(listener.accept()[0])
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.slow
def test_signals_and_killed_clients_at_random_times(tmp_path):
    chance = random.Random(1)
    for number in range(30):
        (tmp_path / str(number)).mkdir()
        with running(tmp_path / str(number)) as server, ExitStack() as clients:
            body = json.dumps(LONG | {"max_tokens": 2000}).encode()
            for _ in range(chance.randrange(1, 9)):
                stream = socket.create_connection(("127.0.0.1", server.port))
                stream.sendall(head(len(body)) + body)
                if chance.random() < 0.5:
                    clients.enter_context(stream)
                else:
                    time.sleep(chance.random() * 0.1)
                    stream.close()
            time.sleep(chance.random() * 0.3)
            server.process.send_signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
            if chance.random() < 0.5:
                time.sleep(chance.random() * 0.3)
                server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(timeout=13) in (0, 130)


def test_the_extra_is_named_where_it_is_missing(tmp_path):
    (tmp_path / "starlette.py").write_text(
        "raise ModuleNotFoundError('no', name='starlette')\n"
    )
    done = run_program("--serve", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert b"pip install -e '.[serve]'" in done.stderr
