"""The endpoints, and what stands before and behind each of them."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from msgspec import Meta
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..inference.answer_text import token_name
from . import bodies
from .answers import Answer, chat_answers, text_answers
from .errors import RequestError, encode, refusal
from .responses import EventStream, Run
from .service import Service

# Bytes of a body, and seconds for it to come.
_MOST_BODY, _BODY_SECONDS = 4 << 20, 30
# A body beyond the limit is still read up to this, so that its client hears of it.
_MOST_DRAINED = 4 * _MOST_BODY
# The field that most errors of the tokenizer and the engine are about, where it is not `prompt`.
_PARAMS = {"/v1/chat/completions": "messages", "/detokenize": "tokens"}
_PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
T = TypeVar("T")
# Takes a body, or the last part of the path; returns a response, or what it has as JSON.
Endpoint = Callable[[Service, Any], Awaitable[Any]]


def create_app(service: Service) -> Starlette:
    """Return the application of a service, for any ASGI server."""
    endpoints: tuple[tuple[str, type | None, Endpoint], ...] = (
        ("/v1/chat/completions", bodies.ChatBody, partial(_generate, chat_answers)),
        ("/v1/completions", bodies.CompletionBody, partial(_generate, text_answers)),
        ("/v1/models", None, _models),
        ("/v1/models/{name:path}", None, _models),
        ("/health", None, _health),
        ("/metrics", None, _metrics),
        ("/tokenize", _Tokenize, _tokenize),
        ("/detokenize", _Detokenize, _detokenize),
        ("/", None, _chat_page),
        ("/explorer", _LookInside, _look_inside),
        ("/explorer/{name}", None, _inside),
    )
    routes = [
        Route(
            path, partial(_answered, service, kind, endpoint), methods=["POST" if kind else "GET"]
        )
        for path, kind, endpoint in endpoints
    ]

    async def refuse(_request: Request, error: Exception) -> Response:
        return refusal(error, service.log).response()

    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


async def _answered(
    service: Service, kind: type | None, endpoint: Endpoint, request: Request
) -> Response:
    """Return the response of an endpoint, whose body is of a kind; each error is a response too."""
    try:
        service.check(request)
        asked = await _body(request, kind) if kind else request.path_params.get("name")
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_gone(request))
            answer = await endpoint(service, asked)
            watching.cancel()
    except Exception as error:  # noqa: BLE001 - a fault is one line in the log, and 500 there
        one = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        # Until it is collected, a traceback keeps the body, and the requests of a stream not sent.
        one.__traceback__ = error.__traceback__ = None
        param = _PARAMS.get(request.url.path, "prompt")
        return refusal(one, service.log, param).response()
    is_made = isinstance(answer, Response)
    return answer if is_made else Response(encode(answer), media_type="application/json")


async def _gone(request: Request) -> NoReturn:
    """Wait until the client goes away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    raise ClientDisconnect


async def _generate(
    made: Callable[[Service, Any], Sequence[Answer]], service: Service, body: Any
) -> Any:
    """Run what a body asks for; return the answers, or their stream."""
    service.check_model(body.model)
    answers = await asyncio.to_thread(made, service, body)  # encoding a long text takes a while
    run, options = Run(service, answers, bool(body.stream)), body.stream_options
    if not body.stream:
        return await run.whole()
    events = run.events(options is not None and bool(options.include_usage))
    await anext(events)
    return EventStream(events, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def _body(request: Request, kind: type[T]) -> T:
    """Read and parse a body."""
    kinds = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kinds != "application/json":
        # A page of another site may send other types without asking first.
        raise RequestError(400, "Content-Type: expected application/json", "Content-Type")
    message = f"the body: expected at most {_MOST_BODY} bytes, got more"
    too_large = RequestError(413, message, None, "too_large")
    if int(request.headers.get("content-length", 0)) > _MOST_DRAINED:  # h11 checked it
        raise too_large
    size, content = 0, bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size <= _MOST_BODY:
                    content += part
                elif size > _MOST_DRAINED:
                    break
    except TimeoutError:
        message = f"the body: expected within {_BODY_SECONDS} seconds"
        raise RequestError(408, message, None, "too_slow") from None
    if size > _MOST_BODY:
        raise too_large
    return await asyncio.to_thread(bodies.parsed, bytes(content), kind)


async def _models(service: Service, name: str | None) -> Any:
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


async def _health(_service: Service, _: None) -> Any:
    return {"status": "ok"}


async def _metrics(service: Service, _: None) -> Response:
    return Response(generate_latest(service), media_type="text/plain; version=0.0.4")


class _Tokenize(bodies.Body):
    content: str
    add_special: bool = False
    with_pieces: bool = False


async def _tokenize(service: Service, body: _Tokenize) -> Any:
    """Turn a text into token ids; none of it becomes a special one."""
    tokenizer = service.tokenizer
    bos = body.add_special and tokenizer.adds_bos
    ids = await asyncio.to_thread(tokenizer.encode, body.content, bos=bos, eos=False)
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": token_name(tokenizer, token)} for token in ids]}


class _Detokenize(bodies.Body):
    tokens: Annotated[list[int], Meta(max_length=bodies.MOST_TOKENS)]


async def _detokenize(service: Service, body: _Detokenize) -> Any:
    return {"content": await asyncio.to_thread(service.tokenizer.decode, body.tokens)}


class _LookInside(bodies.Body):
    id: str


async def _look_inside(service: Service, body: _LookInside) -> Any:
    """Run an answer again with a trace; tell where its page is."""
    return {"path": f"explorer/{await service.insides.look(body.id)}"}


async def _inside(service: Service, name: str) -> Response:
    """Show such a page, which has a separate policy."""
    page = dict(service.insides.pages).get(name)
    if page is None:
        raise RequestError(404, "there is no such page any more")
    return Response(page, headers=_PRIVATE, media_type="text/html")


async def _chat_page(_service: Service, _: None) -> Response:
    """Return the page, whose headers allow its script and its style alone."""
    nonce, path = secrets.token_urlsafe(16), Path(__file__).with_name("chat.html")
    policy = (
        f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; default-src 'none'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = _PRIVATE | {"Content-Security-Policy": policy}
    page = re.sub("<(script|style)>", rf'<\1 nonce="{nonce}">', path.read_text("utf-8"))
    return Response(page, headers=headers, media_type="text/html")
