"""One model behind the endpoints: who may ask, and what a body asks the engine for."""

import hashlib
import hmac
import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, get_type_hints

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request

from ..inference import BatchEngine, Counters, GrammarError, SamplingArgs
from ..inference.chat_encoding import FoundFormat, encode_chat, end_ids
from ..inference.chat_formats import CHAT_FORMATS
from ..inference.grammars import Grammar, GrammarMask, Grammars
from ..inference.tools import grammar_of_calls
from ..tokenizer import Tokenizer
from .answers import Answer, ChatAnswer, TextAnswer
from .bodies import ChatBody, CompletionBody, Generation
from .errors import RequestError, encode, refusal
from .inside import Insides

Draws = list[tuple[SamplingArgs, GrammarMask | None]]
_METRICS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Service(Collector):
    """One model behind the endpoints.

    Args:
        engine: Answers; its model has a tokenizer.
        name: What clients call the model.
        chat_format: Of its chats; None where it has none.
        api_key: What clients have to send; None for no key.
        hosts: Names that a request may call the server, beside addresses; None for any.
        loading: The arguments of `load_model` that gave the model, for `/explorer`, or None.
        log: Takes a line about a failure, for the person who runs the server.
    """

    def __init__(
        self,
        engine: BatchEngine,
        name: str,
        chat_format: FoundFormat | None,
        api_key: str | None,
        hosts: frozenset[str] | None,
        loading: dict[str, Any] | None,
        log: Callable[[str], object],
    ) -> None:
        assert engine.model.tokenizer is not None
        self.engine, self.name, self.chat_format = engine, name, chat_format
        self.tokenizer: Tokenizer = engine.model.tokenizer
        self.hosts, self.log = hosts, log
        self.insides = Insides(loading)
        self.is_closing = False
        self.created = int(time.time())
        self._key = None if api_key is None else _digest(api_key.encode())
        ends = end_ids(self.tokenizer, chat_format.name) if chat_format else frozenset()
        self.end_ids = ends | engine.model.stop_ids
        self._grammars: Grammars | None = None
        self._grammars_lock = threading.Lock()
        ids = range(self.tokenizer.vocab_size)
        self._longest = max(map(len, map(self.tokenizer.token_bytes, ids)))
        self.metrics = CollectorRegistry()
        self.metrics.register(self)
        new, name = partial(Histogram, registry=self.metrics, buckets=_SECONDS), "llama_bolts"
        self.first = new(f"{name}_time_to_first_token_seconds", "from a request to its first token")
        self.between = new(f"{name}_time_between_tokens_seconds", "from one token to the next")
        labels = "path", "status"
        self.responses = Counter(f"{name}_responses", "responses", labels, registry=self.metrics)

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
        """Refuse a request by its header.

        Raises:
            RequestError: It has not the key, or calls the server by a name that is not its own, as
                a page of another site does whose name leads to this address; or the server ends.
        """
        host, path = request.headers.get("host", ""), request.url.path
        if self.hosts is not None and not _is_known(host, self.hosts):
            raise RequestError(400, "Host: expected an address or a name of this server", "Host")
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        sent = key.strip().encode("utf-8", "replace") if kind.lower() == "bearer" else b""
        # A page of the explorer has a name that nobody can guess, and no script that sends a key.
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

    def _draws(self, body: Generation, calls: str | None = None) -> Draws:
        """Return the sampling and the mask of each answer to a prompt."""
        samplings, form = body.sampling(), body.response_format
        if form is None and calls is None:
            return [(sampling, None) for sampling in samplings]
        try:
            grammar = form.as_grammar() if form is not None else Grammar("lark", calls or "")
            with self._grammars_lock:
                self._grammars = self._grammars or Grammars(self.tokenizer, self.end_ids)
            return [(sampling, self._grammars.mask(grammar)) for sampling in samplings]
        except GrammarError as error:
            raise refusal(error, self.log, "tools" if calls else "response_format") from None

    def chat_answers(self, body: ChatBody) -> list[Answer]:
        """Return what a body asks for."""
        if self.chat_format is None:
            text = "messages: this model has no chat format: use /v1/completions"
            raise RequestError(400, text, "messages", "unsupported")
        name, messages = self.chat_format.name, [message.as_message() for message in body.messages]
        chat, (tools, callable_ones) = CHAT_FORMATS[name], body.functions()
        if tools and chat.tools is None:
            text = f"tools: the chat format {name} has none"
            raise RequestError(400, text, "tools", "unsupported")
        texts = [m.content for m in messages] + [encode(tool).decode() for tool in tools]
        self._check_length("".join(texts), "messages", len(messages))
        style, calls = chat.tools if callable_ones else None, None
        if style is not None:
            many, must = body.parallel_tool_calls, body.tool_choice not in (None, "auto")
            calls = grammar_of_calls(style, callable_ones, must, many is not False)
        ids = encode_chat(self.tokenizer, messages, chat_format=name, tools=tools)
        top = (body.top_logprobs or 0) if body.logprobs else None
        opened = chat.opens_thought if body.response_format is None else None
        return [
            ChatAnswer(self.tokenizer, ids, sampling, mask, body, top, self.end_ids, opened, style)
            for sampling, mask in self._draws(body, calls)
        ]

    def text_answers(self, body: CompletionBody) -> list[Answer]:
        """Return what a body asks for."""
        made = list[Answer]()
        for prompt in body.prompts():
            if isinstance(prompt, str):
                self._check_length(prompt, "prompt")
                begins, text = self.tokenizer.adds_bos, prompt
                ids = self.tokenizer.encode(prompt, bos=begins, eos=False)
            else:
                ids, text = prompt, self.tokenizer.decode(prompt)
            echo = text if body.echo else None
            made += [
                TextAnswer(self.tokenizer, ids, sampling, mask, body, body.logprobs, echo)
                for sampling, mask in self._draws(body)
            ]
        return made

    def _check_length(self, text: str, param: str, least: int = 0) -> None:
        """Refuse a text that cannot fit before the time is spent to encode it."""
        least += len(text.encode("utf-8", "replace")) // self._longest
        positions = self.engine.sequence_length
        if least >= positions:
            message = f"the prompt does not fit: at least {least} tokens >= {positions} positions"
            raise RequestError(400, message, param, "context_length_exceeded")


def _is_known(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header holds an address, or one of the names."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() in names
    return True


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()  # of one length, so that comparing tells none
