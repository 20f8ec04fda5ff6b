"""Attacks by grammars, on the processes behind the server, and on what requests share."""

import json
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from src.model.sources import BUNDLED_MODEL
from tests.hardening.attacks import attack
from tests.hardening.attacks.sharing import CHAT, CLOSE, ask, streaming
from tests.hardening.attacks.wire import connect, post
from tests.server.running import Running, running, wait_until

HI = {"messages": [{"role": "user", "content": "hi"}]}
# With each token, such a text has more meanings.
AMBIGUOUS = 'start: e\ne: e e | e e e | "a" | "b" | "ab"'
# The program, which the system refuses a thread for the engine twice.
_WITHOUT_THREADS = """
import runpy, sys, threading
start, left = threading.Thread.start, [2]
def refuse(self):
    if self.name == "BatchEngine" and left[0]:
        left[0] -= 1
        raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = refuse
sys.argv[0] = "src.main"
runpy.run_module("src.main", run_name="__main__")
"""
LONG_ANSWER = {"temperature": 2.0, "top_k": 0, "top_p": 1.0}


def by_grammar(text: str, **fields: Any) -> dict[str, Any]:
    """Returns a body whose answer follows a grammar of Lark."""
    return HI | {"response_format": {"type": "grammar", "grammar": text}} | fields


def slow_format(number: int) -> dict[str, Any]:
    """Returns a format of 48 KB that takes half of the time that there is to compile
    one.
    """
    patterns = [f"^[a-z]{{{n % 9 + 1}}}{number}$" for n in range(850)]
    properties = {
        f"k{n}": {"type": "string", "pattern": each} for n, each in enumerate(patterns)
    }
    schema = {"type": "object", "properties": properties}
    return {"type": "json_schema", "json_schema": {"name": "slow", "schema": schema}}


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and those that these have
    started.
    """
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(child) for child in text.split()]
    return children + [each for child in children for each in descendants(child)]


def grammar_processes(server: Running) -> list[int]:
    """Returns the first process of the grammars, those that compiled one, and those of
    answers.

    The threads of the server may have started the first one. A child of the server that
    does not run the program for grammars yet does not count.
    """
    tasks = Path(f"/proc/{server.process.pid}/task")
    found: list[int] = []
    for task in tasks.iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return [pid for pid in found if runs_grammars(pid)]


def runs_grammars(pid: int) -> bool:
    """Returns whether a process runs the program for grammars."""
    try:
        return b"grammar_server.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def parts_per_second(gaps: list[float], seconds: float) -> float:
    """Returns how many parts of a stream come in a second, over the next seconds."""
    before = len(gaps)
    time.sleep(seconds)
    return (len(gaps) - before) / seconds


def error_of(content: bytes) -> dict[str, str]:
    error: dict[str, str] = json.loads(content)["error"]
    return error


@attack(
    5,
    "A client that has left leaves no work, and equal grammars are compiled once.",
    True,
)
def grammars_of_clients_that_left_end(directory: Path) -> str:
    prompts = ["x" * 1000] * 64
    with running(directory) as server:
        for number in range(3):
            form = slow_format(number)
            many = {"prompt": prompts, "n": 16, "max_tokens": 50, "response_format": form}
            assert len(json.dumps(many)) < 125_000
            with closing(connect(server)) as stream:
                stream.sendall(post("/v1/completions", many))
                time.sleep(0.3)
        started = time.monotonic()
        status, _ = ask(
            server, post(CHAT, by_grammar('start: "yes"'), CLOSE), "127.0.0.2"
        )
        seconds = time.monotonic() - started
        assert status == 200
        assert seconds < 10, f"another client waited {seconds:.1f} s"
        wait_until(server.is_idle)
        wait_until(lambda: len(grammar_processes(server)) <= 1 + 8)
        count = len(grammar_processes(server))
    return f"another client waited {seconds:.1f} s; {count} processes stayed"


@attack(5, "A client has 8 grammars in use at most, and all clients 32.", True)
def grammars_in_use_are_limited(directory: Path) -> str:
    def asked(number: int) -> tuple[int, bytes]:
        body = by_grammar(
            f'start: "{number}" /[a-z ]{{900}}/', max_tokens=400, **LONG_ANSWER
        )
        return ask(server, post(CHAT, body, CLOSE))

    with running(directory) as server, ThreadPoolExecutor(24) as pool:
        answers = [*pool.map(asked, range(24))]
        refused = [content for status, content in answers if status == 429]
        assert {status for status, _ in answers} <= {200, 429}
        assert refused, "no grammar was refused"
        assert {error_of(content)["code"] for content in refused} == {"too_many_grammars"}
        wait_until(lambda: len(grammar_processes(server)) <= 1 + 8)
    return f"{len(refused)} of {len(answers)} refused"


@attack(6, "A second SIGTERM ends the process at once, whatever is being compiled.")
def a_second_signal_ends_while_grammars_are_compiled(directory: Path) -> str:
    with running(directory) as server, ThreadPoolExecutor(8) as pool:
        bodies = [
            post(CHAT, HI | {"response_format": slow_format(number)}, CLOSE)
            for number in range(8)
        ]
        asked = [pool.submit(ask, server, body) for body in bodies]
        wait_until(lambda: len(grammar_processes(server)) > 0)
        for pid in grammar_processes(server):
            os.kill(pid, signal.SIGSTOP)  # so that the wait for them would be long
        started = time.monotonic()
        for _ in range(2):
            os.kill(server.process.pid, signal.SIGTERM)
            time.sleep(0.1)
        server.process.wait(timeout=10)
        seconds = time.monotonic() - started
        for each in asked:
            each.exception()
    assert seconds < 2, f"it took {seconds:.1f} s"
    return f"ended after {seconds:.2f} s"


@attack(
    7,
    "No answer waits for the masks of another one, and slow masks end their answer.",
    True,
)
def ambiguous_grammars_do_not_slow_others(directory: Path) -> str:
    with running(directory) as server, streaming(server, "127.0.0.2") as gaps:
        wait_until(lambda: len(gaps) > 20)
        alone = parts_per_second(gaps, 3)
        body = by_grammar(AMBIGUOUS, n=15, max_tokens=1000, **LONG_ANSWER)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, server, post(CHAT, body, CLOSE))
            time.sleep(0.5)
            beside = parts_per_second(gaps, 3)
            status, content = answer.result()
    assert beside > 0.1 * alone, f"{beside:.0f} of {alone:.0f} parts per second"
    if status != 200:
        assert (status, error_of(content)["code"]) == (400, "invalid_grammar")
    return f"{beside:.0f} of {alone:.0f} parts per second; the slow request: {status}"


@attack(
    8, "While the engine has no thread, requests and /health are 503 with the reason."
)
def an_engine_without_a_thread_is_said(directory: Path) -> str:
    with running(directory, program=(sys.executable, "-c", _WITHOUT_THREADS)) as server:
        for path, body in (("/health", None), (CHAT, HI | {"max_tokens": 1})):
            status, answer = server.ask(path, body)
            assert (status, answer["error"]["code"]) == (503, "no_thread"), answer
        assert server.ask(CHAT, HI | {"max_tokens": 1})[0] == 200
        assert server.ask("/health")[0] == 200
    return "503 twice, then 200"


@attack(
    9, "After a weight file was touched, requests and /health are 503 with the reason."
)
def a_touched_weight_file_is_said(directory: Path) -> str:
    model = directory / "model"
    shutil.copytree(BUNDLED_MODEL, model)
    with running(directory, "-m", str(model)) as server:
        assert server.ask("/health")[0] == 200
        [weights] = model.glob("*.pth")
        os.utime(weights)
        for path, body in (("/health", None), (CHAT, HI), ("/health", None)):
            status, answer = server.ask(path, body)
            assert (status, answer["error"]["code"]) == (503, "model_changed"), answer
            assert str(directory) not in answer["error"]["message"]
    return "503 for each request"


@attack(10, "Processes of grammars that were killed are started again.")
def killed_grammar_processes_are_started_again(directory: Path) -> str:
    yes = post(CHAT, by_grammar('start: "yes"'), CLOSE)
    with running(directory) as server:
        assert ask(server, yes)[0] == 200
        for count in (1, 2, 3):
            for pid in grammar_processes(server)[:count]:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            other = post(CHAT, by_grammar(f'start: "yes" "{count}"'), CLOSE)
            assert [ask(server, each)[0] for each in (yes, other)] == [200, 200]
    return "each later request with a grammar is answered"


@attack(11, "A stopped process of a grammar holds up its own request alone.", True)
def a_stopped_grammar_process_holds_up_its_own_request(directory: Path) -> str:
    body = by_grammar("start: /[a-z ]{900}/", max_tokens=800, stream=True, **LONG_ANSWER)
    with running(directory) as server, closing(connect(server)) as stream:
        stream.sendall(post(CHAT, body, CLOSE))
        received = b""
        while received.count(b"data: ") < 3:
            received += stream.recv(1 << 16)
        for pid in grammar_processes(server):
            os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        status, _ = ask(server, post(CHAT, HI | {"max_tokens": 50}, CLOSE), "127.0.0.2")
        others = time.monotonic() - started
        while part := stream.recv(1 << 16):
            received += part
        own = time.monotonic() - started
        assert status == 200
        assert b"invalid_grammar" in received
        # The first of them may find the stopped process; then it is replaced.
        yes = post(CHAT, by_grammar('start: "yes"'), CLOSE)
        statuses = [ask(server, yes, "127.0.0.2")[0] for _ in range(2)]
        assert statuses[-1] == 200, statuses
    assert others < 3, f"others waited {others:.1f} s"
    assert own < 20, f"it waited {own:.1f} s"
    return f"others waited {others:.1f} s, its own request {own:.1f} s"


@attack(12, "No count of cached tokens tells what another client has asked.")
def cached_tokens_tell_nothing_of_others(directory: Path) -> str:
    def cached(server: Running, headers: dict[str, str], **fields: Any) -> int:
        message = {
            "role": "user",
            "content": "My number is 836102, and this is my question.",
        }
        body = {"messages": [message], "max_tokens": 1} | fields
        status, answer = server.ask(CHAT, body, headers)
        assert status == 200, answer
        count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    (directory / "keys").write_text("one\ntwo\n")
    keys = [{"Authorization": f"Bearer {key}"} for key in ("one", "two")]
    cases: dict[str, list[int]] = {}
    for name, flags in {
        "no key": (),
        "two keys": ("--api-key-file", str(directory / "keys")),
        "shared": ("--share-prefixes",),
    }.items():
        (directory / name).mkdir()
        with running(directory / name, *flags) as server:
            first, second = keys if name == "two keys" else ({}, {})
            cases[name] = [
                cached(server, first),
                cached(server, second),
                cached(server, first),
            ]
            if name == "no key":
                page = [cached(server, {}, prompt_cache_key="a page") for _ in range(2)]
    assert cases["no key"] == [0, 0, 0], cases
    assert page[0] == 0 < page[1], page
    assert cases["two keys"][:2] == [0, 0] < cases["two keys"][2:], cases
    assert cases["shared"][0] == 0 < cases["shared"][1], cases
    return f"{cases}"
