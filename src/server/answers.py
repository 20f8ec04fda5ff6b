"""The answers of one HTTP request: from the engine's thread to the event loop, and as JSON."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..inference import (
    BatchEngine,
    Choice,
    Request,
    SamplingArgs,
    Step,
    split_thoughts,
)
from ..inference.grammars import GrammarMask
from ..tokenizer import Tokenizer
from .errors import RequestError
from .metrics import Metrics
from .texts import TextLogprobs, chat_logprobs

_REASONS = {"eot": "stop", "stop string": "stop"}
# What a client that does not read may be behind, in steps, of which one with candidates takes more.
_MOST_BEHIND = 8192

Item = Step | Exception


@dataclass(frozen=True)
class Job:
    """One answer to make.

    Attributes:
        prompt_ids: Its prompt.
        most_tokens: The most tokens to choose; None until a stop; 0 for the prompt alone.
        sampling: How they are chosen.
        stop: Texts that end it.
        end_ids: Ids that end it, beside the model's.
        new_text: Whether it begins a text.
        alternatives: Of how many tokens `logprobs` tell; None without them.
        mask: Which tokens may come, or None for all.
        echo: The text of the prompt, which comes before the answer; None without it.
    """

    prompt_ids: Sequence[int]
    most_tokens: int | None
    sampling: SamplingArgs
    stop: tuple[str, ...]
    end_ids: frozenset[int] = frozenset()
    new_text: bool = False
    alternatives: int | None = None
    mask: GrammarMask | None = None
    echo: str | None = None

    @property
    def candidates(self) -> int:
        """How many candidates each step has to report."""
        return 0 if self.alternatives is None else max(self.alternatives, 1)


class Run:
    """Several answers in the making. To be made, read and closed in the event loop.

    Args:
        engine: Makes them.
        jobs: What to make.
        seconds: The longest that one may take.
        metrics: Takes the times.

    Raises:
        InferenceError, TokenIdError, CheckpointError: As `BatchEngine.submit`; nothing runs then.

    Attributes:
        first_ids: The tokens of the first answer, as far as it came.
    """

    def __init__(
        self, engine: BatchEngine, jobs: Sequence[Job], seconds: float, metrics: Metrics
    ) -> None:
        self.jobs, self._metrics = jobs, metrics
        self.requests: list[Request] = []
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        self._most = _MOST_BEHIND // (1 + max(job.candidates for job in jobs))
        self._began = time.perf_counter()
        self._last: dict[int, float] = {}
        self._open = len(jobs)
        self.first_ids: list[int] = []
        self._error: Exception | None = None
        try:
            for index, job in enumerate(jobs):
                self.requests.append(
                    engine.submit(
                        job.prompt_ids, job.most_tokens if job.most_tokens != 0 else 1,
                        job.sampling, job.stop, job.end_ids, job.new_text, job.candidates,
                        mask=job.mask, time_limit=seconds,
                        prompt_candidates=job.candidates if job.echo is not None else 0,
                        deliver=partial(self._deliver, index),
                    )
                )  # fmt: skip
        except BaseException:
            self.close()
            raise

    def _deliver(self, index: int, item: Item) -> None:
        """Take an item in the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._put, index, item)
        except RuntimeError:  # the loop has ended, and the process with it
            self.requests[index].cancel()

    def _put(self, index: int, item: Item) -> None:
        now = time.perf_counter()
        if isinstance(item, Step):
            last = self._last.get(index)
            self._metrics.note_step(now - (last or self._began), last is None)
            self._last[index] = now
        if self._items.qsize() >= self._most:
            self.close()
            self._error = RequestError(408, "the client reads too slowly", None, "too_slow")
        self._items.put_nowait((index, item))

    async def steps(self) -> AsyncIterator[list[tuple[int, Step]]]:
        """Yield what there is of all answers, until each has its last step.

        Raises:
            Exception: The one that ended an answer; the others end with it.
        """
        while self._open:
            batch = [await self._items.get()]
            while not self._items.empty():
                batch.append(self._items.get_nowait())
            taken: list[tuple[int, Step]] = []
            for index, item in batch:
                if isinstance(item, Exception):
                    self._error = self._error or item
                    break
                taken.append((index, item))
                if index == 0:
                    self.first_ids.append(item.token_id)
                self._open -= item.stop_reason is not None
            if self._error is not None:
                self.close()
                raise self._error
            yield taken

    def close(self) -> None:
        """End what still runs."""
        for request in self.requests:
            request.cancel()
        for job in self.jobs:
            if job.mask is not None:
                job.mask.close()

    def usage(self) -> dict[str, Any]:
        """Return the counts of tokens; a prompt with several answers counts once."""
        stats = [request.stats for request in self.requests]
        prompts: dict[int, tuple[int, int]] = {}
        for job, one in zip(self.jobs, stats, strict=True):
            # The first answer reads the prompt, the others find it.
            prompts.setdefault(id(job.prompt_ids), (one.prompt_tokens, one.cached_tokens))
        asked = sum(tokens for tokens, _ in prompts.values())
        cached = sum(tokens for _, tokens in prompts.values())
        dropped = sum(job.most_tokens == 0 for job in self.jobs)
        made = sum(one.new_tokens for one in stats) - dropped
        return {
            "prompt_tokens": asked,
            "completion_tokens": made,
            "total_tokens": asked + made,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


@dataclass
class ChatAnswer:
    """An answer of a chat, as it comes.

    Attributes:
        tokenizer: Has the tokens' texts.
        job: What is made.
        opened: Whether it begins inside of a thought; None where thoughts are not looked for.
    """

    tokenizer: Tokenizer
    job: Job
    opened: bool | None
    _text: str = ""
    _parts: tuple[str, str] = ("", "")
    _logprobs: list[dict[str, Any]] = field(default_factory=list)
    _reason: str | None = None

    def take(self, step: Step) -> dict[str, Any]:
        """Return the choice of a chunk for a step."""
        self._text += step.text
        parts = self._split(self._text, step.stop_reason is not None)
        thought, said = (new[len(old) :] for old, new in zip(self._parts, parts, strict=True))
        self._parts = parts
        delta: dict[str, Any] = {"content": said} if said or not thought else {}
        if thought:
            delta["reasoning_content"] = thought
        told = None
        if step.choice is not None and self.job.alternatives is not None and is_told(step):
            told = chat_logprobs(self.tokenizer, step.choice, self.job.alternatives)
            self._logprobs.append(told)
        self._reason = finish_reason(step)
        logprobs = None if told is None else {"content": [told]}
        return {"delta": delta, "logprobs": logprobs, "finish_reason": self._reason}

    def whole(self) -> dict[str, Any]:
        """Return the choice of a response that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": self._parts[1], "refusal": None}
        if self._parts[0]:
            message["reasoning_content"] = self._parts[0]
        logprobs = {"content": self._logprobs} if self.job.alternatives is not None else None
        return {"message": message, "logprobs": logprobs, "finish_reason": self._reason}

    def _split(self, text: str, is_over: bool) -> tuple[str, str]:
        return ("", text) if self.opened is None else split_thoughts(text, self.opened, is_over)


@dataclass
class TextAnswer:
    """A completion, as it comes.

    Attributes:
        tokenizer: Has the tokens' texts.
        job: What is made.
        request: The engine's, which knows of the prompt's tokens once the first step is there.
    """

    tokenizer: Tokenizer
    job: Job
    request: Request
    _text: str = ""
    _begun: bool = False
    _told: dict[str, list[Any]] = field(default_factory=dict)
    _reason: str | None = None

    def __post_init__(self) -> None:
        self._logprobs = TextLogprobs(self.tokenizer, self.job.alternatives or 0, self.job.echo)

    def take(self, step: Step) -> dict[str, Any]:
        """Return the choice of a chunk for a step."""
        text, tokens = "", list[tuple[int, Choice | None]]()
        if not self._begun and self.job.echo is not None:
            text = self.job.echo
            choices = self.request.prompt_choices or ()
            tokens += zip(self.job.prompt_ids, choices, strict=False)
        self._begun = True
        if self.job.most_tokens != 0:
            text += step.text
            if is_told(step):
                tokens.append((step.token_id, step.choice))
        self._text += text
        logprobs = None
        if self.job.alternatives is not None:
            logprobs = self._logprobs.of(tokens)
            for name, values in logprobs.items():
                self._told.setdefault(name, []).extend(values)
        self._reason = finish_reason(step)
        return {"text": text, "logprobs": logprobs, "finish_reason": self._reason}

    def whole(self) -> dict[str, Any]:
        """Return the choice of a response that is not streamed."""
        return {"text": self._text, "logprobs": self._told or None, "finish_reason": self._reason}


def is_told(step: Step) -> bool:
    """Return whether `logprobs` have a step's token: all but the one that ends an answer."""
    return step.stop_reason != "eot"


def finish_reason(step: Step) -> str | None:
    """Return OpenAI's name of the reason to stop; whatever cut an answer is `length`."""
    reason = step.stop_reason
    return None if reason is None else _REASONS.get(reason, "length")
