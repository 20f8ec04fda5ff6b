"""One model behind the endpoints: who may ask, and what a body asks the engine for."""

import asyncio
import hashlib
import hmac
import ipaddress
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from ..inference import (
    CHAT_FORMATS,
    BatchEngine,
    FoundFormat,
    GrammarError,
    SamplingArgs,
    encode_chat,
    end_ids,
)
from ..inference.grammars import Grammar, GrammarMask, Grammars
from ..inference.tools import grammar_of_calls
from ..tokenizer import Tokenizer
from .answers import ChatAnswer, TextAnswer
from .bodies import ChatBody, CompletionBody, Generation
from .errors import RequestError, encode, refusal
from .inside import Insides
from .metrics import Metrics

T = TypeVar("T")
Draw = tuple[SamplingArgs, GrammarMask | None]


class Service:
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
        tokenizer = engine.model.tokenizer
        assert tokenizer is not None
        self.engine, self.name, self.chat_format = engine, name, chat_format
        self.tokenizer: Tokenizer = tokenizer
        self.hosts, self.log = hosts, log
        self.metrics = Metrics(engine)
        self.insides = Insides(loading)
        self.is_closing = False
        self.created = int(time.time())
        self._key = None if api_key is None else _digest(api_key.encode())
        ends = end_ids(tokenizer, chat_format.name) if chat_format else tokenizer.stop_ids
        self.end_ids = ends | engine.model.stop_ids
        self._grammars: Grammars | None = None
        self._grammars_lock = threading.Lock()
        self._longest = max(map(len, map(tokenizer.token_bytes, range(tokenizer.vocab_size))))
        # Encoding a long text takes a while: it is done beside the event loop.
        self._pool = ThreadPoolExecutor(2, "request")

    def close(self) -> None:
        """End the threads and processes that it started; the engine belongs to the caller."""
        self._pool.shutdown(cancel_futures=True)
        if self._grammars is not None:
            self._grammars.close()

    async def apart(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def check(self, request: Request) -> None:
        """Refuse a request by its header.

        Raises:
            RequestError: It has not the key, or calls the server by a name that is not its own, as
                a page of another site does whose name leads to this address.
        """
        host = request.headers.get("host", "")
        if self.hosts is not None and not _is_known(host, self.hosts):
            raise RequestError(400, "Host: expected an address or a name of this server", "Host")
        path = request.url.path
        # A page of the explorer has a name that nobody can guess, and no script that sends a key.
        if self._key is None or path in ("/", "/health") or path.startswith("/explorer/"):
            return
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(
            _digest(key.strip().encode("utf-8", "replace")), self._key
        ):
            message = "Authorization: expected Bearer and the server's key"
            raise RequestError(401, message, None, "invalid_api_key")

    def refusal(self, error: Exception, param: str | None = None) -> RequestError:
        """Return what a client is told of an error; what only the server can mend is logged."""
        told = refusal(error, param)
        if told.code in ("failed", "out_of_memory"):
            self.log(str(error) or repr(error))
        return told

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not the one that runs."""
        if name is not None and name != self.name:
            message = f"model: expected {self.name}, got {name}"
            raise RequestError(404, message, "model", "model_not_found")

    def _draws(self, body: Generation, calls: str | None = None) -> list[Draw]:
        """Return the sampling and the mask of each answer to a prompt."""
        samplings, form = body.sampling(), body.response_format
        if form is None and calls is None:
            return [(sampling, None) for sampling in samplings]
        try:
            grammar = form.as_grammar() if form is not None else Grammar("lark", calls or "")
            with self._grammars_lock:
                if self._grammars is None:
                    self._grammars = Grammars(self.tokenizer, self.end_ids)
            return [(sampling, self._grammars.mask(grammar)) for sampling in samplings]
        except GrammarError as error:
            raise refusal(error, "response_format" if calls is None else "tools") from None

    def chat_answers(self, body: ChatBody) -> list[ChatAnswer]:
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
        return [
            ChatAnswer(
                tokenizer=self.tokenizer, prompt_ids=ids, most_tokens=body.max_tokens,
                sampling=sampling, stop=body.stop or (), alternatives=body.alternatives, mask=mask,
                end_ids=end_ids(self.tokenizer, name), style=style,
                opened=chat.opens_thought if body.response_format is None else None,
            )
            for sampling, mask in self._draws(body, calls)
        ]  # fmt: skip

    def text_answers(self, body: CompletionBody) -> list[TextAnswer]:
        """Return what a body asks for."""
        made = list[TextAnswer]()
        for prompt in body.prompts():
            if isinstance(prompt, str):
                self._check_length(prompt, "prompt")
                begins, text = self.tokenizer.adds_bos, prompt
                ids = self.tokenizer.encode(prompt, bos=begins, eos=False)
            else:
                ids, text = prompt, self.tokenizer.decode(prompt)
            made += [
                TextAnswer(
                    tokenizer=self.tokenizer, prompt_ids=ids, most_tokens=body.max_tokens,
                    sampling=sampling, stop=body.stop or (), alternatives=body.logprobs, mask=mask,
                    echo=text if body.echo else None,
                )
                for sampling, mask in self._draws(body)
            ]  # fmt: skip
        return made

    def _check_length(self, text: str, param: str, least: int = 0) -> None:
        """Refuse a text that cannot fit before the time is spent to encode it."""
        least += len(text.encode("utf-8", "replace")) // self._longest
        positions = self.engine.sequence_length
        if least >= positions:
            message = f"the prompt does not fit: at least {least} tokens >= {positions} positions"
            raise RequestError(400, message, param, "context_length_exceeded")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_known(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header holds an address, or one of the names."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() in names
    return True
