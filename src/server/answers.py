"""The answers of one HTTP request: from the engine's thread to the event loop, and as JSON."""

import asyncio
import secrets
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
    ToolCall,
    split_thoughts,
)
from ..inference.chat_formats import ToolStyle
from ..inference.grammars import GrammarMask
from ..inference.tools import split_calls
from ..tokenizer import Tokenizer
from .errors import RequestError
from .metrics import Metrics

# OpenAI's names of the reasons to stop; whatever cut an answer is `length`.
_REASONS = {None: None, "eot": "stop", "stop string": "stop"}
# What a client that does not read may be behind, in steps, of which one with candidates takes more.
_MOST_BEHIND = 8192
# What OpenAI writes for a token that the model gives no chance; JSON has no infinity.
NO_CHANCE = -9999.0

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
        self.first_ids: list[int] = []
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        self._most = _MOST_BEHIND // (1 + max(job.candidates for job in jobs))
        self._began = time.perf_counter()
        self._last: dict[int, float] = {}
        self._open = len(jobs)
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
        # The first answer reads the prompt, the others find it.
        pairs = reversed([*zip(self.jobs, stats, strict=True)])
        prompts = {id(job.prompt_ids): one for job, one in pairs}.values()
        asked = sum(one.prompt_tokens for one in prompts)
        dropped = sum(job.most_tokens == 0 for job in self.jobs)
        made = sum(one.new_tokens for one in stats) - dropped
        return {
            "prompt_tokens": asked,
            "completion_tokens": made,
            "total_tokens": asked + made,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)},
        }


@dataclass
class ChatAnswer:
    """An answer of a chat, as it comes.

    Attributes:
        tokenizer: Has the tokens' texts.
        job: What is made.
        opened: Whether it begins inside of a thought; None where thoughts are not looked for.
        style: How it asks for calls of functions; None where it cannot.
        whole: All that came so far, put together.
    """

    tokenizer: Tokenizer
    job: Job
    opened: bool | None
    style: ToolStyle | None
    whole: dict[str, Any] = field(default_factory=dict)
    _text: str = ""
    _told: tuple[str, str, int] = "", "", 0

    def take(self, step: Step) -> dict[str, Any]:
        """Return the choice of a chunk for a step."""
        self._text += step.text
        is_over, reason = step.stop_reason is not None, _REASONS.get(step.stop_reason, "length")
        thought, said = "", self._text
        if self.opened is not None:
            thought, said = split_thoughts(said, self.opened, is_over)
        calls: list[ToolCall] = []
        if self.style is not None:
            said, calls = split_calls(self.style, said, is_over)
        old_thought, old_said, old_calls = self._told
        self._told = thought, said, len(calls)
        delta: dict[str, Any] = {}
        if len(thought) > len(old_thought):
            delta["reasoning_content"] = thought[len(old_thought) :]
        if len(calls) > old_calls:
            delta["tool_calls"] = [
                {
                    "index": index, "id": f"call_{secrets.token_hex(12)}", "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(calls) if index >= old_calls
            ]  # fmt: skip
        if not delta or len(said) > len(old_said):
            delta["content"] = said[len(old_said) :]
        logprobs = None
        if step.choice is not None and step.stop_reason != "eot":
            count = self.job.alternatives or 0
            logprobs = {"content": [_chat_logprobs(self.tokenizer, step.choice, count)]}
        if calls and reason == "stop":
            reason = "tool_calls"
        chunk = {"delta": delta, "logprobs": logprobs, "finish_reason": reason}
        _join(self.whole, chunk)
        return chunk

    def choice(self) -> dict[str, Any]:
        """Return the choice of a response that is not streamed."""
        message = {"role": "assistant", "content": None, "refusal": None} | self.whole["delta"]
        for call in message.get("tool_calls", ()):
            del call["index"]
        message["content"] = message["content"] or (None if "tool_calls" in message else "")
        logprobs = self.whole["logprobs"]
        if logprobs is None and self.job.alternatives is not None:
            logprobs = {"content": []}
        reason = self.whole["finish_reason"]
        return {"message": message, "logprobs": logprobs, "finish_reason": reason}


class TextAnswer:
    """A completion, as it comes.

    Args:
        tokenizer: Has the tokens' texts.
        job: What is made.
        request: The engine's, which knows of the prompt's tokens once the first step is there.

    Attributes:
        whole: All that came so far, put together.
    """

    def __init__(self, tokenizer: Tokenizer, job: Job, request: Request) -> None:
        self.whole: dict[str, Any] = {}
        self._tokenizer, self._job, self._request = tokenizer, job, request
        self._offset = 0

    def take(self, step: Step) -> dict[str, Any]:
        """Return the choice of a chunk for a step."""
        job, text, tokens = self._job, "", list[tuple[int, Choice | None]]()
        if not self.whole and job.echo is not None:
            text = job.echo
            tokens += zip(job.prompt_ids, self._request.prompt_choices or (), strict=False)
        if job.most_tokens != 0:
            text += step.text
            if step.stop_reason != "eot":
                tokens.append((step.token_id, step.choice))
        logprobs = None if job.alternatives is None else self._logprobs(tokens, job.alternatives)
        reason = _REASONS.get(step.stop_reason, "length")
        chunk = {"text": text, "logprobs": logprobs, "finish_reason": reason}
        _join(self.whole, chunk)
        return chunk

    def choice(self) -> dict[str, Any]:
        """Return the choice of a response that is not streamed."""
        return self.whole

    def _logprobs(
        self, tokens: list[tuple[int, Choice | None]], count: int
    ) -> dict[str, list[Any]]:
        """Return lists with an entry for each token; the first of a prompt was not chosen."""
        told: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
        }  # fmt: skip
        for token, choice in tokens:
            name = token_name(self._tokenizer, token)
            told["tokens"].append(name)
            told["text_offset"].append(self._offset)
            # A begin of text need not be in the text.
            if choice is not None or (self._job.echo or "").startswith(name):
                self._offset += len(name)
            chance, top = None, None
            if choice is not None:
                chance, near = _log_probability(choice, token), choice.candidates[:count]
                top = {
                    token_name(self._tokenizer, c.token_id): max(c.log_probability, NO_CHANCE)
                    for c in near
                }
            told["token_logprobs"].append(chance)
            told["top_logprobs"].append(top)
        return told


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    """Add what a chunk says to what those before it said: texts and lists become longer."""
    for name, value in part.items():
        held = whole.get(name)
        if isinstance(value, dict):
            whole[name] = held = held or {}
            _join(held, value)
        elif isinstance(value, list):
            whole[name] = held = held or []
            held += value
        elif value is not None or name not in whole:
            whole[name] = value if held is None else held + value


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""Return a token as text; bytes that are no whole characters as `bytes:\xe2\x80`."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _log_probability(choice: Choice, token: int) -> float:
    """Return the natural logarithm of a candidate's probability by the model."""
    found = next(c.log_probability for c in choice.candidates if c.token_id == token)
    return max(found, NO_CHANCE)


def _chat_logprobs(tokenizer: Tokenizer, choice: Choice, count: int) -> dict[str, Any]:
    """Return what a chat's `logprobs` say of a token and of some alternatives."""

    def entry(token: int) -> dict[str, Any]:
        return {
            "token": token_name(tokenizer, token),
            "logprob": _log_probability(choice, token),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    top = [entry(candidate.token_id) for candidate in choice.candidates[:count]]
    return entry(choice.token_id) | {"top_logprobs": top}
