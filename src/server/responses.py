"""The response to a request for answers: from the engine's thread to the client."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from .. import __version__
from ..inference import Step
from .answers import Answer, Chunk
from .errors import RequestError, encode, refusal
from .service import Service

_WRITE_SECONDS = 30.0  # for a client to take some of a stream
# What a client that does not read may be behind, in steps, of which one with candidates takes more.
_MOST_BEHIND = 8192
T = TypeVar("T")


class Run:
    """Several answers in the making, within the event loop; `ends` takes what ends their requests.

    An error of `BatchEngine.submit` is raised here, one that ends an answer by `whole`, and by
    `events` before the first one.
    """

    def __init__(
        self, service: Service, answers: Sequence[Answer], is_stream: bool, ends: ExitStack
    ) -> None:
        self._service, self._answers = service, answers
        self._items: asyncio.Queue[tuple[int, Step | Exception]] = asyncio.Queue()
        begin, *kinds = answers[0].names
        self._head: Chunk = {
            "id": f"{begin}-{secrets.token_hex(12)}",
            "object": kinds[is_stream],
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": f"llama-bolts-{__version__}",
            "seed": answers[0].sampling.seed,
        }
        for mask in (one.mask for one in answers if one.mask is not None):
            ends.callback(mask.close)
        later: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
        for index, one in enumerate(answers):
            one.submit(partial(later, self._put, index))
            ends.callback(one.request.cancel)

    def _put(self, index: int, item: Step | Exception) -> None:
        if self._items.qsize() >= _MOST_BEHIND // (1 + self._answers[0].candidates):
            for answer in self._answers:
                answer.request.cancel()
            item = RequestError(408, "the client reads too slowly", None, "too_slow")
        self._items.put_nowait((index, item))

    async def _steps(self) -> AsyncIterator[tuple[int, Step]]:
        """Yield all steps, each with the number of its answer; its token is in `ids` by then."""
        first, left = self._answers[0], len(self._answers)
        while left:
            index, item = await self._items.get()
            if isinstance(item, Exception):
                raise item
            self._answers[index].ids.append(item.token_id)
            left -= item.stop_reason is not None
            yield index, item
        self._service.insides.remember(
            self._head["id"], first.prompt_ids, first.ids, first.sampling
        )

    async def whole(self) -> Chunk:
        """Return a response that is not streamed."""
        steps = [list[Step]() for _ in self._answers]
        async for index, step in self._steps():
            steps[index].append(step)
        choices = [{"index": at} | one.choice(*steps[at]) for at, one in enumerate(self._answers)]
        return self._head | {"choices": choices, "usage": self._usage()}

    async def events(self, includes_usage: bool) -> AsyncIterator[bytes]:
        """Yield an empty event when there is a step, then the events; an error is the last one."""
        steps, usage = self._steps(), {"usage": None} if includes_usage else {}
        found = await anext(steps, None)
        yield b""
        try:
            while found is not None:
                index, step = found
                choice = {"index": index} | self._answers[index].chunk(step)
                yield _event(self._head | {"choices": [choice]} | usage)
                found = await anext(steps, None)
            if includes_usage:
                yield _event(self._head | {"choices": [], "usage": self._usage()})
            yield b"data: [DONE]\n\n"
        except Exception as error:  # noqa: BLE001 - no status can tell of it any more
            yield _event(refusal(error, self._service.log).body)

    def _usage(self) -> Chunk:
        """Return the counts of tokens; a prompt with several answers counts once."""
        # The first answer reads the prompt, the others find it.
        stats = {id(one.prompt_ids): one.request.stats for one in reversed(self._answers)}.values()
        asked = sum(one.prompt_tokens for one in stats)
        made = sum(len(one.ids) for one in self._answers if one.body.max_tokens != 0)
        return {
            "prompt_tokens": asked,
            "completion_tokens": made,
            "total_tokens": asked + made,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in stats)},
        }


class EventStream(StreamingResponse):
    """A stream that ends when its client goes away, or takes nothing for too long."""

    def __init__(self, events: AsyncIterator[bytes], ends: ExitStack) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._ends = ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events, each within the time that a client may take."""

        async def timed(message: Message) -> None:
            async with asyncio.timeout(_WRITE_SECONDS):
                await send(message)

        # After a TimeoutError, which may come as ClientDisconnect, the server closes the
        # connection: the response is not complete.
        with self._ends, suppress(TimeoutError, ClientDisconnect):
            await super().__call__(scope, receive, timed)


async def until_gone(request: Request, work: Awaitable[T]) -> T:
    """Return the result of work; raise ClientDisconnect when the client goes away before it."""

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
        working.cancel()
        watching.cancel()


def _event(data: Any) -> bytes:
    return b"data: " + encode(data) + b"\n\n"
