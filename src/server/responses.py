"""The response to a request for answers: from the engine's thread to the client."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..inference import GrammarError, Step
from ..inference.grammars import GrammarMask
from .answers import Chunk, HttpAnswer, grammar_param
from .errors import RequestError, encode, refusal
from .service import Service

# What a client that does not read may be behind, in steps, of which one with candidates
# takes more.
_MOST_BEHIND = 8192


class Run:
    """Several answers in the making, within the event loop.

    Errors of `BatchEngine.submit`, and one that ends an answer, are raised by `whole`,
    and by `events` before the first one.
    """

    def __init__(
        self, service: Service, answers: Sequence[HttpAnswer], is_stream: bool
    ) -> None:
        self._service = service
        self._answers = answers
        begin, *kinds = answers[0].names
        self._head: Chunk = {
            "id": f"{begin}-{secrets.token_hex(12)}",
            "object": kinds[is_stream],
            "created": int(time.time()),
            "model": service.name,
            "system_fingerprint": f"llama-bolts-{__version__}",
            "seed": answers[0].sampling.seed,
        }

    async def _steps(self) -> AsyncGenerator[tuple[int, Step], None]:
        """Yield all steps, each with the number of its answer; its token is in `ids` by
        then.
        """
        items = asyncio.Queue[tuple[int, Step | Exception]]()

        def put(index: int, item: Step | Exception) -> None:
            if items.qsize() >= _MOST_BEHIND // (1 + self._answers[index].candidates):
                ends.close()
                item = RequestError(408, "the client reads too slowly", None, "too_slow")
            items.put_nowait((index, item))

        later: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
        with ExitStack() as ends:
            await self._compile(ends)
            for index, one in enumerate(self._answers):
                one.submit(partial(later, put, index))
                ends.callback(one.submitted.cancel)
            left = len(self._answers)
            while left:
                index, item = await items.get()
                if isinstance(item, Exception):
                    raise item
                self._answers[index].ids.append(item.token_id)
                left -= item.stop_reason is not None
                yield index, item
        first = self._answers[0]
        self._service.insides.remember(
            self._head["id"], first.prompt_ids, first.ids, first.sampling
        )

    async def _compile(self, ends: ExitStack) -> None:
        """Compile the grammar of the answers, and give each of them a mask."""
        first = self._answers[0]
        if first.grammar is None:
            return
        try:
            use = self._service.use_grammar(first.grammar, first.sender.client)
            ends.callback(use.close)
            compiled = await self._service.compile_grammar(use, first.sender.client)
        except GrammarError as error:
            raise refusal(error, self._service.log, grammar_param(first.body)) from None
        for answer in self._answers:
            answer.mask = GrammarMask(compiled)
            ends.callback(answer.mask.close)

    async def whole(self) -> Chunk:
        """Return a response that is not streamed."""
        steps = [list[Step]() for _ in self._answers]
        async for index, step in self._steps():
            steps[index].append(step)
        choices = [
            {"index": at} | one.choice(*steps[at]) for at, one in enumerate(self._answers)
        ]
        return self._head | {"choices": choices, "usage": self._usage()}

    async def events(self, includes_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield an empty event when there is a step, then the events; an error is the
        last one.
        """
        usage = {"usage": None} if includes_usage else {}
        async with aclosing(self._steps()) as steps:
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
        stats = {
            id(one.prompt_ids): one.submitted.stats for one in reversed(self._answers)
        }.values()
        asked = sum(one.prompt_tokens for one in stats)
        made = sum(len(one.ids) for one in self._answers if one.body.max_tokens != 0)
        return {
            "prompt_tokens": asked,
            "completion_tokens": made,
            "total_tokens": asked + made,
            "prompt_tokens_details": {
                "cached_tokens": sum(one.cached_tokens for one in stats)
            },
        }


class EventStream(StreamingResponse):
    """A stream that ends when its client goes away."""

    media_type = "text/event-stream"
    body_iterator: AsyncGenerator[bytes, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the connection ends if the client takes too few of them."""
        async with aclosing(self.body_iterator):
            await super().__call__(scope, receive, send)


class PartStream(StreamingResponse):
    """A response of JSON whose parts are made one by one, as the client takes them.

    Args:
        service: Has the threads that make the parts.
        client: Whose turn it is for each part.
        start, parts, end: The texts of the response, in this order.
    """

    media_type = "application/json"

    def __init__(
        self,
        service: Service,
        client: Hashable,
        start: bytes,
        parts: Iterator[bytes],
        end: bytes,
    ) -> None:
        async def content() -> AsyncGenerator[bytes, None]:
            yield start
            while (part := await service.work(client, next, parts, None)) is not None:
                yield part
            yield end

        super().__init__(content())


class Holding(Response):
    """A response that gives a place back when it has been sent, or cannot be."""

    def __init__(self, response: Response, place: AsyncExitStack) -> None:
        self._response = response
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        async with self._place:
            await self._response(scope, receive, send)


def _event(data: Any) -> bytes:
    return b"data: " + encode(data) + b"\n\n"
