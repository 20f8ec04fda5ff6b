"""Answers as JSON: what the steps of the engine add to them."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from ..inference import Choice, Request, SamplingArgs, Step, ToolCall, split_thoughts
from ..inference.chat_formats import ToolStyle
from ..inference.grammars import GrammarMask
from ..inference.sampling import log_probabilities
from ..inference.tools import split_calls
from ..tokenizer import Tokenizer
from .bodies import ChatBody, CompletionBody

# OpenAI's names of the reasons to stop; whatever cut an answer is `length`.
_REASONS = {None: None, "eot": "stop", "stop string": "stop"}

Chunk = dict[str, Any]


@dataclass
class _Asked:
    """What the engine is asked for, and which tokens came so far."""

    tokenizer: Tokenizer
    prompt_ids: Sequence[int]
    sampling: SamplingArgs
    mask: GrammarMask | None
    body: ChatBody | CompletionBody
    alternatives: int | None  # of how many tokens `logprobs` tell; None without them
    request: Request = field(init=False)  # once it is submitted
    ids: list[int] = field(init=False, default_factory=list)
    last: float | None = field(init=False, default=None)  # when the last token came

    @property
    def candidates(self) -> int:
        """How many candidates each step has to report."""
        return 0 if self.alternatives is None else max(self.alternatives, 1)

    def take(self, steps: Sequence[Step]) -> str | None:
        """Note the tokens of steps; return the reason to stop."""
        self.ids += [step.token_id for step in steps]
        return _REASONS.get(steps[-1].stop_reason, "length")


@dataclass
class ChatAnswer(_Asked):
    """An answer of a chat."""

    # What a client reads as the beginning of the id, and as the kind of a response and of a chunk.
    names = "chatcmpl", "chat.completion", "chat.completion.chunk"
    begins_text = True
    # The choices of the chunks before all others of a stream.
    beginning: ClassVar[list[Chunk]] = [
        {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]

    end_ids: frozenset[int]
    opened: bool | None  # whether it begins in a thought; None where none is looked for
    style: ToolStyle | None  # how it asks for calls of functions; None where it cannot
    echo: ClassVar[None] = None
    _text: str = field(init=False, default="")
    _told: tuple[str, str, int] = field(init=False, default=("", "", 0))

    def chunk(self, *steps: Step) -> Chunk:
        """Return what the next steps add."""
        self._text += "".join(step.text for step in steps)
        reason = self.take(steps)
        thought, said, calls = "", self._text, list[ToolCall]()
        if self.opened is not None:
            thought, said = split_thoughts(said, self.opened, reason is not None)
        if self.style is not None:
            said, calls = split_calls(self.style, said, reason is not None)
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
            choices = [step.choice for step in steps if step.stop_reason != "eot"]
            logprobs = {"content": [self._logprobs(one) for one in choices if one is not None]}
        reason = "tool_calls" if calls and reason == "stop" else reason
        return {"delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def choice(self, *steps: Step) -> Chunk:
        """Return what all steps say together, for a response that is not streamed."""
        whole = self.chunk(*steps)
        message = {"role": "assistant", "content": None, "refusal": None} | whole.pop("delta")
        for call in message.get("tool_calls", ()):
            del call["index"]
        message["content"] = message["content"] or (None if "tool_calls" in message else "")
        return {"message": message} | whole

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


@dataclass
class TextAnswer(_Asked):
    """A completion."""

    names = "cmpl", "text_completion", "text_completion"
    begins_text = False
    beginning: ClassVar[list[Chunk]] = []
    end_ids: ClassVar[frozenset[int]] = frozenset()

    echo: str | None  # the text of the prompt, to come before the answer
    _offset: int = field(init=False, default=0)

    def chunk(self, *steps: Step) -> Chunk:
        """Return what the next steps add, the first ones with what is echoed."""
        text, tokens = "", list[tuple[int, Choice | None]]()
        if not self.ids and self.echo is not None:
            text = self.echo
            tokens += zip(self.prompt_ids, self.request.prompt_choices or (), strict=False)
        if self.body.max_tokens != 0:
            text += "".join(step.text for step in steps)
            tokens += [(s.token_id, s.choice) for s in steps if s.stop_reason != "eot"]
        logprobs = None if self.alternatives is None else self._logprobs(tokens)
        return {"text": text, "logprobs": logprobs, "finish_reason": self.take(steps)}

    choice = chunk

    def _logprobs(self, tokens: list[tuple[int, Choice | None]]) -> Chunk:
        """Return lists with an entry for each token; the first of a prompt was not chosen."""
        told: dict[str, list[Any]] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
        }  # fmt: skip
        for token, choice in tokens:
            name, chances = token_name(self.tokenizer, token), choice and log_probabilities(choice)
            near = islice(chances.items() if chances else (), self.alternatives)
            top = {token_name(self.tokenizer, one): chance for one, chance in near}
            told["tokens"].append(name)
            told["token_logprobs"].append(chances and chances[token])
            told["top_logprobs"].append(chances and top)
            told["text_offset"].append(self._offset)
            # A begin of text need not be in the text.
            if choice is not None or (self.echo or "").startswith(name):
                self._offset += len(name)
        return told


Answer = ChatAnswer | TextAnswer


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""Return a token as text; bytes that are no whole characters as `bytes:\xe2\x80`."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
