"""One model behind the endpoints: who may ask, and what all requests share."""

import hashlib
import hmac
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request

from ..inference import BatchEngine, ChatFormat, Counters, end_ids
from ..inference.grammars import Grammar, GrammarMask, Grammars
from ..tokenizer import Tokenizer
from .errors import RequestError
from .inside import Insides

_METRICS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
# The Host of a request that names no other site: `localhost` or an address.
_LOCAL_HOST = re.compile(r"(?:localhost|[\d.]+|\[[\da-f:.]+\])(?::\d*)?", re.ASCII | re.IGNORECASE)


class Service(Collector):
    """One model behind the endpoints.

    Args:
        engine: Answers; its model has a tokenizer.
        name: What clients call the model.
        chat_format: Of its chats; None where it has none.
        api_key: What clients have to send; None for no key.
        is_local: Whether it listens at a local address. Without a key it then refuses requests for
            another host, which come from pages of a site whose name leads to this address.
        loading: The arguments of `load_model` that gave the model, for `/explorer`, or None.
        log: Takes a line about a failure, for the person who runs the server.
    """

    def __init__(
        self,
        engine: BatchEngine,
        name: str,
        chat_format: ChatFormat | None,
        api_key: str | None,
        is_local: bool,
        loading: dict[str, Any] | None,
        log: Callable[[str], object],
    ) -> None:
        assert engine.model.tokenizer is not None
        self.engine, self.name, self.chat_format, self.log = engine, name, chat_format, log
        self.tokenizer: Tokenizer = engine.model.tokenizer
        self.insides = Insides(loading)
        self.is_closing, self.created = False, int(time.time())
        self._key = None if api_key is None else _digest(api_key.encode())
        self._checks_host = api_key is None and is_local
        ends = end_ids(self.tokenizer, chat_format.name) if chat_format else frozenset()
        self.end_ids = ends | engine.model.stop_ids
        self._grammars: Grammars | None = None
        self._grammars_lock = threading.Lock()
        ids = range(self.tokenizer.vocab_size)
        self._longest = max(map(len, map(self.tokenizer.token_bytes, ids)))

    def collect(self) -> Iterator[Metric]:
        """Yield the counters of the engine as they are now, for Prometheus."""
        counters = self.engine.counters()
        for name, hint in get_type_hints(Counters, include_extras=True).items():
            kind, text = hint.__metadata__
            yield _METRICS[kind](f"llama_bolts_{name}", text, getattr(counters, name))

    def close(self) -> None:
        """End the process that it started; the engine belongs to the caller."""
        if self._grammars is not None:
            self._grammars.close()

    def check(self, request: Request) -> None:
        """Refuse a request by its header, or because the server ends, with a RequestError."""
        if self._checks_host and not _LOCAL_HOST.fullmatch(request.headers.get("host", "")):
            raise RequestError(400, "Host: expected an address or a name of this server", "Host")
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        sent = key.strip().encode("utf-8", "replace") if kind.lower() == "bearer" else b""
        # A page of the explorer has a name that nobody can guess, and no script that sends a key.
        path = request.url.path
        is_open = path in ("/", "/health") or path.startswith("/explorer/")
        if not (is_open or self._key is None or hmac.compare_digest(_digest(sent), self._key)):
            message = "Authorization: expected Bearer and the server's key"
            raise RequestError(401, message, None, "invalid_api_key")
        if self.is_closing:
            raise RequestError(503, "the server is shutting down", None, "shutting_down")

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not the one that runs."""
        if name is not None and name != self.name:
            message = f"model: expected {self.name}, got {name}"
            raise RequestError(404, message, "model", "model_not_found")

    def check_length(self, text: str, param: str) -> None:
        """Refuse a text that cannot fit; to encode it would hold up the answers to others."""
        least = len(text.encode("utf-8", "replace")) // self._longest
        positions = self.engine.sequence_length
        if least >= positions:
            message = f"the prompt does not fit: at least {least} tokens >= {positions} positions"
            raise RequestError(400, message, param, "context_length_exceeded")

    def mask(self, grammar: Grammar) -> GrammarMask:
        """Return the mask of an answer; from any thread. Raise GrammarError as `Grammars` does."""
        with self._grammars_lock:
            self._grammars = self._grammars or Grammars(self.tokenizer, self.end_ids)
        return self._grammars.mask(grammar)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()  # of one length, so that comparing tells none
