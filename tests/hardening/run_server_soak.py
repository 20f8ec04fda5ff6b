"""Ask a server 5 000 mixed requests, 32 at once, and compare what it holds with the
beginning.

`python -m tests.hardening.run_server_soak` starts a server with the bundled model on a
port of 127.0.0.1. Requests have short and long prompts, grammars, functions and streams.
Some clients read slowly, leave at a random moment, or send a body that is malformed or
cut. After each 500 requests the server has to become idle, and its memory, descriptors,
threads and processes are printed. The exit code is 1 if one of them has grown between the
first 500 requests and the end. A sample of the finished answers is compared with those of
an engine that has nothing else to do.
"""

import argparse
import http.client
import json
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from src.inference import InferenceEngine, ToolCall, end_ids
from src.inference.answer_forms import split_calls
from src.inference.call_grammars import grammar_of_calls
from src.inference.chat_encoding import encode_chat
from src.inference.grammars import MOST_KEPT, Grammar, Grammars
from src.model import Model, load_model
from src.server.bodies import ChatBody, CompletionBody, parse_body
from tests.hardening.attacks.grammars import AMBIGUOUS, grammar_processes
from tests.hardening.run_server_load import WORDS, body_of
from tests.server.running import JSON, Running, running, wait_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
CONTEXT = 4096
AT_ONCE = 32
# Requests before the first reading.
FIRST = 500
# Bytes: pages that the allocators keep for themselves.
MOST_GROWTH = 16 << 20
# Grammars that are kept differ in size.
MOST_GROWTH_OF_PROCESSES = 32 << 20
# So that the limits of a client are reached at times, and clients have to take turns.
SOURCES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
# The behaviour of a client, and how often it occurs.
BEHAVIOURS = {
    "reads": 200,
    "reads slowly": 60,
    "leaves at a random time": 60,
    "leaves in the response": 40,
    "leaves after the request": 20,
    "cuts the body": 20,
    "sends a malformed body": 40,
    "asks for slow masks": 2,
}
FINISHES = ("reads", "reads slowly")


def _schema(properties: dict[str, Any], required: Iterable[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


SCHEMAS = (
    _schema(
        {"city": {"enum": ["Rome", "Paris"]}, "is_capital": {"type": "boolean"}}, ["city"]
    ),
    _schema({"count": {"type": "integer", "minimum": 1, "maximum": 12}}, ["count"]),
    _schema({"name": {"type": "string", "maxLength": 20}}, ["name"]),
    _schema(
        {"words": {"type": "array", "items": {"type": "string"}, "maxItems": 4}},
        ["words"],
    ),
    _schema(
        {"point": _schema({"x": {"type": "number"}, "y": {"type": "number"}}, ["x"])}
    ),
    {"anyOf": [{"type": "integer"}, {"type": "null"}, {"const": "none"}]},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 5},
)
REGEXES = (
    "[a-z]{3,12}",
    "(yes|no)",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "(Rome|Paris|[A-Z][a-z]+)\\.",
    "([a-z]+ ){2,6}[a-z]+",
    "#[0-9a-f]{6}",
    "[^\\n]{1,40}",
)
GRAMMARS = (
    'start: "yes" | "no"',
    'start: WORD (" " WORD)*\nWORD: /[a-z]{1,9}/',
    'start: sum\nsum: NUMBER | sum "+" NUMBER\nNUMBER: /[0-9]{1,3}/',
    'start: "(" start ")" | "x"',
    'start: line+\nline: "- " /[a-z ]{1,20}/ "\\n"',
    'root ::= "The capital is " [A-Z] [a-z]+ "."',
)
FORMATS: tuple[dict[str, Any], ...] = (
    {"type": "json_object"},
    *(
        {"type": "json_schema", "json_schema": {"name": "x", "schema": each}}
        for each in SCHEMAS
    ),
    *({"type": "regex", "regex": each} for each in REGEXES),
    *({"type": "grammar", "grammar": each} for each in GRAMMARS),
)
TOOLS = tuple(
    {"type": "function", "function": {"name": f"call_{index}", "parameters": schema}}
    for index, schema in enumerate(SCHEMAS[:4])
)
_HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
MALFORMED: tuple[bytes, ...] = (
    b"",
    b"{",
    b"null",
    b"\xff\xfe",
    b"[" * 5000,
    b'{"messages": 5}',
    b'{"messages": []}',
    *(
        json.dumps(_HI | wrong).encode()
        for wrong in (
            {"top_p": "x"},
            {"max_tokens": -1},
            {"n": 1000},
            {"temperature": -1},
            {"stop": ["x"] * 17},
            {"audio": {}},
            {"tool_choice": "required"},
            {"messages": [{"role": "user", "content": "x " * 30_000}]},
            {"tools": [{"type": "function", "function": {"name": "no name"}}]},
            {"response_format": {"type": "regex", "regex": "("}},
            {"response_format": {"type": "grammar", "grammar": "start: missing"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "x"}},
                }
            },
        )
    ),
)


@dataclass(frozen=True)
class Client:
    """A client, and the one request that it sends."""

    behaviour: str
    source: str
    body: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class Reading:
    """What the server holds while it is idle.

    Attributes:
        requests: The requests so far.
        seconds: The time so far.
        resident: Bytes of memory of the server.
        descriptors: Open descriptors of the server.
        threads: Threads of the server.
        processes: The processes of the grammars.
        processes_resident: Bytes of memory of these processes, with shared pages in each.
    """

    requests: int
    seconds: float
    resident: int
    descriptors: int
    threads: int
    processes: int
    processes_resident: int

    def growth_since(self, first: "Reading") -> list[str]:
        """Return a sentence for each thing that has grown beyond its bound."""
        bounds = {
            "resident": MOST_GROWTH,
            "descriptors": 0,
            "threads": 0,
            "processes": 0,
            "processes_resident": MOST_GROWTH_OF_PROCESSES,
        }
        growths = {name: getattr(self, name) - getattr(first, name) for name in bounds}
        return [
            f"{name} must grow by at most {bounds[name]}: {growth}"
            for name, growth in growths.items()
            if growth > bounds[name]
        ]

    def has_more_than(self, first: "Reading") -> bool:
        """Return whether it has more descriptors, threads or processes."""
        return (
            self.descriptors > first.descriptors
            or self.threads > first.threads
            or self.processes > first.processes
        )


@dataclass
class Result:
    """What a soak has shown."""

    readings: list[Reading] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)  # answers of each kind
    characters: int = 0
    cached_tokens: int = 0  # of prompts, which the server has found in its cache
    wrong: list[str] = field(default_factory=list)  # answers that differ or failed

    @property
    def faults(self) -> list[str]:
        return self.readings[-1].growth_since(self.readings[0]) + self.wrong


def mixed_body(chance: random.Random) -> dict[str, Any]:
    """Return a random request, often with a grammar or functions, sometimes with a long
    prompt.
    """
    body = body_of(chance)
    if chance.random() < 0.08:
        text = " ".join(chance.choices(WORDS, k=chance.randrange(600, 1500)))
        body.pop("messages", None)
        body["prompt"] = text
    kind = chance.choices(("text", "grammar", "functions"), (5, 3, 2))[0]
    if kind == "grammar":
        body["response_format"] = chance.choice(FORMATS)
    if kind == "functions":
        if "prompt" in body:
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        if chance.random() < 0.3:
            body["messages"] += [_calling("call_0", '{"city": "Rome"}'), _returning("12")]
        body["tools"] = chance.sample(TOOLS, k=chance.randint(1, 3))
        body["tool_choice"] = chance.choice(("auto", "required", "none"))
    return body


def _calling(name: str, arguments: str) -> dict[str, Any]:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _returning(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "1", "content": content}


def mixed_clients(count: int, seed: int) -> list[Client]:
    chance = random.Random(seed)
    behaviours = chance.choices([*BEHAVIOURS], [*BEHAVIOURS.values()], k=count)
    return [
        Client(
            behaviour,
            chance.choice(SOURCES),
            mixed_body(chance),
            chance.randrange(1 << 32),
        )
        for behaviour in behaviours
    ]


def answer_text(content: str, calls: Iterable[tuple[str, str]]) -> str:
    """Return an answer and its calls as one text."""
    return content + "".join(f"\n{name}({arguments})" for name, arguments in calls)


def text_of(content: bytes, is_stream: bool) -> str:
    """Return the answer of a response; raise AssertionError for an error in a stream."""
    parts = [content.decode()]
    if is_stream:
        *parts, end = (line[6:] for line in parts[0].split("\n\n") if line)
        assert end == "[DONE]", f"a stream ended with {end}"
    text = ""
    calls: list[tuple[str, str]] = []
    for part in parts:
        choice = json.loads(part)["choices"][0]
        delta = choice.get("delta") or choice.get("message") or choice
        text += delta.get("content") or delta.get("text", "")
        for call in delta.get("tool_calls") or ():
            calls.append((call["function"]["name"], call["function"]["arguments"]))
    return answer_text(text, calls)


class Oracle:
    """One engine in this process, which answers one request after the other."""

    def __init__(self, model: Model) -> None:
        assert model.tokenizer is not None
        self._model = model
        self._tokenizer = model.tokenizer
        self._template = InferenceEngine(model, CONTEXT).chat_format
        self._ends = end_ids(self._tokenizer, self._template) | model.stop_ids
        self._grammars = Grammars(self._tokenizer, self._ends)

    def close(self) -> None:
        self._grammars.close()

    def answer(self, fields: dict[str, Any]) -> str:
        """Return the answer to a body."""
        content = json.dumps(fields).encode()
        style = None
        grammar: Grammar | None = None
        body: ChatBody | CompletionBody
        if "messages" in fields:
            body = parse_body(content, ChatBody)
            messages = [message.as_message() for message in body.messages]
            tools, callable_tools = body.offered_tools()
            template = self._template
            ids = encode_chat(
                self._tokenizer, messages, chat_format=template, tools=tools
            )
            if callable_tools:
                style = template.call_form
                assert style is not None
                must = body.tool_choice == "required"
                special_ids = self._tokenizer.special_tokens
                calls_text = grammar_of_calls(
                    style, callable_tools, must, True, special_ids
                )
                grammar = Grammar("lark", calls_text)
        else:
            body = parse_body(content, CompletionBody)
            begins = self._tokenizer.adds_bos
            ids = self._tokenizer.encode(fields["prompt"], bos=begins, eos=False)
        if body.response_format is not None:
            grammar = body.response_format.as_grammar()
        is_chat = "messages" in fields
        steps = InferenceEngine(self._model, CONTEXT).generate(
            ids,
            body.max_tokens,
            body.sampling({})[0],
            fields["stop"],
            end_ids=self._ends if is_chat else (),
            new_text=is_chat,
            mask=None if grammar is None else self._grammars.mask(grammar),
        )
        text = "".join(step.text for step in steps)
        calls: list[ToolCall] = []
        if style is not None:
            text, calls = split_calls(style, text)
        return answer_text(text, [(call.name, call.arguments) for call in calls])


def kind_of(body: dict[str, Any]) -> str:
    """Return what is special about the answer to a body."""
    if "response_format" in body:
        return "by a grammar"
    if body.get("tool_choice", "none") != "none":
        return "with functions"
    return "of text"


class Asking:
    """Asks a server, from many threads, and counts what happens."""

    def __init__(self, server: Running, result: Result) -> None:
        self._server = server
        self._result = result
        self._lock = threading.Lock()

    def _count(self, event: str) -> None:
        with self._lock:
            self._result.events[event] += 1

    def ask(self, client: Client) -> str | None:
        """Return the answer; None of a client that leaves, is refused or fails."""
        try:
            return self._ask(client)
        except Exception as error:  # noqa: BLE001  (each is a finding)
            self._result.wrong.append(f"{client}: {error!r}")
            return None

    def _ask(self, client: Client) -> str | None:
        chance = random.Random(client.seed)
        behaviour = client.behaviour
        self._count(behaviour)
        content = json.dumps(client.body).encode()
        path = CHAT if "messages" in client.body else TEXT
        if behaviour == "sends a malformed body":
            content = chance.choice(MALFORMED)
            path = CHAT
        if behaviour == "asks for slow masks":
            form = {"type": "grammar", "grammar": AMBIGUOUS}
            body = _HI | {"response_format": form, "max_tokens": 300, "temperature": 2.0}
            content = json.dumps(body).encode()
            path = CHAT
        for _ in range(200):
            with closing(self._connection(client)) as connection:
                declared = len(content)
                if behaviour == "cuts the body":
                    content = content[: chance.randrange(len(content))]
                headers = JSON | {"Content-Length": str(declared)}
                connection.request("POST", path, content, headers)
                if behaviour.startswith(("leaves", "cuts")):
                    self._leave(connection, behaviour, chance)
                    return None
                response = connection.getresponse()
                received = self._read(response, behaviour)
            if response.status != 429:
                break
            self._count(f"429 {json.loads(received)['error']['code']}")
            time.sleep(chance.random())
        if behaviour == "sends a malformed body":
            assert response.status == 400, (response.status, content[:200])
            return None
        if behaviour == "asks for slow masks":
            assert response.status in (200, 400), received
            self._count(f"slow masks: {response.status}")
            return None
        assert response.status == 200, received
        return text_of(received, client.body["stream"])

    def _connection(self, client: Client) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(
            "127.0.0.1", self._server.port, timeout=600, source_address=(client.source, 0)
        )

    def _leave(
        self,
        connection: http.client.HTTPConnection,
        behaviour: str,
        chance: random.Random,
    ) -> None:
        """Leave as the client does; every second one resets the connection."""
        stream = connection.sock
        if behaviour == "leaves in the response":
            # The server may refuse the request.
            connection.getresponse().read(chance.randrange(1, 2000))
        if behaviour in ("leaves at a random time", "cuts the body"):
            time.sleep(10 ** chance.uniform(-3, 0))
        if chance.random() < 0.5:
            with suppress(OSError):  # the response may have ended the connection
                stream.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )

    @staticmethod
    def _read(response: http.client.HTTPResponse, behaviour: str) -> bytes:
        is_slow = behaviour == "reads slowly"
        received = b""
        while part := response.read1(300 if is_slow else 1 << 16):
            received += part
            if is_slow:
                time.sleep(0.005)
        return received


def read_server(
    server: Running, requests: int, started: float, first: Reading | None
) -> Reading:
    """Return what the server holds once it is idle.

    The counts have some seconds to become those of the first reading.
    """
    wait_until(server.is_idle)
    wait_until(lambda: server.metric("blocks_used") == 0)
    wait_until(lambda: len(grammar_processes(server)) <= 1 + MOST_KEPT)
    for _ in range(10):
        pids = grammar_processes(server)
        reading = Reading(
            requests,
            time.monotonic() - started,
            server.resident(),
            server.descriptors(),
            server.threads(),
            len(pids),
            sum(map(_resident, pids)),
        )
        if first is None or not reading.has_more_than(first):
            break
        time.sleep(1)
    return reading


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages << 12


def soak(
    directory: Path,
    model: Model,
    count: int,
    first: int,
    sample: int,
    seed: int,
    flags: Sequence[str] = (),
) -> Result:
    """Ask a new server, and compare a sample of its answers.

    Args:
        directory: Empty, for the files of the server.
        model: The bundled model.
        count: The number of requests.
        first: The number of requests between readings.
        sample: How many answers are compared.
        seed: The seed of all clients.
        flags: More flags of the server.
    """
    result = Result()
    clients = mixed_clients(count, seed)
    answers: list[str | None] = []
    with (
        running(directory, "-c", str(CONTEXT), *flags) as server,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        asking = Asking(server, result)
        started = time.monotonic()
        for begin in range(0, count, first):
            answers += pool.map(asking.ask, clients[begin : begin + first])
            earliest = result.readings[0] if result.readings else None
            result.readings.append(read_server(server, len(answers), started, earliest))
            print_reading(result.readings[-1])
        result.cached_tokens = int(server.metric("cached_tokens_total"))
    finished = [
        (client, answer)
        for client, answer in zip(clients, answers, strict=True)
        if client.behaviour in FINISHES and answer is not None
    ]
    result.events["finished"] = len(finished)
    oracle = Oracle(model)
    try:
        for client, answer in random.Random(seed).sample(
            finished, min(sample, len(finished))
        ):
            expected = oracle.answer(client.body)
            result.compared[kind_of(client.body)] += 1
            result.characters += len(expected)
            if answer != expected:
                result.wrong.append(
                    f"{client.body}: expected {expected!r}, got {answer!r}"
                )
    finally:
        oracle.close()
    return result


def print_reading(reading: Reading) -> None:
    print(
        f"| {reading.requests} | {reading.seconds:.0f} | {reading.resident >> 10} "
        f"| {reading.descriptors} | {reading.threads} | {reading.processes} "
        f"| {reading.processes_resident >> 10} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument(
        "--first", type=int, default=FIRST, help="requests between readings"
    )
    parser.add_argument(
        "--sample", type=int, default=500, help="answers that are compared"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--share-prefixes", action="store_true", help="start the server with it"
    )
    options = parser.parse_args()
    print(
        "| requests | seconds | resident KiB | descriptors | threads | grammar processes "
        "| their KiB |\n|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as directory:
        result = soak(
            Path(directory),
            load_model(),
            options.requests,
            options.first,
            options.sample,
            options.seed,
            ["--share-prefixes"] * options.share_prefixes,
        )
    print(f"cached tokens: {result.cached_tokens}")
    print("; ".join(f"{name}: {count}" for name, count in sorted(result.events.items())))
    compared = ", ".join(
        f"{count} {kind}" for kind, count in sorted(result.compared.items())
    )
    print(f"answers compared: {compared}; {result.characters} characters")
    for fault in result.faults:
        print(fault)
    return int(bool(result.faults))


if __name__ == "__main__":
    sys.exit(main())
