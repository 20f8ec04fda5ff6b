"""Responses with answers: pass steps from the engine thread to the client."""

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

# Maximum number of steps that a slow client may lag behind. Candidates reduce it.
_MOST_BEHIND = 8192


class Run:
    """The answers of one request, which run concurrently.

    `whole` raises errors of `BatchEngine.submit` and errors that end an answer. `events`
    raises them only before its first event.
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
            "model": answers[0].body.model or service.name,
            "system_fingerprint": f"llama-bolts-{__version__}",
            "seed": answers[0].sampling.seed,
        }

    async def _steps(self) -> AsyncGenerator[tuple[int, Step], None]:
        """Yield each step with the index of its answer, after updating its `ids`."""
        items = asyncio.Queue[tuple[int, Step | Exception]]()

        def put(index: int, item: Step | Exception) -> None:
            if items.qsize() >= _MOST_BEHIND // (1 + self._answers[index].candidates):
                ends.close()
                item = RequestError(
                    408, "the client reads the response too slowly", None, "too_slow"
                )
            items.put_nowait((index, item))

        later: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
        with ExitStack() as ends:
            await self._compile(ends)
            for index, answer in enumerate(self._answers):
                answer.submit(partial(later, put, index))
                ends.callback(answer.submitted.cancel)
            left = len(self._answers)
            while left:
                index, item = await items.get()
                if isinstance(item, Exception):
                    raise item
                self._answers[index].ids.append(item.token_id)
                left -= item.stop_reason is not None
                yield index, item
        first = self._answers[0]
        self._service.answer_pages.record(
            self._head["id"],
            first.prompt_ids,
            first.ids,
            first.sampling,
            self._service.adapters_of(first.body.model, first.body.lora),
            first.body.interventions or (),
        )

    async def _compile(self, ends: ExitStack) -> None:
        """Compile the grammar of the answers, and create a mask for each answer."""
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
            {"index": index} | answer.choice(*steps[index])
            for index, answer in enumerate(self._answers)
        ]
        return self._head | {"choices": choices, "usage": self._usage()}

    async def events(self, includes_usage: bool) -> AsyncGenerator[bytes, None]:
        """Yield an empty event before the first step, then the events of the response.

        An error after the first step becomes the last event.
        """
        usage = {"usage": None} if includes_usage else {}
        async with aclosing(self._steps()) as steps:
            item = await anext(steps, None)
            yield b""
            try:
                while item is not None:
                    index, step = item
                    choice = {"index": index} | self._answers[index].chunk(step)
                    yield _event(self._head | {"choices": [choice]} | usage)
                    item = await anext(steps, None)
                if includes_usage:
                    yield _event(self._head | {"choices": [], "usage": self._usage()})
                yield b"data: [DONE]\n\n"
            except Exception as error:  # noqa: BLE001 - the status has already been sent
                yield _event(refusal(error, self._service.log).body)

    def _usage(self) -> Chunk:
        """Return the token counts. A prompt with several answers is counted once."""
        # The first answer computes the prompt. The others use its cache.
        stats = {
            id(answer.prompt_ids): answer.submitted.stats
            for answer in reversed(self._answers)
        }.values()
        prompt_tokens = sum(each.prompt_tokens for each in stats)
        new_tokens = sum(
            len(answer.ids) for answer in self._answers if answer.body.max_tokens != 0
        )
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": new_tokens,
            "total_tokens": prompt_tokens + new_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(each.cached_tokens for each in stats)
            },
        }


class EventStream(StreamingResponse):
    """An event stream that ends when its client disconnects."""

    media_type = "text/event-stream"
    body_iterator: AsyncGenerator[bytes, None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; end the connection if the client reads them too slowly."""
        async with aclosing(self.body_iterator):
            await super().__call__(scope, receive, send)


class PartStream(StreamingResponse):
    """A JSON response whose parts are generated as the client reads them.

    Args:
        service: The service whose threads generate the parts.
        client: The client, which waits for its turn for each part.
        start, parts, end: The text of the response, in this order.
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
    """A response that releases a place after it has been sent or has failed."""

    def __init__(self, response: Response, place: AsyncExitStack) -> None:
        self._response = response
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        async with self._place:
            await self._response(scope, receive, send)


def _event(data: Any) -> bytes:
    return b"data: " + encode(data) + b"\n\n"
