"""One model behind the endpoints: access and shared resources."""

import asyncio
import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, get_type_hints

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request

from ..inference import BatchEngine, ChatTemplate, Counters, end_ids
from ..inference.grammars import CompiledGrammar, Grammar, Grammars, GrammarUse
from ..tokenizer import Tokenizer
from .errors import RequestError
from .gate import Gate
from .inside import AnswerPages

_METRICS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
# The Host of a request to this machine: `localhost` or an address.
_LOCAL_HOST = re.compile(
    r"(?:localhost|[\d.]+|\[[\da-f:.]+\])(?::\d*)?", re.ASCII | re.IGNORECASE
)
WORKERS = 3  # threads that parse bodies and encode texts
# The limits of large bodies in memory: in total and per client.
_LARGE_BODIES = 4
_LARGE_BODIES_EACH = 2
COMPILERS = 2  # threads that wait for the compilation of grammars
T = TypeVar("T")


@dataclass(frozen=True)
class Sender:
    """The sender of a request.

    Attributes:
        client: A key, or an address if the server has no keys.
        connection: An object that identifies the connection.
    """

    client: Hashable
    connection: Hashable


@dataclass(frozen=True)
class ServedModel:
    """The model as clients see it.

    Attributes:
        name: The name that clients use.
        chat_format: The template of its chats; None if it has no chats.
        loading: The arguments of `load_model` for the model, for `/explorer`, or None.
        sampling: The sampling settings of requests that omit them, by the names of
            `SamplingArgs`.
    """

    name: str
    chat_format: ChatTemplate | None
    loading: dict[str, Any] | None
    sampling: Mapping[str, float]


@dataclass(frozen=True)
class Access:
    """Access rules, and data shared among clients.

    Attributes:
        api_keys: The accepted keys; empty if no key is required.
        is_local: Whether the server listens at a local address. Without a key it then
            rejects requests for another host, which come from pages of a site whose name
            resolves to this address.
        shares_prefixes: Whether all clients share cached prefixes, so that timings and
            counts of cached tokens reveal prompts of other clients.
    """

    api_keys: Sequence[str]
    is_local: bool
    shares_prefixes: bool


class Service(Collector):
    """One model behind the endpoints.

    Args:
        engine: The engine, whose model has a tokenizer.
        served: The model as clients see it.
        access: The access rules.
        log: Called with a line about a failure, for the operator of the server.
    """

    def __init__(
        self,
        engine: BatchEngine,
        served: ServedModel,
        access: Access,
        log: Callable[[str], object],
    ) -> None:
        assert engine.model.tokenizer is not None
        self.engine = engine
        self.name = served.name
        self.chat_format = served.chat_format
        self.log = log
        self.tokenizer: Tokenizer = engine.model.tokenizer
        self.answer_pages = AnswerPages(served.loading)
        self.sampling = served.sampling
        self.is_closing = False
        self.created = int(time.time())
        self._keys = [_digest(key.encode()) for key in access.api_keys]
        self._checks_host = not self._keys and access.is_local
        self._shares_prefixes = access.shares_prefixes or len(self._keys) == 1
        self._workers = Gate(WORKERS, WORKERS)
        self._compilers = Gate(COMPILERS, 1)
        self._compiler_threads = ThreadPoolExecutor(COMPILERS, "grammar")
        self.large_bodies = Gate(_LARGE_BODIES, _LARGE_BODIES_EACH)
        chat_format = served.chat_format
        ends = end_ids(self.tokenizer, chat_format) if chat_format else frozenset()
        self.end_ids = ends | engine.model.stop_ids
        self._grammars = Grammars(self.tokenizer, self.end_ids)
        ids = range(self.tokenizer.vocab_size)
        self._longest = max(map(len, map(self.tokenizer.token_bytes, ids)))

    def collect(self) -> Iterator[Metric]:
        """Yield the present counters of the engine, for Prometheus."""
        counters = self.engine.counters()
        for name, hint in get_type_hints(Counters, include_extras=True).items():
            kind, text = hint.__metadata__
            yield _METRICS[kind](f"llama_bolts_{name}", text, getattr(counters, name))

    def close(self) -> None:
        """End the compiler processes and the waiting threads; keep the engine open."""
        self._grammars.close(kills=True)
        self._compiler_threads.shutdown(wait=False, cancel_futures=True)

    def check(self, request: Request, is_open: bool) -> Hashable:
        """Return the client of a request: a key, or the address without keys.

        Raise a RequestError for an invalid header or during shutdown. An `is_open`
        endpoint does not require a key.
        """
        if self._checks_host and not _LOCAL_HOST.fullmatch(
            request.headers.get("host", "")
        ):
            raise RequestError(
                400, "Host: expected an address or a name of this server", "Host"
            )
        key = self._key_of(request)
        if not (is_open or key is not None or not self._keys):
            message = "Authorization: expected Bearer and the server's key"
            raise RequestError(401, message, None, "invalid_api_key")
        if self.is_closing:
            raise RequestError(503, "the server is shutting down", None, "shutting_down")
        return _network(request) if key is None else key

    async def work(
        self, client: Hashable, function: Callable[..., T], *arguments: Any
    ) -> T:
        """Return the result of a function, run in a thread at the client's turn."""
        async with self._workers.place(client):
            return await _run_in(None, partial(function, *arguments))

    def _key_of(self, request: Request) -> bytes | None:
        """Return the digest of the valid key in a request, or None."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        sent = key.strip().encode("utf-8", "replace") if kind.lower() == "bearer" else b""
        digest = _digest(sent)
        equal = [each for each in self._keys if hmac.compare_digest(digest, each)]
        return equal[0] if equal else None

    def check_content_type(self, request: Request) -> None:
        """Raise a RequestError unless a body is JSON or cannot come from a foreign page.

        A page of another site can post bodies of other types, or without a type, without
        a preflight. Its browser then sends `Origin` or `Sec-Fetch-*`, and the page has no
        key.
        """
        headers = request.headers
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_from_page = "origin" in headers or any(
            name.startswith("sec-fetch-") for name in headers
        )
        if kind == "" and (self._key_of(request) is not None or not is_from_page):
            return
        if kind != "application/json":
            got = f'"{kind}"' if kind else "none"
            message = f"Content-Type: expected application/json, got {got}"
            raise RequestError(400, message, "Content-Type")

    def check_model(self, name: str | None) -> None:
        """Raise a RequestError for a name other than the name of the model."""
        if name is not None and name != self.name:
            message = f'model: expected "{self.name}" or no model, got "{name}"'
            raise RequestError(404, message, "model", "model_not_found")

    def check_length(self, text: str, param: str) -> None:
        """Reject a text that cannot fit, whose encoding would delay other answers."""
        least = len(text.encode("utf-8", "replace")) // self._longest
        positions = self.engine.sequence_length
        if least >= positions:
            sizes = f"at least {least} tokens, and the context has {positions}"
            message = f"the prompt does not fit: {sizes}"
            raise RequestError(400, message, param, "context_length_exceeded")

    def prefix_group(self, sender: Sender, cache_key: str | None) -> Hashable:
        """Return the group of requests that share cached prefixes with a request.

        They have the same API key. Without keys, they use the same connection, or have
        the same `prompt_cache_key`.
        """
        if self._shares_prefixes:
            return None
        if self._keys:
            return sender.client
        return sender.connection if cache_key is None else ("prompt_cache_key", cache_key)

    def use_grammar(self, grammar: Grammar, client: Hashable) -> GrammarUse:
        """Return the use of a grammar by a client."""
        return self._grammars.use(grammar, client)

    async def compile_grammar(self, use: GrammarUse, client: Hashable) -> CompiledGrammar:
        """Compile a grammar when it is the client's turn."""
        async with self._compilers.place(client):
            return await _run_in(self._compiler_threads, use.compile)


async def _run_in(threads: ThreadPoolExecutor | None, function: Callable[[], T]) -> T:
    """Return the result of a function run in a pool, or in the default pool.

    A thread cannot be ended, so that a cancelled task still waits for it.
    """
    job = asyncio.get_running_loop().run_in_executor(threads, function)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        raise


def _digest(key: bytes) -> bytes:
    # equal lengths, so that comparisons reveal nothing
    return hashlib.sha256(key).digest()


def _network(request: Request) -> Hashable:
    """Return the address of a client; for IPv6 the /64 network of one user."""
    if request.client is None:
        return None
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return request.client.host
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or ipaddress.ip_network(
        (address.packed[:8] + bytes(8), 64)
    )
