"""An engine that generates many answers concurrently, with batched forward passes."""

import atexit
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from .. import memory
from ..checkpoint import CheckpointError
from ..ml import ScaledAdapters
from ..ml.errors import declared_lack_of_memory
from ..model import Model, NotEnoughMemoryError, kv_cache_bytes
from ..trace import is_on
from .answer import Answer, GenerationStats, Patience, Step, check_whole
from .blocks import SIZE, BlockPool, Part
from .engine import DEFAULT_SEQUENCE_LENGTH
from .errors import (
    ClosedError,
    InferenceError,
    PromptError,
    QueueFullError,
    ThreadRefusedError,
    TimeLimitError,
)
from .passes import Passes, RunningAnswer
from .prompt_cache import load_pool, save_pool
from .request import Request, TokenMask
from .sampling import Choice, SamplingArgs
from .turns import Ticket, Turns, ticket_to_drop

if TYPE_CHECKING:
    from ..model import Interventions

# Maximum total time that the requests in a pass wait for masks that are not ready. This
# is longer than a typical mask takes, but much shorter than a pass of a 1B model. A
# request that runs alone may wait longer.
_MASK_SECONDS = 0.002
_LONE_MASK_SECONDS = 0.05
_CLOSED = "[submit] the engine was closed"

# A function that receives each step of a request, or the error that ended it.
Deliver = Callable[[Step | Exception], object]


@dataclass(frozen=True)
class Counters:
    """An engine's metrics: gauges of its current state, and counters that only grow."""

    running: Annotated[int, "gauge", "requests that read their prompt or draw tokens"] = 0
    waiting: Annotated[int, "gauge", "requests in the queue"] = 0
    blocks: Annotated[int, "gauge", "blocks of the cache, of 256 positions each"] = 0
    blocks_used: Annotated[
        int, "gauge", "blocks of running requests; shared ones count once"
    ] = 0
    blocks_cached: Annotated[
        int, "gauge", "blocks that keep a prefix of no running request"
    ] = 0
    prompt_tokens: Annotated[int, "counter", "tokens of prompts that were begun"] = 0
    cached_tokens: Annotated[
        int, "counter", "tokens of prompts that were found in the cache"
    ] = 0
    new_tokens: Annotated[int, "counter", "tokens that were drawn"] = 0
    passes: Annotated[int, "counter", "passes over the weights"] = 0
    finished: Annotated[int, "counter", "answers that came to their end"] = 0
    cancelled: Annotated[int, "counter", "answers that were not wanted any more"] = 0
    failed: Annotated[int, "counter", "answers that ended with an error"] = 0


class SubmittedAnswer:
    """An iterator over the steps of one `BatchEngine` answer, which blocks for each step.

    If an error ends the answer, it is raised instead of the next step. Call `cancel` for
    an answer that is no longer needed, because otherwise it runs to completion. There are
    no further steps after `cancel`.

    Attributes:
        is_over: Whether the engine has delivered the last step or an error.
    """

    def __init__(
        self, engine: "BatchEngine", answer: Answer, deliver: Deliver | None
    ) -> None:
        self.is_over = False
        self._engine = engine
        self._answer = answer
        self._is_cancelled = False
        self._items: queue.SimpleQueue[Step | Exception | None] = queue.SimpleQueue()
        self._deliver: Deliver = deliver or self._items.put
        self._ticket: Ticket  # set when the answer is queued
        self._running: RunningAnswer | None = None  # set when the answer starts to run

    @property
    def stats(self) -> GenerationStats:
        """The token counts and timings so far."""
        return self._answer.stats

    @property
    def prompt_choices(self) -> list[Choice | None] | None:
        """The most probable tokens at each position of the prompt, or None.

        They are reported only if `prompt_candidates` was set. The list is complete when
        the first step has been delivered. Its first entry is None.
        """
        return None if self._running is None else self._running.prompt_choices

    @property
    def _is_read(self) -> bool:
        return self._running is not None and self._running.is_read

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        item = None if self._is_cancelled else self._items.get()
        if not isinstance(item, Step) or item.stop_reason is not None:
            self._items.put(None)  # ends later calls of `next`
        if isinstance(item, Step):
            return item
        raise item or StopIteration

    def cancel(self) -> None:
        """End the answer after the current pass.

        Any thread may call this, any number of times.
        """
        with self._engine._changed:
            self._is_cancelled = True
            self._items.put(None)  # wakes up a thread that waits for a step
            if self._running is None:
                self._engine._end(self)


class BatchEngine:
    """Generate many answers concurrently, each bit-identical to one that runs alone.

    Each forward pass processes the newest token of every running request, and up to
    `prompt_chunk` prompt tokens, so the weights are read only once for all of them.
    Requests join and leave between passes. Clients take turns, and the requests of one
    client start in order of arrival. A request starts only when the cache pool can
    provide all blocks that it may need, so a running request never runs out of cache.

    The passes run in the engine thread, which starts with the first request and ends with
    `close`. The engine is a context manager that calls `close`.

    Args:
        model: The model.
        sequence_length: The context length of each request. The default is 4096, or the
            model's maximum context length if that is less.
        cache_tokens: The number of positions in the cache pool, rounded up to blocks of
            256. The default is enough for `max_requests` contexts, but at most half of
            the available memory.
        max_requests: The maximum number of requests that run at the same time.
        max_waiting: The maximum number of requests in the queue.
        prompt_chunk: The maximum number of prompt tokens per pass, which delay all other
            requests.
        speculation: Whether passes without prompt tokens check drafted tokens if that
            saves time.

    Raises:
        PromptError: If a number is less than 1.
        ModelError: If a length is out of range.
        NotEnoughMemoryError: If the cache pool does not fit into memory. The message
            contains the calculation.
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
            free = memory.available_memory()
            most = max_requests * sequence_length
            if free is not None:
                most = min(most, free // 2 // kv_cache_bytes(model.args, SIZE) * SIZE)
            cache_tokens = max(most, sequence_length)
        check_whole("cache_tokens", cache_tokens, 1)
        self.model = model
        self.sequence_length = sequence_length
        self._pool = BlockPool(model, sequence_length, -(-cache_tokens // SIZE))
        self._passes = Passes(self._pool, speculation)
        self._max_requests = max_requests
        self._max_waiting = max_waiting
        self._prompt_chunk = prompt_chunk
        self._changed = threading.Condition()
        self._passing = threading.Lock()  # held while the pool is in use
        # The running answers, followed by the waiting answers in order of arrival.
        self._answers: list[SubmittedAnswer] = []
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
        adapters: ScaledAdapters = (),
        interventions: "Interventions" = (),
    ) -> SubmittedAnswer:
        """Submit a prompt without waiting for its answer. Any thread may call this.

        The steps are bit-identical to those of `InferenceEngine.generate`. The engine
        thread calls the mask before each draw. An answer whose `SlowMask` is not ready
        skips passes without delaying other answers, and an exception raised by the mask
        ends the answer.

        If the queue is full, the client with the most waiting answers loses its newest
        one, which ends with a QueueFullError, provided that this client has at least two
        more waiting answers than the caller.

        Args:
            prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates,
                mask, time_limit, prompt_candidates, client, prefix_group, adapters,
                interventions: See
                `Request`.
            deliver: A function that is called with each step, or with the error that ends
                the answer. It must not block. The engine thread calls it, or a thread
                that ends this answer by calling `submit` while the queue is full. If it
                is set, the answer must not be iterated over.

        Raises:
            QueueFullError: If the queue is full.
            ClosedError: If the engine has been closed.
            ThreadRefusedError: If the engine thread cannot be started.
            InferenceError: If a trace is on, because it can show only one sequence.
            PromptError: If the pool has fewer positions than the answer may need.
            PromptError, TokenIdError, ContextFullError, CheckpointError: As in
                `InferenceEngine.generate`.

        If an error occurs later, it is delivered instead of the next step. This includes
        a TimeLimitError if no token is drawn in time, and a ClosedError.
        """
        request = Request(
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            stop=stop,
            end_ids=end_ids,
            new_text=new_text,
            candidates=candidates,
            mask=mask,
            time_limit=time_limit,
            prompt_candidates=prompt_candidates,
            client=client,
            prefix_group=prefix_group,
            adapters=adapters,
            interventions=interventions,
        )
        return self.answer(request, deliver)

    def answer(self, request: Request, deliver: Deliver | None = None) -> SubmittedAnswer:
        """Submit a `Request`. See `submit`."""
        if is_on():
            raise InferenceError(
                "[submit] tracing must be off: a trace shows one sequence"
            )
        answer = Answer(self.model, self.sequence_length, request)
        if answer.interventions:  # otherwise the module is not needed
            from ..model.interventions import has_ranks
        for each in answer.interventions:
            if each.address.place.is_spelled_out and has_ranks(self.model):
                rule = "must not be inside of attention if several processes run a batch"
                raise InferenceError(f"[submit] {each.address.text!r} {rule}")
        needed = len(answer.ids) + answer.limit - 1
        most = self._pool.blocks * SIZE
        if needed > most:
            terms = f"{len(answer.ids)} tokens + {answer.limit} new ones - 1"
            rule = "prompt and answer must fit into the cache"
            raise PromptError(f"[submit] {rule}: {terms} > {most} positions")
        submitted = SubmittedAnswer(self, answer, deliver)
        with self._changed:
            self._start()
            submitted._ticket = self._turns.ticket(request.client)
            self._make_room(submitted)
            self._answers.append(submitted)
            self._changed.notify_all()
        return submitted

    def _start(self) -> None:
        """Start the engine thread if necessary. The caller must hold `_changed`."""
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
        """Check that the engine can answer requests. Any thread may call this.

        Raises:
            ClosedError: If the engine has been closed.
            ThreadRefusedError: If the engine thread cannot be started.
            CheckpointError: If a weight file was changed after the model was loaded.
        """
        with self._changed:
            self._start()
        self.model.checkpoint.check_unchanged()

    def _make_room(self, submitted: SubmittedAnswer) -> None:
        """If the queue is full, drop another waiting answer or raise QueueFullError."""
        waiting = self._answers[self._counts["running"] :]
        if len(waiting) < self._max_waiting:
            return
        error = QueueFullError(f"[submit] {self._max_waiting} requests wait already")
        tickets = [each._ticket for each in waiting]
        index = ticket_to_drop(tickets, submitted._ticket.client)
        if index is None:
            raise error
        self._end(waiting[index], error)

    def counters(self) -> Counters:
        """Return the engine's current metrics."""
        return Counters(
            waiting=len(self._answers) - self._counts["running"],
            blocks=self._pool.blocks,
            blocks_used=len(self._pool.held) - len(self._pool.unused),
            blocks_cached=len(self._pool.unused),
            **self._counts,
        )

    def save_prompt_cache(self, path: str | Path) -> None:
        """Save the cached prefixes that belong to no group (`prefix_group=None`).

        The call waits for the current pass. It also works after `close`.

        Raises:
            PromptCacheError: If the file cannot be written.
        """
        with self._passing:
            save_pool(self._pool, Path(path))

    def load_prompt_cache(self, path: str | Path) -> int:
        """Load prefixes from a file into the cache, as long as there are free blocks.

        Returns:
            The number of tokens that were read.

        Raises:
            PromptCacheError: If the file is missing or damaged, or if it was written for
                another model, version or instruction set.
        """
        with self._passing:
            return load_pool(self._pool, Path(path))

    @property
    def is_running(self) -> bool:
        """Whether the engine thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, timeout: float | None = 0.0, wait: bool = True) -> None:
        """Reject new requests, and end all others with a ClosedError.

        Waiting requests end at once, and running requests end after a timeout.

        Args:
            timeout: The number of seconds that requests in progress have to finish,
                or None for no limit.
            wait: Whether to wait until the engine thread has ended.
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
        """Run forward passes while there are requests, until the engine is closed."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._answers or self._closes_at is not None
                    )
                    ends = self._closes_at
                if ends is not None and not (
                    self._counts["running"] and time.monotonic() < ends
                ):
                    break
                with self._passing:
                    self._drop_ended()
                    self._draw_after_masks()
                    self._make_pass()
        finally:
            with self._changed:
                self._closes_at = self._closes_at or 0.0
            for submitted in [*self._answers]:
                self._end(submitted, ClosedError(_CLOSED))

    def _drop_ended(self) -> None:
        """End answers that are cancelled, out of time, or still waiting after `close`."""
        for submitted in [*self._answers]:
            if submitted._is_cancelled:
                self._end(submitted)
            elif submitted._answer.is_late and not submitted._is_read:
                error = "[submit] the time limit was over before the first token"
                self._end(submitted, TimeLimitError(error))
            elif submitted._running is None and self._closes_at is not None:
                self._end(submitted, ClosedError(_CLOSED))

    def _make_pass(self) -> None:
        """Run the newest tokens and a chunk of prompt tokens, and draw the next ones."""
        try:
            with declared_lack_of_memory("generate", NotEnoughMemoryError):
                chosen, parts = self._choose_parts()
                if not chosen:
                    return
                runs = [submitted._running for submitted in chosen if submitted._running]
                rows, seconds = self._passes.run(runs, parts)
        # The error is reported to the callers whose requests are in this pass.
        except Exception as error:  # noqa: BLE001
            for submitted in self._answers[: self._counts["running"] + 1]:
                self._end(submitted, error)
            return
        self._counts["passes"] += 1
        self._patience.seconds = _MASK_SECONDS
        for submitted, running, logits in zip(chosen, runs, rows, strict=True):
            with self._errors_of(submitted):
                self._passes.take_rows(running, logits, seconds, self._patience)
                if running.steps is not None:
                    self._deliver_steps(submitted, running)

    @contextmanager
    def _errors_of(self, submitted: SubmittedAnswer) -> Iterator[None]:
        """End an answer if the `with` block raises an exception."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (it is reported to the caller)
            if isinstance(error, CheckpointError):
                self._pool.forget()
            self._end(submitted, error)

    def _choose_parts(self) -> tuple[list[SubmittedAnswer], list[Part]]:
        """Choose the answers for the next pass, and return them with their parts."""
        chosen: list[SubmittedAnswer] = []
        parts: list[Part] = []
        running = self._answers[: self._counts["running"]]
        reading = [each for each in running if not each._is_read]
        left = self._prompt_chunk
        while left > 0:
            submitted = reading.pop(0) if reading else self._admit_next()
            if submitted is None:
                break
            assert submitted._running is not None, "it was admitted"
            part = self._passes.prompt_part(submitted._running, left)
            chosen.append(submitted)
            parts.append(part)
            left -= len(part.ids)
        decoding = [
            (each, each._running)
            for each in running
            if each._running and each._is_read and each._running.steps is None
        ]
        newest = self._passes.newest_parts(
            [run for _, run in decoding], drafts=not chosen
        )
        chosen += [submitted for submitted, _ in decoding]
        return chosen, parts + newest

    def _admit_next(self) -> SubmittedAnswer | None:
        """Start the next waiting answer and return it, or None if it cannot start yet."""
        with self._changed:
            running = self._counts["running"]
            if running == min(len(self._answers), self._max_requests):
                return None
            waiting = [each._ticket for each in self._answers[running:]]
            index = self._turns.next(waiting)
            submitted = self._answers.pop(running + index)
            self._answers.insert(running, submitted)
            submitted._running = self._passes.admit(submitted._answer)
            if submitted._running is None:
                return None
            self._turns.begin(submitted._ticket, {ticket.client for ticket in waiting})
            self._counts["running"] += 1
        self._counts["prompt_tokens"] += submitted.stats.prompt_tokens
        self._counts["cached_tokens"] += submitted.stats.cached_tokens
        return submitted

    def _deliver_steps(self, submitted: SubmittedAnswer, running: RunningAnswer) -> None:
        """Deliver the steps of the latest pass, until a mask is not ready."""
        assert running.steps is not None
        for step in running.steps:
            if step is None:
                return
            self._counts["new_tokens"] += 1
            if submitted._is_cancelled:
                break
            if running.answer.is_over:
                self._end(submitted)
            submitted._deliver(step)
        running.steps = None

    def _draw_after_masks(self) -> None:
        """Continue answers that are waiting for masks.

        If there is no other work, wait longer for the masks.
        """
        runs = [
            (each, each._running) for each in self._answers[: self._counts["running"]]
        ]
        waiting = [(each, run) for each, run in runs if run and run.steps is not None]
        is_alone = len(waiting) == len(self._answers)
        self._patience.seconds = _LONE_MASK_SECONDS if is_alone else 0.0
        for submitted, running in waiting:
            with self._errors_of(submitted):
                self._deliver_steps(submitted, running)

    def _end(self, submitted: SubmittedAnswer, error: Exception | None = None) -> None:
        """Release an answer's cache blocks, count it, and deliver its error, if any."""
        with self._changed:
            if submitted.is_over:
                return
            submitted.is_over = True
            result = "failed" if error else "finished"
            self._counts["cancelled" if submitted._is_cancelled else result] += 1
            if submitted._running is not None:
                self._counts["running"] -= 1
                self._pool.release(submitted._running.sequence)
            self._answers.remove(submitted)
        if error is not None and not submitted._is_cancelled:
            with suppress(Exception):  # the receiver may be gone
                submitted._deliver(error)
