"""The answers of one HTTP request: from the engine's thread to the event loop, and as JSON."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

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
# The chunk before all others of an answer of a chat.
CHAT_BEGIN = {
    "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None,
}  # fmt: skip
# What OpenAI writes for a token that the model gives no chance; JSON has no infinity.
NO_CHANCE = -9999.0

Item = Step | Exception
Chunk = dict[str, Any]


@dataclass(kw_only=True)
class Answer:
    """One answer: what the engine is asked for, and what came so far.

    Attributes:
        tokenizer: Has the tokens' texts.
        prompt_ids: Its prompt.
        most_tokens: The most tokens to choose; None until a stop; 0 for the prompt alone.
        sampling: How they are chosen.
        stop: Texts that end it.
        end_ids: Ids that end it, beside the model's.
        alternatives: Of how many tokens `logprobs` tell; None without them.
        mask: Which tokens may come, or None for all.
        echo: The text of the prompt, which comes before the answer; None without it.
        request: The engine's, once it is submitted.
        ids: The tokens that came.
        whole: All chunks that came, put together.
        last: When the last token came.
    """

    # What a client reads as the beginning of the id, and as the kind of a response and of a chunk.
    names: ClassVar[tuple[str, str, str]]
    begins_text: ClassVar[bool]

    tokenizer: Tokenizer
    prompt_ids: Sequence[int]
    most_tokens: int | None
    sampling: SamplingArgs
    stop: tuple[str, ...]
    end_ids: frozenset[int] = frozenset()
    alternatives: int | None = None
    mask: GrammarMask | None = None
    echo: str | None = None
    request: Request = field(init=False)
    ids: list[int] = field(default_factory=list)
    whole: Chunk = field(default_factory=dict)
    last: float | None = None

    @property
    def candidates(self) -> int:
        """How many candidates each step has to report."""
        return 0 if self.alternatives is None else max(self.alternatives, 1)

    def take(self, step: Step) -> Chunk:
        """Return the choice of a chunk for a step."""
        self.ids.append(step.token_id)
        chunk = self.chunk(step, _REASONS.get(step.stop_reason, "length"))
        _join(self.whole, chunk)
        return chunk

    def chunk(self, step: Step, reason: str | None) -> Chunk:
        """Return what a step adds."""
        raise NotImplementedError

    def choice(self) -> Chunk:
        """Return the choice of a response that is not streamed."""
        return self.whole


class Run:
    """Several answers in the making. To be made, read and closed in the event loop.

    Args:
        engine: Makes them.
        answers: What to make.
        seconds: The longest that one may take.
        metrics: Takes the times.

    Raises:
        InferenceError, TokenIdError, CheckpointError: As `BatchEngine.submit`; nothing runs then.
    """

    def __init__(
        self, engine: BatchEngine, answers: Sequence[Answer], seconds: float, metrics: Metrics
    ) -> None:
        self.answers, self._metrics = answers, metrics
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[tuple[int, Item]] = asyncio.Queue()
        self._most = _MOST_BEHIND // (1 + max(answer.candidates for answer in answers))
        self._began = time.perf_counter()
        self._requests: list[Request] = []
        self._error: Exception | None = None
        try:
            for index, one in enumerate(answers):
                one.request = engine.submit(
                    one.prompt_ids, one.most_tokens if one.most_tokens != 0 else 1, one.sampling,
                    one.stop, one.end_ids, one.begins_text, one.candidates,
                    mask=one.mask, time_limit=seconds,
                    prompt_candidates=0 if one.echo is None else one.candidates,
                    deliver=partial(self._deliver, index),
                )  # fmt: skip
                self._requests.append(one.request)
        except BaseException:
            self.close()
            raise

    def _deliver(self, index: int, item: Item) -> None:
        """Take an item in the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._put, index, item)
        except RuntimeError:  # the loop has ended, and the process with it
            self.answers[index].request.cancel()

    def _put(self, index: int, item: Item) -> None:
        if isinstance(item, Step):
            now, answer = time.perf_counter(), self.answers[index]
            self._metrics.note_step(now - (answer.last or self._began), answer.last is None)
            answer.last = now
        if self._items.qsize() >= self._most:
            self.close()
            self._error = RequestError(408, "the client reads too slowly", None, "too_slow")
        self._items.put_nowait((index, item))

    async def chunks(self) -> AsyncIterator[list[Chunk]]:
        """Yield the choices of what there is of all answers, until each has its last step.

        Raises:
            Exception: The one that ended an answer; the others end with it.
        """
        left = len(self.answers)
        while left:
            batch = [await self._items.get()]
            while not self._items.empty():
                batch.append(self._items.get_nowait())
            taken: list[Chunk] = []
            for index, item in batch:
                if isinstance(item, Exception):
                    self._error = self._error or item
                    break
                taken.append({"index": index} | self.answers[index].take(item))
                left -= item.stop_reason is not None
            if self._error is not None:
                self.close()
                raise self._error
            yield taken

    def close(self) -> None:
        """End what still runs."""
        for request in self._requests:
            request.cancel()
        for answer in self.answers:
            if answer.mask is not None:
                answer.mask.close()

    def usage(self) -> dict[str, Any]:
        """Return the counts of tokens; a prompt with several answers counts once."""
        # The first answer reads the prompt, the others find it.
        stats = {id(one.prompt_ids): one.request.stats for one in reversed(self.answers)}.values()
        asked = sum(one.prompt_tokens for one in stats)
        made = sum(len(one.ids) for one in self.answers if one.most_tokens != 0)
        return {
            "prompt_tokens": asked,
            "completion_tokens": made,
            "total_tokens": asked + made,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in stats)},
        }


@dataclass(kw_only=True)
class ChatAnswer(Answer):
    """An answer of a chat.

    Attributes:
        opened: Whether it begins inside of a thought; None where thoughts are not looked for.
        style: How it asks for calls of functions; None where it cannot.
    """

    names = "chatcmpl", "chat.completion", "chat.completion.chunk"
    begins_text = True

    opened: bool | None
    style: ToolStyle | None
    _text: str = ""
    _told: tuple[str, str, int] = "", "", 0

    def chunk(self, step: Step, reason: str | None) -> Chunk:
        """Return what a step adds."""
        self._text += step.text
        is_over, thought, said = step.stop_reason is not None, "", self._text
        if self.opened is not None:
            thought, said = split_thoughts(said, self.opened, is_over)
        calls: list[ToolCall] = []
        if self.style is not None:
            said, calls = split_calls(self.style, said, is_over)
        old_thought, old_said, old_calls = self._told
        self._told = thought, said, len(calls)
        delta: Chunk = {}
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
        logprobs = None if self.alternatives is None else {"content": list[Chunk]()}
        if logprobs is not None and step.choice is not None and step.stop_reason != "eot":
            logprobs["content"] += [
                _chat_logprobs(self.tokenizer, step.choice, self.alternatives or 0)
            ]
        reason = "tool_calls" if calls and reason == "stop" else reason
        return {"delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def choice(self) -> Chunk:
        """Return the choice of a response that is not streamed."""
        message = {"role": "assistant", "content": None, "refusal": None} | self.whole["delta"]
        for call in message.get("tool_calls", ()):
            del call["index"]
        message["content"] = message["content"] or (None if "tool_calls" in message else "")
        return {"message": message, **{n: v for n, v in self.whole.items() if n != "delta"}}


@dataclass(kw_only=True)
class TextAnswer(Answer):
    """A completion."""

    names = "cmpl", "text_completion", "text_completion"
    begins_text = False

    _offset: int = 0

    def chunk(self, step: Step, reason: str | None) -> Chunk:
        """Return what a step adds, the first one with what is echoed."""
        text, tokens = "", list[tuple[int, Choice | None]]()
        if not self.whole and self.echo is not None:
            text = self.echo
            tokens += zip(self.prompt_ids, self.request.prompt_choices or (), strict=False)
        if self.most_tokens != 0:
            text += step.text
            if step.stop_reason != "eot":
                tokens.append((step.token_id, step.choice))
        logprobs = None if self.alternatives is None else self._logprobs(tokens, self.alternatives)
        return {"text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: list[tuple[int, Choice | None]], count: int) -> Chunk:
        """Return lists with an entry for each token; the first of a prompt was not chosen."""
        told: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
        }  # fmt: skip
        for token, choice in tokens:
            name = token_name(self.tokenizer, token)
            told["tokens"].append(name)
            told["text_offset"].append(self._offset)
            # A begin of text need not be in the text.
            if choice is not None or (self.echo or "").startswith(name):
                self._offset += len(name)
            chance, top = None, None
            if choice is not None:
                chance, near = _log_probability(choice, token), choice.candidates[:count]
                top = {
                    token_name(self.tokenizer, c.token_id): max(c.log_probability, NO_CHANCE)
                    for c in near
                }
            told["token_logprobs"].append(chance)
            told["top_logprobs"].append(top)
        return told


def _join(whole: Chunk, part: Chunk) -> None:
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


def _chat_logprobs(tokenizer: Tokenizer, choice: Choice, count: int) -> Chunk:
    """Return what a chat's `logprobs` say of a token and of some alternatives."""

    def entry(token: int) -> Chunk:
        return {
            "token": token_name(tokenizer, token),
            "logprob": _log_probability(choice, token),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    top = [entry(candidate.token_id) for candidate in choice.candidates[:count]]
    return entry(choice.token_id) | {"top_logprobs": top}
