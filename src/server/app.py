"""The endpoints, and what stands before and behind each of them."""

import asyncio
import base64
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from .. import __version__
from ..ml.errors import LlamaBoltsError
from .answers import CHAT_BEGIN, Answer, ChatAnswer, Chunk, Run, token_name
from .bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    ExplorerBody,
    Generation,
    TokenizeBody,
    parsed,
)
from .errors import RequestError, encode, refusal
from .service import Limits, Service

_FINGERPRINT = f"llama-bolts-{__version__}"
# A body beyond the limit is still read up to this, so that its client hears of it.
_DRAIN_FACTOR = 4
# What nginx calls the status of a client that went away; nobody gets it.
_GONE = 499
T = TypeVar("T")
B = TypeVar("B", bound=Generation)
Endpoint = Callable[[Service, Request], Awaitable[Response]]


def create_app(service: Service) -> Starlette:
    """Return the application of a service, for any ASGI server."""
    routes = [
        Route(path, _guarded(service, endpoint), methods=[method])
        for path, method, endpoint in (
            ("/v1/chat/completions", "POST", partial(_generate, ChatBody, Service.chat_answers)),
            ("/v1/completions", "POST", partial(_generate, CompletionBody, Service.text_answers)),
            ("/v1/models", "GET", _models),
            ("/v1/models/{name:path}", "GET", _models),
            ("/health", "GET", _health),
            ("/metrics", "GET", _metrics),
            ("/tokenize", "POST", _tokenize),
            ("/detokenize", "POST", _detokenize),
            ("/", "GET", _page),
            ("/explorer", "POST", _look_inside),
            ("/explorer/{name}", "GET", _inside),
        )
    ]

    async def refuse(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        what = {404: "there is no such path", 405: "the path has another method"}
        return RequestError(error.status_code, what.get(error.status_code, "refused")).response()

    return Starlette(routes=routes, exception_handlers={HTTPException: refuse})


def _guarded(
    service: Service, endpoint: Endpoint
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Return an endpoint that checks the header first and turns each error into a response."""

    async def answer(request: Request) -> Response:
        route = request.scope["route"].path
        try:
            service.check(request)
            if service.is_closing:
                raise RequestError(503, "the server is shutting down", None, "shutting_down")
            response = await endpoint(service, request)
        except ClientDisconnect:
            response = Response(status_code=_GONE)
        except LlamaBoltsError as error:
            param = "messages" if request.url.path.startswith("/v1/chat") else "prompt"
            response = _refusal(service, error, param).response()
        except Exception as error:  # noqa: BLE001 - a fault is one line here, and 500 there
            service.log(f"{route}: internal fault: {error!r}")
            response = RequestError(500, "internal fault; the server's log says where").response()
        service.metrics.note_response(route, response.status_code)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    return answer


def _refusal(service: Service, error: Exception, param: str | None = None) -> RequestError:
    """Return what a client is told of an error; what only the server can mend is logged."""
    told = refusal(error, param)
    if told.code in ("failed", "out_of_memory"):
        service.log(str(error) or repr(error))
    return told


async def _generate(
    kind: type[B], answers_of: Callable[[Service, B], Sequence[Answer]], service: Service,
    request: Request,
) -> Response:  # fmt: skip
    """Run what a body asks for; return the answers, or their stream."""
    body = await _body(service, request, kind)
    service.check_model(body.model)
    answers = await service.apart(answers_of, service, body)
    run = Run(service.engine, answers, service.limits.answer_seconds, service.metrics)
    begin, *kinds = answers[0].names
    name = f"{begin}-{secrets.token_hex(12)}"
    head = {
        "id": name,
        "object": kinds[bool(body.stream)],
        "created": int(time.time()),
        "model": service.name,
        "system_fingerprint": _FINGERPRINT,
        "seed": answers[0].sampling.seed,
    }
    try:
        chunks = run.chunks()
        first = await _until_gone(request, anext(chunks))
        if body.stream:
            events = _events(service, run, head, first, chunks, body.includes_usage)
            return _EventStream(events, service.limits, run)
        await _until_gone(request, _drained(chunks))
    except BaseException:
        run.close()
        raise
    run.close()
    service.insides.remember(name, answers[0])
    choices = [{"index": index} | answer.choice() for index, answer in enumerate(answers)]
    return _json(head | {"choices": choices, "usage": run.usage()})


async def _drained(chunks: AsyncIterator[Any]) -> None:
    async for _ in chunks:
        pass


async def _events(
    service: Service,
    run: Run,
    head: Chunk,
    first: list[Chunk],
    chunks: AsyncIterator[list[Chunk]],
    includes_usage: bool,
) -> AsyncIterator[bytes]:
    """Yield the events of a stream; an error is the last one."""
    usage = {"usage": None} if includes_usage else {}

    def events(choices: list[Chunk]) -> bytes:
        return b"".join(_event(head | {"choices": [choice]} | usage) for choice in choices)

    try:
        if isinstance(run.answers[0], ChatAnswer):
            yield events([{"index": index} | CHAT_BEGIN for index in range(len(run.answers))])
        yield events(first)
        async for choices in chunks:
            yield events(choices)
        service.insides.remember(head["id"], run.answers[0])
        if includes_usage:
            yield _event(head | {"choices": [], "usage": run.usage()})
        yield b"data: [DONE]\n\n"
    except LlamaBoltsError as error:
        yield _event(_refusal(service, error).body)


class _EventStream(StreamingResponse):
    """A stream that ends when its client goes away, or takes nothing for too long."""

    def __init__(self, events: AsyncIterator[bytes], limits: Limits, run: Run) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._limits, self._run = limits, run

    async def stream_response(self, send: Send) -> None:
        """Send the events, each within the time that a client may take."""

        async def timed(message: Message) -> None:
            async with asyncio.timeout(self._limits.write_seconds):
                await send(message)

        # After a TimeoutError the server closes the connection: the response is not complete.
        with contextlib.closing(self._run), contextlib.suppress(TimeoutError):
            await super().stream_response(timed)


async def _until_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of work that is ended when the client goes away.

    Raises:
        ClientDisconnect: It did.
    """

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


async def _body(service: Service, request: Request, kind: type[T]) -> T:
    """Read and parse a body.

    Raises:
        RequestError: It is not JSON, is too long or too slow, or its fields are wrong.
    """
    kinds = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kinds != "application/json":
        # A page of another site may send other types without asking first.
        raise RequestError(400, "Content-Type: expected application/json", "Content-Type")
    limits, content = service.limits, bytearray()
    length = request.headers.get("content-length", "0")
    size = int(length) if length.isdecimal() and len(length) < 20 else limits.body * 1000
    if size <= limits.body * _DRAIN_FACTOR:
        size = 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for part in request.stream():
                    size += len(part)
                    if size <= limits.body:
                        content += part
                    elif size > limits.body * _DRAIN_FACTOR:
                        break
        except TimeoutError:
            message = f"the body: expected within {limits.body_seconds:g} seconds"
            raise RequestError(408, message, None, "too_slow") from None
    if size > limits.body:
        message = f"the body: expected at most {limits.body} bytes, got more"
        raise RequestError(413, message, None, "too_large")
    return await service.apart(parsed, bytes(content), kind)


async def _models(service: Service, request: Request) -> Response:
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
        return _json(model)
    return _json({"object": "list", "data": [model]})


async def _health(_service: Service, _request: Request) -> Response:
    """Say that requests are taken."""
    return _json({"status": "ok"})


async def _metrics(service: Service, _request: Request) -> Response:
    """Tell Prometheus all counters."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _tokenize(service: Service, request: Request) -> Response:
    """Turn a text into token ids; none of it becomes a special one."""
    body = await _body(service, request, TokenizeBody)
    adds = body.add_special and service.tokenizer.adds_bos
    ids = await service.apart(lambda: service.tokenizer.encode(body.content, bos=adds, eos=False))
    if not body.with_pieces:
        return _json({"tokens": ids})
    pieces = [{"id": token, "piece": token_name(service.tokenizer, token)} for token in ids]
    return _json({"tokens": pieces})


async def _detokenize(service: Service, request: Request) -> Response:
    """Turn token ids into text."""
    body = await _body(service, request, DetokenizeBody)
    try:
        return _json({"content": await service.apart(service.tokenizer.decode, body.tokens)})
    except LlamaBoltsError as error:
        raise refusal(error, "tokens") from None


async def _look_inside(service: Service, request: Request) -> Response:
    """Run an answer again with a trace; tell where its page is."""
    body = await _body(service, request, ExplorerBody)
    name = await _until_gone(request, service.insides.look(body.id))
    return _json({"path": f"explorer/{name}"})


async def _inside(service: Service, request: Request) -> Response:
    """Show such a page, which has a separate policy."""
    page = service.insides.page(request.path_params["name"])
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return Response(page, headers=headers, media_type="text/html")


async def _page(_service: Service, _request: Request) -> Response:
    """Show the chat page."""
    content, policy = _chat_page()
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache",
               "Referrer-Policy": "no-referrer"}  # fmt: skip
    return Response(content, headers=headers, media_type="text/html")


@cache
def _chat_page() -> tuple[bytes, str]:
    """Return the page, and the policy that allows its script and its style by their hashes."""
    page = Path(__file__).with_name("chat.html").read_bytes()
    rules = []
    for name in ("script", "style"):
        _, _, rest = page.partition(f"<{name}>".encode())
        content, _, _ = rest.partition(f"</{name}>".encode())
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        rules.append(f"{name}-src 'sha256-{digest}'")
    return page, "; ".join((
        *rules, "default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
        "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'",
    ))  # fmt: skip


def _event(data: Any) -> bytes:
    return b"data: " + encode(data) + b"\n\n"


def _json(value: Any) -> Response:
    return Response(encode(value), media_type="application/json")
