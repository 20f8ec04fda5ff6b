"""Many answers at once: each pass of the network takes the newest token of every
request.
"""

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
from .turns import Ticket, Turns, to_give_way

# How long all requests of a pass wait for masks that are not ready: longer than an
# ordinary mask takes, and far shorter than a pass of a model of 1B. Without another
# request there is more time.
_MASK_SECONDS = 0.002
_LONE_MASK_SECONDS = 0.05
_CLOSED = "[submit] the engine was closed"

# Takes each step of a request, or the error that ended it.
Deliver = Callable[[Step | Exception], object]


@dataclass(frozen=True)
class Counters:
    """What an engine does (gauges) and did (counters, which only grow)."""

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
    """One answer of a `BatchEngine`: an iterator of its steps, each of which it waits
    for.

    The error that ended the answer is raised where its next step would be. After `cancel`
    there is no further step. An answer that is not wanted any more is to be cancelled:
    otherwise it goes on.

    Attributes:
        is_over: Whether no step and no error comes any more from the engine.
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
        self._ticket: Ticket  # once it waits
        self._running: RunningAnswer | None = None  # once it runs

    @property
    def stats(self) -> GenerationStats:
        """What it took so far."""
        return self._answer.stats

    @property
    def prompt_choices(self) -> list[Choice | None] | None:
        """With `prompt_candidates`, how each token of the prompt might have been chosen.

        It is complete from the first step on; None for the first token.
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
            self._items.put(None)  # what is read after the end
        if isinstance(item, Step):
            return item
        raise item or StopIteration

    def cancel(self) -> None:
        """End the answer, within the pass that runs now; from any thread, any number of
        times.
        """
        with self._engine._changed:
            self._is_cancelled = True
            self._items.put(None)  # for one who waits
            if self._running is None:
                self._engine._end(self)


class BatchEngine:
    """Answers many prompts at once with one model, each with the bits that it has alone.

    Each pass through the network takes the newest token of every running request, and up
    to `prompt_chunk` tokens of prompts, as rows: the weights are read once for all of
    them. A request joins and leaves between two passes. Clients take turns, and the
    requests of each begin in the order in which they came, as soon as the pool has the
    blocks that they may need at most; so what runs never lacks memory.

    The passes run in a thread of the engine, which begins with the first request and ends
    with `close`; the engine is a context manager that calls it.

    Args:
        model: The model.
        sequence_length: Positions of the context of each request; min(4096, the model's
            longest) by default.
        cache_tokens: Positions of the pool, rounded up to blocks of 256; by default those
            of `max_requests` contexts, but at most half of the free memory.
        max_requests: The most requests that run at once.
        max_waiting: The most requests that wait.
        prompt_chunk: The most tokens of prompts in a pass, for which the others wait.
        speculation: Whether passes that read no prompt check drafts, where that saves
            time.

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
        self._answers: list[
            SubmittedAnswer
        ] = []  # those that run, then those that wait, as they came
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
        """Let a sequence of tokens be continued; from any thread, without waiting.

        Args:
            prompt_ids, max_new_tokens, sampling, stop, end_ids, new_text, candidates,
            mask,
                time_limit, prompt_candidates, client, prefix_group: As in `Request`; the
                steps are those of `InferenceEngine.generate`, bit for bit. The mask is
                asked before each draw in the thread of the engine. An answer whose
                `SlowMask` is not ready leaves out passes and holds up no other one. What
                the mask raises ends the answer. Where too many answers wait, the newest
                one of the client with the most of them ends with a QueueFullError, if
                that client has at least two more than this one.
            deliver: Called in the thread of the engine with each step, and with the error
                that ends the answer, which another call of `submit` may pass; it must not
                wait. The answer is then not to be iterated over.

        Raises:
            QueueFullError: Too many answers wait.
            ClosedError: The engine was closed.
            ThreadRefusedError: The system does not start the thread of the engine.
            InferenceError: A trace is on: it shows one sequence.
            PromptError: The pool never has the positions that the answer may need.
            PromptError, TokenIdError, ContextFullError, CheckpointError: As in
                `InferenceEngine.generate`. What that raises while stepping comes as a
                step would; so does a TimeLimitError if no token was drawn in time, and a
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
            raise InferenceError("[submit] a trace shows one sequence: turn it off first")
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
        """Start the thread of the engine if it does not run;
        the caller holds `_changed`.
        """
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

    def _make_room(self, submitted: SubmittedAnswer) -> None:
        """End an answer that waits if too many do,
        or raise QueueFullError for this one.
        """
        waiting = self._answers[self._counts["running"] :]
        if len(waiting) < self._max_waiting:
            return
        error = QueueFullError(f"[submit] {self._max_waiting} requests wait already")
        index = to_give_way([each._ticket for each in waiting], submitted._ticket.client)
        if index is None:
            raise error
        self._end(waiting[index], error)

    def counters(self) -> Counters:
        """Return what the engine does and did."""
        return Counters(
            waiting=len(self._answers) - self._counts["running"],
            blocks=self._pool.blocks,
            blocks_used=len(self._pool.held) - len(self._pool.unused),
            blocks_cached=len(self._pool.unused),
            **self._counts,
        )

    def save_prompt_cache(self, path: str | Path) -> None:
        """Write the cached prefixes of the group None, between two passes; also after
        `close`.

        Raises:
            PromptCacheError: The file cannot be written.
        """
        with self._passing:
            save_pool(self._pool, Path(path))

    def load_prompt_cache(self, path: str | Path) -> int:
        """Add the prefixes of a file to the cache, as far as blocks are free.

        Returns:
            How many tokens were read.

        Raises:
            PromptCacheError: It is missing, damaged, or of another model, version or
                instruction set.
        """
        with self._passing:
            return load_pool(self._pool, Path(path))

    @property
    def is_running(self) -> bool:
        """Return whether the thread of the engine runs."""
        return self._thread is not None and self._thread.is_alive()

    def close(self, timeout: float | None = 0.0, wait: bool = True) -> None:
        """Take no more requests, end those that wait, and after a time those that run.

        They end with a ClosedError.

        Args:
            timeout: Seconds that running requests are given; None for as long as they
                take.
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
        """End answers that were cancelled or came too late,
        and at last those that wait.
        """
        for submitted in [*self._answers]:
            if submitted._is_cancelled:
                self._end(submitted)
            elif submitted._answer.is_late and not submitted._is_read:
                error = "[submit] the time limit was over before the first token"
                self._end(submitted, TimeLimitError(error))
            elif submitted._running is None and self._closes_at is not None:
                self._end(submitted, ClosedError(_CLOSED))

    def _make_pass(self) -> None:
        """Run the newest tokens and a chunk of prompts; let the answers draw from the
        logits.
        """
        try:
            with declared_lack_of_memory("generate", NotEnoughMemoryError):
                chosen, parts = self._chosen_parts()
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

    def _chosen_parts(self) -> tuple[list[SubmittedAnswer], list[Part]]:
        """Return the answers of the next pass, and what it runs of each."""
        chosen: list[SubmittedAnswer] = []
        parts: list[Part] = []
        running = self._answers[: self._counts["running"]]
        reading = [each for each in running if not each._is_read]
        left = self._prompt_chunk
        while left > 0:
            submitted = reading.pop(0) if reading else self._admitted()
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

    def _admitted(self) -> SubmittedAnswer | None:
        """Let the answer begin whose turn it is, if there is a place for it."""
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
        """Go on with answers that wait for masks; with nothing else to do,
        wait for them.
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
        """Give back what an answer has, count it, and deliver the error that ended it."""
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
            with suppress(Exception):  # whoever takes it may have gone
                submitted._deliver(error)
