"""Many answers at once: each pass of the network takes the newest token of every request."""

import atexit
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Self

from .. import memory
from ..checkpoint import CheckpointError
from ..ml.errors import declared_lack_of_memory
from ..model import Model, NotEnoughMemoryError, kv_cache_bytes
from ..trace import is_on
from .answer_text import Answer, GenerationStats, Patience, Step, TokenMask, check_whole
from .blocks import SIZE, BlockPool, Part, PooledSequence
from .engine import DEFAULT_SEQUENCE_LENGTH
from .errors import (
    ClosedError,
    InferenceError,
    PromptError,
    QueueFullError,
    ThreadRefusedError,
    TimeLimitError,
)
from .sampling import STEPS_OFF, Choice, Logits, Sampler, SamplingArgs, explain_choice
from .speculation import TEXT_STAKE, Drafter, PassCosts, TextIndex
from .turns import Ticket, Turns, to_give_way

# Tokens of a prompt in a pass whose logits are all wanted: rows over the vocabulary take memory.
_EXPLAINED_CHUNK = 64
# How long all requests of a pass wait for masks that are not ready: longer than an ordinary mask
# takes, and far shorter than a pass of a model of 1B. Without another request there is more time.
_MASK_SECONDS, _LONE_MASK_SECONDS = 0.002, 0.05
_CLOSED = "[submit] the engine was closed"

# Takes each step of a request, or the error that ended it.
Deliver = Callable[[Step | Exception], object]


@dataclass(frozen=True)
class Counters:
    """What an engine does (gauges) and did (counters, which only grow)."""

    running: Annotated[int, "gauge", "requests that read their prompt or draw tokens"] = 0
    waiting: Annotated[int, "gauge", "requests in the queue"] = 0
    blocks: Annotated[int, "gauge", "blocks of the cache, of 256 positions each"] = 0
    blocks_used: Annotated[int, "gauge", "blocks of running requests; shared ones count once"] = 0
    blocks_cached: Annotated[int, "gauge", "blocks that keep a prefix of no running request"] = 0
    prompt_tokens: Annotated[int, "counter", "tokens of prompts that were begun"] = 0
    cached_tokens: Annotated[int, "counter", "tokens of prompts that were found in the cache"] = 0
    new_tokens: Annotated[int, "counter", "tokens that were drawn"] = 0
    passes: Annotated[int, "counter", "passes over the weights"] = 0
    finished: Annotated[int, "counter", "answers that came to their end"] = 0
    cancelled: Annotated[int, "counter", "answers that were not wanted any more"] = 0
    failed: Annotated[int, "counter", "answers that ended with an error"] = 0


class Request:
    """One answer of a `BatchEngine`: an iterator of its steps, each of which it waits for.

    The error that ended the answer is raised where its next step would be. After `cancel` there is
    no further step. A request that is not wanted any more is to be cancelled: otherwise it goes on.

    Attributes:
        prompt_choices: For a request with `prompt_candidates`, complete from its first step on: for
            each token of the prompt what the model, without any step of the sampling, held of it;
            None for the first.
        is_over: Whether no step and no error comes any more from the engine.
    """

    def __init__(
        self,
        engine: "BatchEngine",
        answer: Answer,
        explained: int,
        deadline: float,
        deliver: Deliver | None,
        prefix_group: Hashable,
    ) -> None:
        self.prompt_choices: list[Choice | None] | None = [None] if explained else None
        self.is_over = self._is_cancelled = self._is_running = self._is_read = False
        self._engine, self._answer, self._deadline = engine, answer, deadline
        self._prompt_candidates, self._prefix_group = explained, prefix_group
        self._positions = len(answer.ids) + answer.limit - 1  # at most: the last token is not run
        self._items: queue.SimpleQueue[Step | Exception | None] = queue.SimpleQueue()
        self._deliver: Deliver = deliver or self._items.put
        # Its steps from the newest pass, while its mask is not ready.
        self._steps: Iterator[Step | None] | None = None
        self._ticket: Ticket  # once it waits
        self._sequence: PooledSequence  # once it runs

    @property
    def stats(self) -> GenerationStats:
        """Return what it took so far."""
        return self._answer.stats

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        item = None if self._is_cancelled else self._items.get()
        if not isinstance(item, Step) or item.stop_reason is not None:
            self._items.put(None)  # what is read after the end
        if isinstance(item, Step):
            return item
        raise item or StopIteration

    def cancel(self) -> None:
        """End the answer, within the pass that runs now; from any thread, any number of times."""
        with self._engine._changed:
            self._is_cancelled = True
            self._items.put(None)  # for one who waits
            if not self._is_running:
                self._engine._end(self)


class BatchEngine:
    """Answers many prompts at once with one model, each with the bits that it has alone.

    Each pass through the network takes the newest token of every running request, and up to
    `prompt_chunk` tokens of prompts, as rows: the weights are read once for all of them. A request
    joins and leaves between two passes. Clients take turns, and the requests of each begin in the
    order in which they came, as soon as the pool has the blocks that they may need at most; so what
    runs never lacks memory.

    The passes run in a thread of the engine, which begins with the first request and ends with
    `close`; the engine is a context manager that calls it.

    Args:
        model: The model.
        sequence_length: Positions of the context of each request; min(4096, the model's longest)
            by default.
        cache_tokens: Positions of the pool, rounded up to blocks of 256; by default those of
            `max_requests` contexts, but at most half of the free memory.
        max_requests: The most requests that run at once.
        max_waiting: The most requests that wait.
        prompt_chunk: The most tokens of prompts in a pass, for which the others wait.
        speculation: Whether passes that read no prompt check drafts, where that saves time.

    Raises:
        PromptError: A number below 1.
        ModelError: A length that is out of range.
        NotEnoughMemoryError: The pool does not fit; the text has the arithmetic.
    """

    def __init__(
        self,
        model: Model,
        *,
        sequence_length: int | None = None,
        cache_tokens: int | None = None,
        max_requests: int = 16,
        max_waiting: int = 64,
        prompt_chunk: int = SIZE,
        speculation: bool = True,
    ) -> None:
        if sequence_length is None:
            sequence_length = min(DEFAULT_SEQUENCE_LENGTH, model.args.max_context_length)
        check_whole("max_requests", max_requests, 1)
        check_whole("max_waiting", max_waiting, 1)
        check_whole("prompt_chunk", prompt_chunk, 1)
        if cache_tokens is None:
            free, most = memory.available_memory(), max_requests * sequence_length
            if free is not None:
                most = min(most, free // 2 // kv_cache_bytes(model.args, SIZE) * SIZE)
            cache_tokens = max(most, sequence_length)
        check_whole("cache_tokens", cache_tokens, 1)
        self.model, self.sequence_length = model, sequence_length
        self._pool = BlockPool(model, sequence_length, -(-cache_tokens // SIZE))
        self._limits = max_requests, max_waiting, prompt_chunk
        self._speculation = speculation
        # What is known of passes that continue a number of requests.
        self._costs_of = cache(partial(PassCosts, TEXT_STAKE))
        self._changed = threading.Condition()
        self._passing = threading.Lock()  # held while the pool is in use
        self._requests: list[Request] = []  # those that run, then those that wait, as they came
        self._turns = Turns()
        self._thread: threading.Thread | None = None
        self._closes_at: float | None = None
        self._counts = Counter[str]()
        self._patience = Patience(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int | None = None,
        sampling: SamplingArgs | None = None,
        stop: Sequence[str] = (),
        end_ids: Collection[int] = (),
        new_text: bool = False,
        candidates: int = 0,
        *,
        mask: TokenMask | None = None,
        time_limit: float | None = None,
        prompt_candidates: int = 0,
        deliver: Deliver | None = None,
        client: Hashable = None,
        prefix_group: Hashable = None,
    ) -> Request:
        """Let a sequence of tokens be continued; from any thread, without waiting.

        Args:
            prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates: As in
                `InferenceEngine.generate`; the steps are the same, bit for bit.
            mask: Which tokens may be drawn, asked before each draw in the thread of the engine. A
                request whose `SlowMask` is not ready leaves out passes and holds up no other one.
                The other logits become -inf before the sampler and `candidates` see them. What it
                raises ends the request.
            time_limit: Seconds from now. An answer that has begun by then ends with its next step,
                for the reason `time limit`.
            prompt_candidates: How many of the most probable tokens to report for each place of the
                prompt, beside its token. Such a prompt is read without cached tokens.
            deliver: Called in the thread of the engine with each step, and with the error that ends
                the answer, which another call of `submit` may pass; it must not wait. The request
                is then not to be iterated over.
            client: Whose request it is: clients take turns. Where too many requests wait, the
                newest one of the client with the most of them ends with a QueueFullError, if that
                client has at least two more than this one.
            prefix_group: The requests that this one shares cached prefixes with: those of an equal
                group. Only prefixes of the group None are saved.

        Raises:
            QueueFullError: Too many requests wait.
            ClosedError: The engine was closed.
            ThreadRefusedError: The system does not start the thread of the engine.
            InferenceError: A trace is on: it shows one sequence.
            PromptError: The pool never has the positions that the answer may need.
            PromptError, TokenIdError, ContextFullError, CheckpointError: As in
                `InferenceEngine.generate`. What that raises while stepping comes as a step would;
                so does a TimeLimitError if no token was drawn in time, and a ClosedError.
        """
        if is_on():
            raise InferenceError("[submit] a trace shows one sequence: turn it off first")
        check_whole("prompt_candidates", prompt_candidates, 0)
        if time_limit is not None and not time_limit > 0:
            raise PromptError(f"[generate] time_limit must be above 0: got {time_limit!r}")
        given = prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates
        answer = Answer(self.model, self.sequence_length, *given, mask=mask)
        deadline = time.monotonic() + (math.inf if time_limit is None else time_limit)
        request = Request(self, answer, prompt_candidates, deadline, deliver, prefix_group)
        if request._positions > (most := self._pool.blocks * SIZE):
            needed = f"{len(answer.ids)} tokens + {answer.limit} new ones - 1"
            rule = "prompt and answer must fit into the cache"
            raise PromptError(f"[submit] {rule}: {needed} > {most} positions")
        with self._changed:
            self._start()
            request._ticket = self._turns.ticket(client)
            self._make_room(request)
            self._requests.append(request)
            self._changed.notify_all()
        return request

    def _start(self) -> None:
        """Start the thread of the engine if it does not run; the caller holds `_changed`."""
        if self._closes_at is not None:
            raise ClosedError(_CLOSED)
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="BatchEngine", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            text = f"the thread of the engine must start: the system refuses it ({error})"
            raise ThreadRefusedError(f"[submit] {text}") from None
        self._thread = thread
        atexit.register(self.close)

    def check_ready(self) -> None:
        """Check whether a request could be answered now, from any thread.

        Raises:
            ClosedError: The engine was closed.
            ThreadRefusedError: The system does not start the thread of the engine.
            CheckpointError: A weight file was changed since the model was loaded.
        """
        with self._changed:
            self._start()
        self.model.checkpoint.check_unchanged()

    def _make_room(self, request: Request) -> None:
        """End a request that waits if too many do, or raise QueueFullError for this one."""
        waiting = self._requests[self._counts["running"] :]
        if len(waiting) < self._limits[1]:
            return
        error = QueueFullError(f"[submit] {self._limits[1]} requests wait already")
        index = to_give_way([each._ticket for each in waiting], request._ticket.client)
        if index is None:
            raise error
        self._end(waiting[index], error)

    def counters(self) -> Counters:
        """Return what the engine does and did."""
        return Counters(
            waiting=len(self._requests) - self._counts["running"],
            blocks=self._pool.blocks,
            blocks_used=len(self._pool.held) - len(self._pool.unused),
            blocks_cached=len(self._pool.unused),
            **self._counts,
        )

    def save_prompt_cache(self, path: str | Path) -> None:
        """Write the cached prefixes of the group None, between two passes; also after `close`.

        Raises:
            PromptCacheError: The file cannot be written.
        """
        with self._passing:
            self._pool.save(Path(path))

    def load_prompt_cache(self, path: str | Path) -> int:
        """Add the prefixes of a file to the cache, as far as blocks are free.

        Returns:
            How many tokens were read.

        Raises:
            PromptCacheError: It is missing, damaged, or of another model, version or instruction
                set.
        """
        with self._passing:
            return self._pool.load(Path(path))

    @property
    def is_running(self) -> bool:
        """Return whether the thread of the engine runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, timeout: float | None = 0.0, wait: bool = True) -> None:
        """Take no more requests, end those that wait, and after a time those that run.

        They end with a ClosedError.

        Args:
            timeout: Seconds that running requests are given; None for as long as they take.
            wait: Whether to return only after the thread of the engine has ended.
        """
        with self._changed:
            self._closes_at = math.inf if timeout is None else time.monotonic() + timeout
            self._changed.notify_all()
        if not wait:
            return
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            atexit.unregister(self.close)

    def _run(self) -> None:
        """Make passes while there is something to do, until the engine is closed."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._requests or self._closes_at is not None)
                    ends = self._closes_at
                if ends is not None and not (self._counts["running"] and time.monotonic() < ends):
                    break
                with self._passing:
                    self._drop_ended()
                    self._draw_after_masks()
                    self._make_pass()
        finally:
            with self._changed:
                self._closes_at = self._closes_at or 0.0
            for request in [*self._requests]:
                self._end(request, ClosedError(_CLOSED))

    def _drop_ended(self) -> None:
        """End requests that were cancelled or whose time is over, and at last those that wait."""
        now = time.monotonic()
        for request in [*self._requests]:
            is_late = now >= request._deadline
            if request._is_cancelled:
                self._end(request)
            elif is_late and request._is_read:
                request._answer.end_at_next_step("time limit")
            elif is_late:
                error = "[submit] the time limit was over before the first token"
                self._end(request, TimeLimitError(error))
            elif not request._is_running and self._closes_at is not None:
                self._end(request, ClosedError(_CLOSED))

    def _make_pass(self) -> None:
        """Run the newest tokens and a chunk of prompts; let the answers draw from what came."""
        try:
            with declared_lack_of_memory("generate", NotEnoughMemoryError):
                requests, parts = self._chosen_tokens()
                if not requests:
                    return
                started = time.perf_counter()
                rows = self._pool.run(parts)
        except Exception as error:  # noqa: BLE001 (it belongs to those who wait for the pass)
            for request in self._requests[: self._counts["running"] + 1]:
                self._end(request, error)
            return
        seconds = time.perf_counter() - started
        self._counts["passes"] += 1
        drafted = sum(len(ids) - certain for _, ids, certain, _ in parts)
        if all(request._is_read for request in requests):
            self._costs_of(len(requests)).note_pass(drafted, seconds)
        elif len(requests) == 1:
            self._costs_of(1).note_prompt(len(parts[0][1]), seconds)
        self._patience.seconds = _MASK_SECONDS
        for request, logits in zip(requests, rows, strict=True):
            with self._errors_of(request):
                self._take_rows(request, logits, seconds)

    @contextmanager
    def _errors_of(self, request: Request) -> Iterator[None]:
        """End a request with the error that is raised inside."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (it belongs to this request)
            if isinstance(error, CheckpointError):
                self._pool.forget()
            self._end(request, error)

    def _chosen_tokens(self) -> tuple[list[Request], list[Part]]:
        """Return the requests of the next pass, and their parts as `BlockPool.run` takes them."""
        requests, parts = list[Request](), list[Part]()
        running = self._requests[: self._counts["running"]]
        reading = [request for request in running if not request._is_read]
        decoding = [each for each in running if each._is_read and each._steps is None]
        left = self._limits[2]
        while left > 0:
            request = reading.pop(0) if reading else self._admitted()
            if request is None:
                break
            sequence, ids = request._sequence, request._answer.ids
            explains = request.prompt_choices is not None
            start = sequence.length
            chunk = ids[start:][: min(left, _EXPLAINED_CHUNK) if explains else left]
            is_last = start + len(chunk) == len(ids)
            requests.append(request)
            parts.append((sequence, chunk, len(chunk), len(chunk) if explains else int(is_last)))
            left -= len(chunk)
        costs = None if requests or not decoding else self._costs_of(len(decoding))
        drafted = 0
        for request in decoding:
            answer = request._answer
            draft = [] if costs is None else answer.draft(costs, drafted)
            drafted += len(draft)
            requests.append(request)
            parts.append((request._sequence, [answer.newest, *draft], 1, 1 + len(draft)))
        return requests, parts

    def _admitted(self) -> Request | None:
        """Let the request begin whose turn it is, if there is a place for it."""
        with self._changed:
            running = self._counts["running"]
            if running == min(len(self._requests), self._limits[0]):
                return None
            waiting = [each._ticket for each in self._requests[running:]]
            index = self._turns.next(waiting)
            request = self._requests.pop(running + index)
            self._requests.insert(running, request)
            answer, share = request._answer, request.prompt_choices is None
            sequence = self._pool.admit(
                answer.ids, request._positions, share, request._prefix_group
            )
            if sequence is None:
                return None
            request._sequence, request._is_running = sequence, True
            self._turns.begin(request._ticket, {ticket.client for ticket in waiting})
            self._counts["running"] += 1
        answer.stats.cached_tokens = sequence.length
        self._counts["prompt_tokens"] += len(answer.ids)
        self._counts["cached_tokens"] += sequence.length
        return request

    def _take_rows(self, request: Request, rows: Logits, seconds: float) -> None:
        """Let an answer draw from the logits of a pass, and deliver its steps."""
        answer, choices = request._answer, request.prompt_choices
        if request._is_read:
            answer.note_pass(rows, seconds)
        else:
            answer.stats.prefill_seconds += seconds
            if choices is not None:
                sampler, many = Sampler(STEPS_OFF), request._prompt_candidates
                for at, row in enumerate(rows[: len(answer.ids) - len(choices)], len(choices)):
                    choices.append(explain_choice(sampler, row, answer.ids[at], at, many))
            if request._sequence.length < len(answer.ids):
                return
            request._is_read = True
            drafter = Drafter(TextIndex(answer.ids), self._costs_of(1))
            answer.begin(request._sequence, drafter if self._speculation else None)
            rows = rows[-1:]
        request._steps = answer.advance_ready(rows[0], self._patience)
        self._deliver_steps(request)

    def _deliver_steps(self, request: Request) -> None:
        """Deliver the steps of the newest pass, up to one whose mask is not ready."""
        assert request._steps is not None
        for step in request._steps:
            if step is None:
                return
            self._counts["new_tokens"] += 1
            if request._is_cancelled:
                break
            if request._answer.is_over:
                self._end(request)
            request._deliver(step)
        request._steps = None

    def _draw_after_masks(self) -> None:
        """Go on with requests that wait for masks; with nothing else to do, wait for them."""
        running = self._requests[: self._counts["running"]]
        waiting = [request for request in running if request._steps is not None]
        is_alone = len(waiting) == len(self._requests)
        self._patience.seconds = _LONE_MASK_SECONDS if is_alone else 0.0
        for request in waiting:
            with self._errors_of(request):
                self._deliver_steps(request)

    def _end(self, request: Request, error: Exception | None = None) -> None:
        """Give back what a request has, count it, and deliver the error that ended it."""
        with self._changed:
            if request.is_over:
                return
            request.is_over = True
            how = "cancelled" if request._is_cancelled else "failed" if error else "finished"
            self._counts[how] += 1
            if request._is_running:
                self._counts["running"] -= 1
                self._pool.release(request._sequence)
            self._requests.remove(request)
        if error is not None and not request._is_cancelled:
            with suppress(Exception):  # whoever takes it may have gone
                request._deliver(error)
