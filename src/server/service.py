"""The model behind the endpoints: access rules and shared resources."""

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
from ..model import InterventionError, Interventions, LoadedAdapter
from ..model.interventions import has_ranks, parse_intervention
from ..tokenizer import Tokenizer
from .bodies import AdapterScale
from .errors import RequestError
from .gate import Gate
from .inside import AnswerPages

_METRICS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
# Matches the Host header of requests to this machine: `localhost` or an address.
_LOCAL_HOST = re.compile(
    r"(?:localhost|[\d.]+|\[[\da-f:.]+\])(?::\d*)?", re.ASCII | re.IGNORECASE
)
WORKERS = 3  # number of threads that parse bodies and encode texts
# Maximum numbers of large bodies in memory: in total and per client.
_LARGE_BODIES = 4
_LARGE_BODIES_EACH = 2
COMPILERS = 2  # number of threads that wait for grammars to be compiled
T = TypeVar("T")


@dataclass(frozen=True)
class Sender:
    """The sender of a request.

    Attributes:
        client: An API key, or an address if the server has no keys.
        connection: An object that identifies the connection.
    """

    client: Hashable
    connection: Hashable


@dataclass(frozen=True)
class ServedModel:
    """The model as it appears to clients.

    Attributes:
        name: The name that clients use.
        chat_format: The chat template, or None if the model cannot chat.
        loading: The arguments with which `load_model` loads the model for `/explorer`, or
            None.
        sampling: The sampling settings used if a request omits them, by `SamplingArgs`
            field.
        adapters: The LoRA adapters, each with the scale used if a request omits `lora`.
    """

    name: str
    chat_format: ChatTemplate | None
    loading: dict[str, Any] | None
    sampling: Mapping[str, float]
    adapters: Sequence[tuple[LoadedAdapter, float]] = ()


@dataclass(frozen=True)
class Access:
    """The access rules, and which data clients share.

    Attributes:
        api_keys: The accepted keys. Empty if no key is required.
        is_local: Whether the server listens on a local address. If so, and if no key is
            required, it rejects requests with another Host. Such requests come from web
            pages of a site whose name resolves to this address.
        shares_prefixes: Whether all clients share cached prefixes. If so, timings and
            counts of cached tokens reveal other clients' prompts.
    """

    api_keys: Sequence[str]
    is_local: bool
    shares_prefixes: bool


class Service(Collector):
    """The model behind the endpoints.

    Args:
        engine: The engine. Its model must have a tokenizer.
        served: The model as it appears to clients.
        access: The access rules.
        log: Called with a line about each failure, for the server's operator.
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
        self.adapters = served.adapters
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
        """Yield the engine's current counters for Prometheus."""
        counters = self.engine.counters()
        for name, hint in get_type_hints(Counters, include_extras=True).items():
            kind, text = hint.__metadata__
            yield _METRICS[kind](f"llama_bolts_{name}", text, getattr(counters, name))

    def close(self) -> None:
        """End the compiler processes and the waiting threads; keep the engine open."""
        self._grammars.close(kills=True)
        self._compiler_threads.shutdown(wait=False, cancel_futures=True)

    def check(self, request: Request, is_open: bool) -> Hashable:
        """Return the client of a request, identified by its key or else its address.

        Raises RequestError if a header is invalid or the server is shutting down. An
        `is_open` endpoint does not require a key.
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
        """Run a function in a thread when it is the client's turn; return its result."""
        async with self._workers.place(client):
            return await _run_in(None, partial(function, *arguments))

    def _key_of(self, request: Request) -> bytes | None:
        """Return the digest of the request's key if the key is valid, or None."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        sent = key.strip().encode("utf-8", "replace") if kind.lower() == "bearer" else b""
        digest = _digest(sent)
        equal = [each for each in self._keys if hmac.compare_digest(digest, each)]
        return equal[0] if equal else None

    def check_content_type(self, request: Request) -> None:
        """Raise RequestError unless a body is JSON or cannot come from another site.

        Without a CORS preflight, a page of another site can send bodies with no type or
        with a type other than JSON. Its browser then adds `Origin` or `Sec-Fetch-*`
        headers, and the page does not know the API key.
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

    @property
    def adapted_names(self) -> list[str]:
        """The names of the model with one adapter, such as `model+adapter`."""
        return [f"{self.name}+{adapter.name}" for adapter, _ in self.adapters]

    def check_model(self, name: str | None) -> None:
        """Raise RequestError if a request names another model."""
        if name not in (None, self.name, *self.adapted_names):
            message = f'model: expected "{self.name}" or no model, got "{name}"'
            raise RequestError(404, message, "model", "model_not_found")

    def interventions_of(self, texts: Sequence[str] | None) -> Interventions:
        """Return the interventions of a request.

        Raises:
            RequestError: A text is not valid, or its place is inside of attention and
                several processes run the model.
        """
        if not texts:
            return ()
        model = self.engine.model
        interventions = []
        for number, text in enumerate(texts):
            key = f"interventions[{number}]"
            try:
                intervention = parse_intervention(model, text)
                intervention.check_positions(self.engine.sequence_length)
            except InterventionError as error:
                message = f"{key}: {str(error).removeprefix('[intervene] ')}"
                raise RequestError(400, message, key, "invalid_value") from None
            if intervention.address.place.is_spelled_out and has_ranks(model):
                expected = "expected a place outside of attention with several processes"
                message = f"{key}: {expected}, got {intervention.address.text}"
                raise RequestError(400, message, key, "invalid_value")
            interventions.append(intervention)
        return tuple(interventions)

    def adapters_of(
        self, name: str | None, scales: Sequence[AdapterScale] | None
    ) -> tuple[tuple[LoadedAdapter, float], ...]:
        """Return the adapters of a request, each with its scale.

        A name `model+adapter` selects one adapter, with its default scale, or 1 if that
        is 0. Otherwise `scales` selects them, and an adapter that it omits has the scale
        0. Without both, all adapters have their default scales.

        Raises:
            RequestError: The name is unknown, an id is unknown or repeated, or both are
                given.
        """
        self.check_model(name)
        if name in self.adapted_names:
            if scales is not None:
                message = f'lora: expected no value with the model "{name}"'
                raise RequestError(400, message, "lora", "invalid_value")
            adapter, scale = self.adapters[self.adapted_names.index(name)]
            return ((adapter, scale or 1.0),)
        if scales is None:
            return tuple(self.adapters)
        for place, each in enumerate(scales):
            if each.id >= len(self.adapters):
                message = f"lora: expected ids below {len(self.adapters)}, got {each.id}"
                raise RequestError(400, message, "lora", "invalid_value")
            if each.id in [other.id for other in scales[:place]]:
                message = f"lora: expected each id once, got {each.id} again"
                raise RequestError(400, message, "lora", "invalid_value")
        return tuple((self.adapters[each.id][0], each.scale) for each in scales)

    def check_length(self, text: str, param: str) -> None:
        """Reject a text that cannot fit, since encoding it would delay other answers."""
        least = len(text.encode("utf-8", "replace")) // self._longest
        positions = self.engine.sequence_length
        if least >= positions:
            sizes = f"at least {least} tokens, and the context has {positions}"
            message = f"the prompt does not fit: {sizes}"
            raise RequestError(400, message, param, "context_length_exceeded")

    def prefix_group(self, sender: Sender, cache_key: str | None) -> Hashable:
        """Return the group of requests that share cached prefixes with a request.

        Requests in a group have the same API key. Without keys, they use the same
        connection or have the same `prompt_cache_key`.
        """
        if self._shares_prefixes:
            return None
        if self._keys:
            return sender.client
        return sender.connection if cache_key is None else ("prompt_cache_key", cache_key)

    def use_grammar(self, grammar: Grammar, client: Hashable) -> GrammarUse:
        """Return a client's use of a grammar."""
        return self._grammars.use(grammar, client)

    async def compile_grammar(self, use: GrammarUse, client: Hashable) -> CompiledGrammar:
        """Compile a grammar when it is the client's turn."""
        async with self._compilers.place(client):
            return await _run_in(self._compiler_threads, use.compile)


async def _run_in(threads: ThreadPoolExecutor | None, function: Callable[[], T]) -> T:
    """Run a function in a thread pool and return its result.

    If `threads` is None, the default pool is used. A thread cannot be ended, so a
    cancelled task still waits for the function.
    """
    job = asyncio.get_running_loop().run_in_executor(threads, function)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        raise


def _digest(key: bytes) -> bytes:
    # Digests have equal lengths, so that comparisons reveal nothing about the keys.
    return hashlib.sha256(key).digest()


def _network(request: Request) -> Hashable:
    """Return a client's address, or for IPv6 the /64 network that belongs to one user."""
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
