"""The HTTP endpoints and their middleware."""

import asyncio
import re
import secrets
from array import array
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from msgspec import Meta
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..inference.answer import token_name
from ..tokenizer import StreamDecoder, Tokenizer
from . import bodies
from .answers import HttpAnswer, chat_answers, text_answers
from .connections import CONNECTION
from .errors import RequestError, encode, refusal
from .responses import EventStream, Holding, PartStream, Run
from .service import Sender, Service

_MOST_BODY = 4 << 20  # maximum body size in bytes; the connection limits the time
# A body above the limit is still read up to this size, because otherwise its client might
# not receive the error.
_MOST_DRAINED = 4 * _MOST_BODY
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
T = TypeVar("T")
# Bodies larger than this many bytes wait for memory, for at most `_PLACE_SECONDS`.
_LARGE_BODY = 256 << 10
_PLACE_SECONDS = 20
_PART = 4096  # number of tokens in each part of a response


@dataclass
class Caller:
    """The sender of a request, and the memory reservation for its large body."""

    sender: Sender
    place: AsyncExitStack
    is_large: bool = False

    @property
    def client(self) -> Hashable:
        """The client that sent the request, identified by a key or an address."""
        return self.sender.client


# Called with a body (or the last part of the path) and the caller. Returns a response or
# its JSON content.
Handler = Callable[[Service, Any, Caller], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An endpoint: a path, its handler, and the checks that precede the handler.

    Attributes:
        path: The path in the syntax of Starlette routes.
        handler: Returns the response.
        body: The type of the body of a POST request. None for GET.
        is_open: Whether requests need no API key. This flag is stored in the endpoint, so
            that the check and the route cannot disagree about a path.
        param: The default field reported in errors of the tokenizer and the engine.
    """

    path: str
    handler: Handler
    body: type | None = None
    is_open: bool = False
    param: str = "prompt"


def create_app(service: Service) -> Starlette:
    """Return a service's application, which any ASGI server can run."""
    # Explorer pages have random names, because a page cannot send the API key.
    endpoints = (
        Endpoint(
            path="/v1/chat/completions",
            handler=partial(_generate, chat_answers),
            body=bodies.ChatBody,
            param="messages",
        ),
        Endpoint(
            path="/v1/completions",
            handler=partial(_generate, text_answers),
            body=bodies.CompletionBody,
        ),
        Endpoint(path="/v1/models", handler=_models),
        Endpoint(path="/v1/models/{name:path}", handler=_models),
        Endpoint(path="/lora-adapters", handler=_adapters),
        Endpoint(path="/health", handler=_health, is_open=True),
        Endpoint(path="/metrics", handler=_metrics),
        Endpoint(path="/tokenize", handler=_tokenize, body=_Tokenize),
        Endpoint(
            path="/detokenize", handler=_detokenize, body=_Detokenize, param="tokens"
        ),
        Endpoint(path="/", handler=_chat_page, is_open=True),
        Endpoint(path="/explorer", handler=_create_page, body=_CreatePage),
        Endpoint(path="/explorer/{name}", handler=_explorer_page, is_open=True),
    )
    for kind in (endpoint.body for endpoint in endpoints if endpoint.body is not None):
        bodies.prepare(kind)
    routes = [
        Route(
            endpoint.path,
            partial(_response, service, endpoint),
            methods=["GET" if endpoint.body is None else "POST"],
        )
        for endpoint in endpoints
    ]

    async def respond_to_error(_request: Request, error: Exception) -> Response:
        return refusal(error, service.log).response()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(NormalPaths)],
        exception_handlers={HTTPException: respond_to_error},
    )
    # A redirect would use the request's Host header, which is not trusted.
    app.router.redirect_slashes = False
    return app


class NormalPaths:
    """Middleware that removes empty path segments: `/v1//models/` is `/v1/models`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request with its normalized path."""
        if scope["type"] == "http":
            scope = {**scope, "path": normal_path(scope["path"])}
        await self._app(scope, receive, send)


def normal_path(path: str) -> str:
    """Return a path without repeated slashes or a trailing slash."""
    return "/" + "/".join(filter(None, path.split("/")))


async def _response(service: Service, endpoint: Endpoint, request: Request) -> Response:
    """Return an endpoint's response, even if an error occurs."""
    try:
        client = service.check(request, endpoint.is_open)
        async with AsyncExitStack() as place:
            connection = request.scope.get("state", {}).get(CONNECTION)
            caller = Caller(Sender(client, connection), place)
            if endpoint.body is None:
                argument = request.path_params.get("name")
            else:
                service.check_content_type(request)
                argument = await _body(service, request, caller, endpoint.body)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_gone(request))
                answer = await endpoint.handler(service, argument, caller)
                watching.cancel()
            if not isinstance(answer, Response):
                answer = Response(encode(answer), media_type="application/json")
            return Holding(answer, place.pop_all()) if caller.is_large else answer
    # A server fault is logged in one line, and the client receives status 500.
    except Exception as error:  # noqa: BLE001
        cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        # A traceback would keep the body and the unsent requests of a stream alive until
        # it is garbage-collected.
        cause.__traceback__ = error.__traceback__ = None
        return refusal(cause, service.log, endpoint.param).response()


async def _gone(request: Request) -> NoReturn:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


async def _generate(
    build: Callable[[Service, Sender, Any], Sequence[HttpAnswer]],
    service: Service,
    body: Any,
    caller: Caller,
) -> Any:
    """Run the request in a body; return the answers or a stream of them."""
    # Errors are raised before the encoding.
    service.adapters_of(body.model, body.lora)
    service.interventions_of(body.interventions)
    # A worker thread is used, because encoding a long text is slow.
    answers = await service.work(caller.client, build, service, caller.sender, body)
    await caller.place.aclose()
    run = Run(service, answers, bool(body.stream))
    options = body.stream_options
    if not body.stream:
        return await run.whole()
    events = run.events(options is not None and bool(options.include_usage))
    await anext(events)
    return EventStream(
        events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _body(service: Service, request: Request, caller: Caller, kind: type[T]) -> T:
    """Read and parse a body, which must first wait for memory if it is large."""
    message = f"the body: expected at most {_MOST_BODY} bytes, got more"
    too_large = RequestError(413, message, None, "too_large")
    if int(request.headers.get("content-length", 0)) > _MOST_DRAINED:  # checked by h11
        raise too_large
    size = 0
    content = bytearray()
    async for part in request.stream():
        size += len(part)
        if size > _LARGE_BODY and not caller.is_large:
            await _take_place(service, caller)
        if size <= _MOST_BODY:
            content += part
        elif size > _MOST_DRAINED:
            break
    if size > _MOST_BODY:
        raise too_large
    return await service.work(caller.client, bodies.parse_body, bytes(content), kind)


async def _take_place(service: Service, caller: Caller) -> None:
    """Reserve memory for a large body until its response has been sent."""
    caller.is_large = True
    try:
        async with asyncio.timeout(_PLACE_SECONDS):
            await caller.place.enter_async_context(
                service.large_bodies.place(caller.client)
            )
    except TimeoutError:
        message = (
            f"the body: expected memory for more than {_LARGE_BODY} bytes within "
            f"{_PLACE_SECONDS} seconds, got none"
        )
        raise RequestError(503, message, None, "busy") from None


async def _models(service: Service, name: str | None, _: Caller) -> Any:
    """Return a description of the model, alone or in a list."""
    service.check_model(name)
    model = {
        "id": name or service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "llama-bolts",
        "context_length": service.engine.sequence_length,
        "activations": service.engine.model.activations,
        "cache_type": service.engine.model.args.cache_type,
    }
    if name is not None:
        return model
    others = [model | {"id": adapted} for adapted in service.adapted_names]
    return {"object": "list", "data": [model, *others]}


async def _adapters(service: Service, _body: None, _: Caller) -> Any:
    """Return the LoRA adapters and their default scales, as llama-server does.

    The path is the name alone, because clients learn nothing about the server's files.
    """
    return [
        {"id": number, "path": adapter.name, "scale": scale}
        for number, (adapter, scale) in enumerate(service.adapters)
    ]


async def _health(service: Service, _body: None, _: Caller) -> Any:
    """Return ok if requests can be answered, or else status 503 with the reason."""
    service.engine.check_ready()
    return {"status": "ok"}


async def _metrics(service: Service, _body: None, _: Caller) -> Response:
    return Response(generate_latest(service), media_type="text/plain; version=0.0.4")


class _Tokenize(bodies.Body):
    content: str
    add_special: bool = False
    with_pieces: bool = False


async def _tokenize(service: Service, body: _Tokenize, caller: Caller) -> Any:
    """Return the token ids of a text without recognizing special tokens in it."""
    tokenizer = service.tokenizer
    bos = body.add_special and tokenizer.adds_bos
    encoded = partial(tokenizer.encode, body.content, bos=bos, eos=False)
    # An array needs only four bytes per token while a long response is sent.
    ids = array("i", await service.work(caller.client, encoded))
    texts = _id_and_text_entries(tokenizer, ids) if body.with_pieces else _id_entries(ids)
    return PartStream(service, caller.client, b'{"tokens":[', texts, b"]}")


def _id_entries(ids: "array[int]") -> Iterator[bytes]:
    """Yield the entries of a JSON list of token ids."""
    for start in range(0, len(ids), _PART):
        separator = b"," if start else b""
        yield separator + encode(ids[start : start + _PART].tolist())[1:-1]


def _id_and_text_entries(tokenizer: Tokenizer, ids: "array[int]") -> Iterator[bytes]:
    """Yield the entries of a JSON list of token ids with their texts."""
    for start in range(0, len(ids), _PART):
        separator = b"," if start else b""
        part = ids[start : start + _PART]
        entries = encode(
            [{"id": token, "piece": token_name(tokenizer, token)} for token in part]
        )
        yield separator + entries[1:-1]


class _Detokenize(bodies.Body):
    tokens: Annotated[list[int], Meta(max_length=bodies.MOST_TOKENS)]


async def _detokenize(service: Service, body: _Detokenize, caller: Caller) -> Any:
    """Return the text of the given token ids."""
    tokenizer = service.tokenizer
    await service.work(caller.client, _check_ids, tokenizer, body.tokens)
    texts = _text_parts(tokenizer, array("i", body.tokens))
    return PartStream(service, caller.client, b'{"content":"', texts, b'"}')


def _check_ids(tokenizer: Tokenizer, ids: Iterable[int]) -> None:
    """Raise TokenizerError for the first id outside the vocabulary."""
    for token in ids:
        if not 0 <= token < tokenizer.vocab_size:
            tokenizer.token_bytes(token)


def _text_parts(tokenizer: Tokenizer, ids: "array[int]") -> Iterator[bytes]:
    """Yield the text of token ids in parts, escaped for a JSON string."""
    decoder = StreamDecoder(tokenizer)
    for start in range(0, len(ids), _PART):
        text = "".join(map(decoder.push, ids[start : start + _PART]))
        yield encode(text)[1:-1]
    yield encode(decoder.finish())[1:-1]


class _CreatePage(bodies.Body):
    id: str


async def _create_page(service: Service, body: _CreatePage, _: Caller) -> Any:
    """Rerun an answer with a trace; return the path of its page."""
    return {"path": f"explorer/{await service.answer_pages.create(body.id)}"}


async def _explorer_page(service: Service, name: str, _: Caller) -> Response:
    """Return an explorer page, which contains its own content security policy."""
    page = dict(service.answer_pages.pages).get(name)
    if page is None:
        raise RequestError(
            404, "name: expected a page of this server, got none (or expired)"
        )
    return Response(page, headers=_PRIVATE, media_type="text/html")


async def _chat_page(_service: Service, _body: None, _: Caller) -> Response:
    """Return the chat page with headers that allow only its own script and style."""
    nonce = secrets.token_urlsafe(16)
    path = Path(__file__).with_name("chat.html")
    policy = (
        f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; default-src 'none'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
        "'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = _PRIVATE | {"Content-Security-Policy": policy}
    page = re.sub("<(script|style)>", rf'<\1 nonce="{nonce}">', path.read_text("utf-8"))
    return Response(page, headers=headers, media_type="text/html")
