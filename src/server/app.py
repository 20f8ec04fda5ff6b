"""The endpoints, and what stands before and behind each of them."""

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

_MOST_BODY = 4 << 20  # bytes; the time for them is limited by the connection
# A body beyond the limit is still read up to this, so that its client hears of it.
_MOST_DRAINED = 4 * _MOST_BODY
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
T = TypeVar("T")
# Bytes above which a body waits for a place in memory, and seconds that it waits.
_LARGE_BODY = 256 << 10
_PLACE_SECONDS = 20
_PART = 4096  # tokens that are turned into a part of a response at a time


@dataclass
class Caller:
    """Who sends a request, and the place that a large body takes."""

    sender: Sender
    place: AsyncExitStack
    is_large: bool = False

    @property
    def client(self) -> Hashable:
        """Return the client who sends the request: a key or an address."""
        return self.sender.client


# Takes a body, or the last part of the path, and the caller; returns a response, or its
# JSON.
Handler = Callable[[Service, Any, Caller], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An endpoint: a path, its handler, and the checks before the handler.

    Attributes:
        path: As Starlette's routes write it.
        handler: Makes the response.
        body: The type of the body of a POST; None for a GET.
        is_open: Whether it answers without the API key. The flag belongs to the endpoint
            that is routed, so that no second reading of the path can disagree with the
            route.
        param: The field that most errors of the tokenizer and the engine are about.
    """

    path: str
    handler: Handler
    body: type | None = None
    is_open: bool = False
    param: str = "prompt"


def create_app(service: Service) -> Starlette:
    """Return the application of a service, for any ASGI server."""
    # A page of the explorer has a name that nobody can guess, and no script that sends a
    # key.
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
        Endpoint(path="/health", handler=_health, is_open=True),
        Endpoint(path="/metrics", handler=_metrics),
        Endpoint(path="/tokenize", handler=_tokenize, body=_Tokenize),
        Endpoint(
            path="/detokenize", handler=_detokenize, body=_Detokenize, param="tokens"
        ),
        Endpoint(path="/", handler=_chat_page, is_open=True),
        Endpoint(path="/explorer", handler=_look_inside, body=_LookInside),
        Endpoint(path="/explorer/{name}", handler=_inside, is_open=True),
    )
    for kind in (endpoint.body for endpoint in endpoints if endpoint.body is not None):
        bodies.prepare(kind)
    routes = [
        Route(
            endpoint.path,
            partial(_answered, service, endpoint),
            methods=["GET" if endpoint.body is None else "POST"],
        )
        for endpoint in endpoints
    ]

    async def refuse(_request: Request, error: Exception) -> Response:
        return refusal(error, service.log).response()

    app = Starlette(
        routes=routes,
        middleware=[Middleware(NormalPaths)],
        exception_handlers={HTTPException: refuse},
    )
    # A redirect would lead to the Host of the request, which may be any.
    app.router.redirect_slashes = False
    return app


class NormalPaths:
    """Gives the application each path without empty parts: `/v1//models/` as
    `/v1/models`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its normal path."""
        if scope["type"] == "http":
            scope = {**scope, "path": normal_path(scope["path"])}
        await self._app(scope, receive, send)


def normal_path(path: str) -> str:
    """Return a path without repeated slashes and without a slash at its end."""
    return "/" + "/".join(filter(None, path.split("/")))


async def _answered(service: Service, endpoint: Endpoint, request: Request) -> Response:
    """Return the response of an endpoint; each error is a response too."""
    try:
        client = service.check(request, endpoint.is_open)
        async with AsyncExitStack() as place:
            connection = request.scope.get("state", {}).get(CONNECTION)
            caller = Caller(Sender(client, connection), place)
            if endpoint.body is None:
                asked = request.path_params.get("name")
            else:
                service.check_content_type(request)
                asked = await _body(service, request, caller, endpoint.body)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_gone(request))
                answer = await endpoint.handler(service, asked, caller)
                watching.cancel()
            if not isinstance(answer, Response):
                answer = Response(encode(answer), media_type="application/json")
            return Holding(answer, place.pop_all()) if caller.is_large else answer
    # A fault is one line in the log, and the status 500 for the client.
    except Exception as error:  # noqa: BLE001
        one = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        # Until it is collected, a traceback keeps the body, and the requests of a stream
        # not sent.
        one.__traceback__ = error.__traceback__ = None
        return refusal(one, service.log, endpoint.param).response()


async def _gone(request: Request) -> NoReturn:
    """Wait until the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


async def _generate(
    made: Callable[[Service, Sender, Any], Sequence[HttpAnswer]],
    service: Service,
    body: Any,
    caller: Caller,
) -> Any:
    """Run what a body asks for; return the answers, or their stream."""
    service.check_model(body.model)
    # Encoding a long text takes a while.
    answers = await service.work(caller.client, made, service, caller.sender, body)
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
    """Read and parse a body; a large one waits for a place first."""
    message = f"the body: expected at most {_MOST_BODY} bytes, got more"
    too_large = RequestError(413, message, None, "too_large")
    if int(request.headers.get("content-length", 0)) > _MOST_DRAINED:  # h11 checked it
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
    return await service.work(caller.client, bodies.parsed, bytes(content), kind)


async def _take_place(service: Service, caller: Caller) -> None:
    """Wait for a place for a large body, which its client has until the response is
    sent.
    """
    caller.is_large = True
    try:
        async with asyncio.timeout(_PLACE_SECONDS):
            await caller.place.enter_async_context(
                service.large_bodies.place(caller.client)
            )
    except TimeoutError:
        message = (
            f"a place for a body of more than {_LARGE_BODY} bytes: expected one within "
        )
        message += f"{_PLACE_SECONDS} seconds"
        raise RequestError(503, message, None, "busy") from None


async def _models(service: Service, name: str | None, _: Caller) -> Any:
    """Tell of the model, alone or as a list."""
    model = {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "llama-bolts",
        "context_length": service.engine.sequence_length,
    }
    service.check_model(name)
    return {"object": "list", "data": [model]} if name is None else model


async def _health(service: Service, _body: None, _: Caller) -> Any:
    """Tell whether a request could be answered; an error is 503 with the reason."""
    service.engine.check_ready()
    return {"status": "ok"}


async def _metrics(service: Service, _body: None, _: Caller) -> Response:
    return Response(generate_latest(service), media_type="text/plain; version=0.0.4")


class _Tokenize(bodies.Body):
    content: str
    add_special: bool = False
    with_pieces: bool = False


async def _tokenize(service: Service, body: _Tokenize, caller: Caller) -> Any:
    """Turn a text into token ids; none of it becomes a special one."""
    tokenizer = service.tokenizer
    bos = body.add_special and tokenizer.adds_bos
    encoded = partial(tokenizer.encode, body.content, bos=bos, eos=False)
    # Four bytes for each token, while a response of any length is sent.
    ids = array("i", await service.work(caller.client, encoded))
    texts = _pieces(tokenizer, ids) if body.with_pieces else _ids(ids)
    return PartStream(service, caller.client, b'{"tokens":[', texts, b"]}")


def _ids(ids: "array[int]") -> Iterator[bytes]:
    """Yield the entries of a JSON list of ids."""
    for start in range(0, len(ids), _PART):
        separator = b"," if start else b""
        yield separator + encode(ids[start : start + _PART].tolist())[1:-1]


def _pieces(tokenizer: Tokenizer, ids: "array[int]") -> Iterator[bytes]:
    """Yield the entries of a JSON list of ids and their texts."""
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
    """Turn token ids into a text."""
    tokenizer = service.tokenizer
    await service.work(caller.client, _check_ids, tokenizer, body.tokens)
    texts = _texts(tokenizer, array("i", body.tokens))
    return PartStream(service, caller.client, b'{"content":"', texts, b'"}')


def _check_ids(tokenizer: Tokenizer, ids: Iterable[int]) -> None:
    """Raise the TokenizerError of the first id that is outside the vocabulary."""
    for token in ids:
        if not 0 <= token < tokenizer.vocab_size:
            tokenizer.token_bytes(token)


def _texts(tokenizer: Tokenizer, ids: "array[int]") -> Iterator[bytes]:
    """Yield the parts of the text of ids, as JSON writes them within a string."""
    decoder = StreamDecoder(tokenizer)
    for start in range(0, len(ids), _PART):
        text = "".join(map(decoder.push, ids[start : start + _PART]))
        yield encode(text)[1:-1]
    yield encode(decoder.finish())[1:-1]


class _LookInside(bodies.Body):
    id: str


async def _look_inside(service: Service, body: _LookInside, _: Caller) -> Any:
    """Run an answer again with a trace; tell where its page is."""
    return {"path": f"explorer/{await service.insides.look(body.id)}"}


async def _inside(service: Service, name: str, _: Caller) -> Response:
    """Show such a page, which has a separate policy."""
    page = dict(service.insides.pages).get(name)
    if page is None:
        raise RequestError(404, "there is no such page any more")
    return Response(page, headers=_PRIVATE, media_type="text/html")


async def _chat_page(_service: Service, _body: None, _: Caller) -> Response:
    """Return the page, whose headers allow its script and its style alone."""
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
