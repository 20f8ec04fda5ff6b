"""The endpoints, and what stands before and behind each of them."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..inference.answer_text import token_name
from . import bodies
from .answers import Answer, chat_answers, text_answers
from .errors import RequestError, encode, refusal
from .responses import EventStream, Run, until_gone
from .service import Service

# Bytes of a body, and seconds for it to come.
_MOST_BODY, _BODY_SECONDS = 4 << 20, 30
# A body beyond the limit is still read up to this, so that its client hears of it.
_MOST_DRAINED = 4 * _MOST_BODY
# The field that most errors of the tokenizer and the engine are about, where it is not `prompt`.
_PARAMS = {"/v1/chat/completions": "messages", "/detokenize": "tokens"}
T = TypeVar("T")
# Returns a response, or what it has as JSON.
Endpoint = Callable[[Service, Request], Awaitable[Any]]


def create_app(service: Service) -> Starlette:
    """Return the application of a service, for any ASGI server."""
    routes = [
        Route(path, partial(_answered, service, endpoint), methods=[method])
        for path, method, endpoint in (
            ("/v1/chat/completions", "POST", partial(_generate, bodies.ChatBody, chat_answers)),
            ("/v1/completions", "POST", partial(_generate, bodies.CompletionBody, text_answers)),
            ("/v1/models", "GET", _models),
            ("/v1/models/{name:path}", "GET", _models),
            ("/health", "GET", _health),
            ("/metrics", "GET", _metrics),
            ("/tokenize", "POST", _tokenize),
            ("/detokenize", "POST", _detokenize),
            ("/", "GET", _chat_page),
            ("/explorer", "POST", _look_inside),
            ("/explorer/{name}", "GET", _inside),
        )
    ]

    async def refuse(_request: Request, error: Exception) -> Response:
        return refusal(error, service.log).response()

    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


async def _answered(service: Service, endpoint: Endpoint, request: Request) -> Response:
    """Return the response of an endpoint, after a look at the header; each error is one too."""
    try:
        service.check(request)
        answer = await endpoint(service, request)
        is_made = isinstance(answer, Response)
        response = answer if is_made else Response(encode(answer), media_type="application/json")
    except Exception as error:  # noqa: BLE001 - a fault is one line in the log, and 500 there
        param = _PARAMS.get(request.url.path, "prompt")
        response = refusal(error, service.log, param).response()
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


async def _generate(
    kind: type[T],
    made: Callable[[Service, T], Sequence[Answer]],
    service: Service,
    request: Request,
) -> Any:
    """Run what a body asks for; return the answers, or their stream."""
    body: Any = await _body(request, kind)
    service.check_model(body.model)
    answers = await asyncio.to_thread(made, service, body)  # encoding a long text takes a while
    with ExitStack() as ends:
        run = Run(service, answers, bool(body.stream), ends)
        if not body.stream:
            return await until_gone(request, run.whole())
        options = body.stream_options
        events = run.events(options is not None and bool(options.include_usage))
        await until_gone(request, anext(events))
        return EventStream(events, ends.pop_all())


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


async def _models(service: Service, request: Request) -> Any:
    """Tell of the model, alone or as a list."""
    model = {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "llama-bolts",
        "context_length": service.engine.sequence_length,
    }
    if "name" in request.path_params:
        service.check_model(request.path_params["name"])
        return model
    return {"object": "list", "data": [model]}


async def _health(_service: Service, _request: Request) -> Any:
    return {"status": "ok"}


async def _metrics(service: Service, _request: Request) -> Response:
    return Response(generate_latest(service.metrics), media_type="text/plain; version=0.0.4")


class _Tokenize(bodies.Body):
    content: str
    add_special: bool = False
    with_pieces: bool = False


async def _tokenize(service: Service, request: Request) -> Any:
    """Turn a text into token ids; none of it becomes a special one."""
    body, tokenizer = await _body(request, _Tokenize), service.tokenizer
    bos = body.add_special and tokenizer.adds_bos
    ids = await asyncio.to_thread(tokenizer.encode, body.content, bos=bos, eos=False)
    if not body.with_pieces:
        return {"tokens": ids}
    return {
        "tokens": [{"id": token, "piece": token_name(service.tokenizer, token)} for token in ids]
    }


class _Detokenize(bodies.Body):
    tokens: Annotated[list[int], Meta(max_length=bodies.MOST_TOKENS)]


async def _detokenize(service: Service, request: Request) -> Any:
    body = await _body(request, _Detokenize)
    return {"content": await asyncio.to_thread(service.tokenizer.decode, body.tokens)}


class _LookInside(bodies.Body):
    id: str


async def _look_inside(service: Service, request: Request) -> Any:
    """Run an answer again with a trace; tell where its page is."""
    body = await _body(request, _LookInside)
    name = await until_gone(request, service.insides.look(body.id))
    return {"path": f"explorer/{name}"}


async def _inside(service: Service, request: Request) -> Response:
    """Show such a page, which has a separate policy."""
    page = dict(service.insides.pages).get(request.path_params["name"])
    if page is None:
        raise RequestError(404, "there is no such page any more")
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return Response(page, headers=headers, media_type="text/html")


async def _chat_page(_service: Service, _request: Request) -> Response:
    """Return the page, whose headers allow its script and its style alone."""
    nonce, path = secrets.token_urlsafe(16), Path(__file__).with_name("chat.html")
    policy = (
        f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; default-src 'none'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    headers["Content-Security-Policy"] = policy
    page = re.sub("<(script|style)>", rf'<\1 nonce="{nonce}">', path.read_text("utf-8"))
    return Response(page, headers=headers, media_type="text/html")
