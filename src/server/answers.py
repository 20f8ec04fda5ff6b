"""Answers as JSON: what each step of the engine adds, and what all of them say together."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..inference import Choice, Request, SamplingArgs, Step, ToolCall, split_thoughts
from ..inference.chat_formats import ToolStyle
from ..inference.grammars import GrammarMask
from ..inference.sampling import log_probabilities
from ..inference.tools import split_calls
from ..tokenizer import Tokenizer

# OpenAI's names of the reasons to stop; whatever cut an answer is `length`.
_REASONS = {None: None, "eot": "stop", "stop string": "stop"}

Chunk = dict[str, Any]


@dataclass(kw_only=True)
class Answer:
    """One answer: what the engine is asked for, and what came so far."""

    # What a client reads as the beginning of the id, and as the kind of a response and of a chunk.
    names: ClassVar[tuple[str, str, str]]
    begins_text: ClassVar[bool]
    # The choice of the chunk before all others of a stream, if there is one.
    beginning: ClassVar[Chunk | None] = None

    tokenizer: Tokenizer
    prompt_ids: Sequence[int]
    most_tokens: int | None  # None until a stop; 0 for the prompt alone
    sampling: SamplingArgs
    stop: Sequence[str]
    end_ids: frozenset[int] = frozenset()  # beside the model's
    alternatives: int | None = None  # of how many tokens `logprobs` tell; None without them
    mask: GrammarMask | None = None
    echo: str | None = None  # the text of the prompt, to come before the answer
    request: Request = field(init=False)  # the engine's, once it is submitted
    ids: list[int] = field(default_factory=list)
    whole: Chunk = field(default_factory=dict)  # all chunks that came, put together
    last: float | None = None  # when the last token came

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


@dataclass(kw_only=True)
class ChatAnswer(Answer):
    """An answer of a chat."""

    names = "chatcmpl", "chat.completion", "chat.completion.chunk"
    begins_text = True
    beginning: ClassVar[Chunk | None] = {
        "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None,
    }  # fmt: skip

    opened: bool | None  # whether it begins in a thought; None where none is looked for
    style: ToolStyle | None  # how it asks for calls of functions; None where it cannot
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
        logprobs = None
        if self.alternatives is not None:
            choice = None if step.stop_reason == "eot" else step.choice
            logprobs = {"content": [] if choice is None else [self._logprobs(choice)]}
        reason = "tool_calls" if calls and reason == "stop" else reason
        return {"delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def choice(self) -> Chunk:
        """Return the choice of a response that is not streamed."""
        message = {"role": "assistant", "content": None, "refusal": None} | self.whole["delta"]
        for call in message.get("tool_calls", ()):
            del call["index"]
        message["content"] = message["content"] or (None if "tool_calls" in message else "")
        return {"message": message, **{n: v for n, v in self.whole.items() if n != "delta"}}

    def _logprobs(self, choice: Choice) -> Chunk:
        """Return what `logprobs` say of a token and of some alternatives."""
        told = {
            token: {
                "token": token_name(self.tokenizer, token),
                "logprob": chance,
                "bytes": list(self.tokenizer.token_bytes(token)),
            }
            for token, chance in log_probabilities(choice).items()
        }
        return told[choice.token_id] | {"top_logprobs": [*told.values()][: self.alternatives]}


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
        logprobs = None if self.alternatives is None else self._logprobs(tokens)
        return {"text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: list[tuple[int, Choice | None]]) -> Chunk:
        """Return lists with an entry for each token; the first of a prompt was not chosen."""
        told: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
        }  # fmt: skip
        for token, choice in tokens:
            name = token_name(self.tokenizer, token)
            chances = None if choice is None else log_probabilities(choice)
            told["tokens"].append(name)
            told["token_logprobs"].append(chances and chances[token])
            told["top_logprobs"].append(chances and self._top(chances))
            told["text_offset"].append(self._offset)
            # A begin of text need not be in the text.
            if choice is not None or (self.echo or "").startswith(name):
                self._offset += len(name)
        return told

    def _top(self, chances: dict[int, float]) -> dict[str, float]:
        near = [*chances.items()][: self.alternatives]
        return {token_name(self.tokenizer, token): chance for token, chance in near}


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
