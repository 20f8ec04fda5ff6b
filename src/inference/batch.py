"""Many answers at once: each pass runs the newest token of every request."""

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
from typing import Annotated, Self

from .. import memory
from ..checkpoint import CheckpointError
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

# How long all requests of a pass together wait for masks that are not ready: longer than
# an ordinary mask takes, and much shorter than a pass of a model of 1B. A request that
# runs alone may wait longer.
_MASK_SECONDS = 0.002
_LONE_MASK_SECONDS = 0.05
_CLOSED = "[submit] the engine was closed"

# Receives each step of a request, or the error that ended it.
Deliver = Callable[[Step | Exception], object]


@dataclass(frozen=True)
class Counters:
    """Gauges of the present state of an engine, and counters, which only grow."""

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
    """One answer of a `BatchEngine`: an iterator that waits for each of its steps.

    An error that ends the answer is raised in place of its next step. After `cancel`
    there are no further steps. Cancel an answer that is no longer needed: it runs to its
    end otherwise.

    Attributes:
        is_over: Whether the engine has delivered the last step or error.
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
        self._ticket: Ticket  # set when the answer waits
        self._running: RunningAnswer | None = None  # set when the answer runs

    @property
    def stats(self) -> GenerationStats:
        """The counts and times so far."""
        return self._answer.stats

    @property
    def prompt_choices(self) -> list[Choice | None] | None:
        """With `prompt_candidates`, how each token of the prompt might have been chosen.

        The list is complete from the first step on. The entry of the first token is None.
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
            self._items.put(None)  # ends any later call of `next`
        if isinstance(item, Step):
            return item
        raise item or StopIteration

    def cancel(self) -> None:
        """End the answer within the current pass. Any thread may call this repeatedly."""
        with self._engine._changed:
            self._is_cancelled = True
            self._items.put(None)  # wakes a thread that waits for a step
            if self._running is None:
                self._engine._end(self)


class BatchEngine:
    """Answers many prompts at once, each with the same bits as alone.

    Each pass through the network runs, as rows, the newest token of every running request
    and up to `prompt_chunk` tokens of prompts, so the weights are read once for all of
    them. A request joins and leaves between two passes. Clients take turns. The requests
    of one client begin in the order of their arrival, each as soon as the pool has all
    blocks that it may need, so a running request never lacks memory.

    The passes run in a thread of the engine, which begins with the first request and ends
    with `close`. The engine is a context manager that calls `close`.

    Args:
        model: The model.
        sequence_length: Positions of the context of each request; min(4096, the model's
            longest) by default.
        cache_tokens: Positions of the pool, rounded up to blocks of 256; by default
            `max_requests` contexts, but at most half of the free memory.
        max_requests: The most requests that run at once.
        max_waiting: The most requests that wait.
        prompt_chunk: The most tokens of prompts in a pass, for which the other requests
            wait.
        speculation: Whether passes that read no prompt check drafts if that saves time.

    Raises:
        PromptError: A number is below 1.
        ModelError: A length is out of range.
        NotEnoughMemoryError: The pool does not fit; the message contains the arithmetic.
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
        # First the answers that run, then the answers that wait, in order of arrival.
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
    ) -> SubmittedAnswer:
        """Submit a prompt without waiting; any thread may call this.

        Args:
            prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates,
                mask, time_limit, prompt_candidates, client, prefix_group: As in
                `Request`. The steps equal the steps of `InferenceEngine.generate`, bit
                for bit. The thread of the engine calls the mask before each draw. An
                answer whose `SlowMask` is not ready skips passes and does not delay other
                answers. An error of the mask ends the answer. If too many answers wait,
                the newest answer of the client with the most waiting answers ends with a
                QueueFullError, provided that this client has at least two more than the
                caller.
            deliver: Called in the thread of the engine with each step, or with the error
                that ends the answer. It must not wait. Another call of `submit` may cause
                that error. The answer must then not be iterated over.

        Raises:
            QueueFullError: Too many answers wait.
            ClosedError: The engine was closed.
            ThreadRefusedError: The system does not start the thread of the engine.
            InferenceError: A trace is on; it shows one sequence.
            PromptError: The pool is smaller than the positions that the answer may need.
            PromptError, TokenIdError, ContextFullError, CheckpointError: As in
                `InferenceEngine.generate`. An error of a step is delivered in place of
                that step. So are a TimeLimitError, if no token is drawn in time, and a
                ClosedError.
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
        )
        return self.answer(request, deliver)

    def answer(self, request: Request, deliver: Deliver | None = None) -> SubmittedAnswer:
        """Return the answer to a request, as `submit` does."""
        if is_on():
            raise InferenceError(
                "[submit] tracing must be off: a trace shows one sequence"
            )
        answer = Answer(self.model, self.sequence_length, request)
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
        """Start the thread of the engine if needed. The caller holds `_changed`."""
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
        """Check whether a request could be answered now. Any thread may call this.

        Raises:
            ClosedError: The engine was closed.
            ThreadRefusedError: The system does not start the thread of the engine.
            CheckpointError: A weight file was changed after the model was loaded.
        """
        with self._changed:
            self._start()
        self.model.checkpoint.check_unchanged()

    def _make_room(self, submitted: SubmittedAnswer) -> None:
        """End a waiting answer if too many wait, or raise QueueFullError for this one."""
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
        """Return the counters of the engine."""
        return Counters(
            waiting=len(self._answers) - self._counts["running"],
            blocks=self._pool.blocks,
            blocks_used=len(self._pool.held) - len(self._pool.unused),
            blocks_cached=len(self._pool.unused),
            **self._counts,
        )

    def save_prompt_cache(self, path: str | Path) -> None:
        """Write the cached prefixes of the group None to a file.

        The call waits for the current pass, and also works after `close`.

        Raises:
            PromptCacheError: The file cannot be written.
        """
        with self._passing:
            save_pool(self._pool, Path(path))

    def load_prompt_cache(self, path: str | Path) -> int:
        """Add the prefixes of a file to the cache while blocks are free.

        Returns:
            The number of tokens that were read.

        Raises:
            PromptCacheError: The file is missing, damaged, or of another model, version
                or instruction set.
        """
        with self._passing:
            return load_pool(self._pool, Path(path))

    @property
    def is_running(self) -> bool:
        """Return whether the thread of the engine runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, timeout: float | None = 0.0, wait: bool = True) -> None:
        """Reject new requests and end all others, the running ones after a timeout.

        The requests end with a ClosedError.

        Args:
            timeout: Seconds for running requests to end; None waits until they end by
                themselves.
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
        """Make passes while there is work, until the engine is closed."""
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
        """End answers that were cancelled or are late, and waiting ones after `close`."""
        for submitted in [*self._answers]:
            if submitted._is_cancelled:
                self._end(submitted)
            elif submitted._answer.is_late and not submitted._is_read:
                error = "[submit] the time limit was over before the first token"
                self._end(submitted, TimeLimitError(error))
            elif submitted._running is None and self._closes_at is not None:
                self._end(submitted, ClosedError(_CLOSED))

    def _make_pass(self) -> None:
        """Run the newest tokens and a chunk of prompts, then draw from the logits."""
        try:
            with declared_lack_of_memory("generate", NotEnoughMemoryError):
                chosen, parts = self._choose_parts()
                if not chosen:
                    return
                runs = [submitted._running for submitted in chosen if submitted._running]
                rows, seconds = self._passes.run(runs, parts)
        # The error belongs to the callers that wait for this pass.
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
        """End an answer with the error that is raised inside."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 (it belongs to this answer)
            if isinstance(error, CheckpointError):
                self._pool.forget()
            self._end(submitted, error)

    def _choose_parts(self) -> tuple[list[SubmittedAnswer], list[Part]]:
        """Choose the answers of the next pass, and return the part of each."""
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
        """Let the next waiting answer begin, if the engine has room for it."""
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
        """Deliver the steps of the newest pass, up to one whose mask is not ready."""
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
        """Continue answers that wait for masks.

        Without other work, wait longer for the masks.
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
        """Release the cache of an answer, count it, and deliver its error if any."""
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
