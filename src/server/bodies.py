"""What requests may say: the fields of each body, and what they mean to the engine."""

import re
import secrets
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from ..inference import Message, SamplingArgs, Tool, ToolCall
from ..inference.grammars import Grammar
from .errors import RequestError

MOST_TOKENS = 1 << 20
_MOST_PROMPTS, _MOST_STOPS, _MOST_ANSWERS = 64, 16, 16
_NULL = Raw(b"null")
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
# Where msgspec or a `__post_init__` names a field.
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `([^`]*)`|(\w+): ")
_SETTINGS = [one.name for one in fields(SamplingArgs) if one.name != "seed"]

Text = Annotated[str, Meta(min_length=1)]
Many = Annotated[int, Meta(ge=1)]
Prompts = Annotated[list[str | int | list[int]], Meta(min_length=1, max_length=MOST_TOKENS)]
Top = Annotated[int, Meta(ge=0, le=20)]  # alternatives that the `logprobs` of a token name
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
T = TypeVar("T")


class Body(Struct, forbid_unknown_fields=True):
    """A body, of whose fields each is known or refused by name."""


class _StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class _JsonSchema(Body):
    name: str = ""  # which changes nothing
    description: str | None = None
    schema: Raw = Raw(b'{"type":"object"}')
    strict: bool | None = None


class ResponseFormat(Body):
    """What an answer has to be; `regex` and `grammar` (Lark) are extensions of this server."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: _JsonSchema | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if self.type in self.__struct_fields__[1:] and getattr(self, self.type) is None:
            raise ValueError(f"{self.type}: expected with this type")

    def as_grammar(self) -> Grammar:
        """Return what an answer has to follow that is not any text, or raise GrammarError."""
        if self.type in ("regex", "grammar"):
            kind = "regex" if self.type == "regex" else "lark"
            return Grammar(kind, getattr(self, self.type))
        asked = self.json_schema if self.type == "json_schema" else None
        return Grammar("json_schema", bytes((asked or _JsonSchema()).schema).decode())


class _TextPart(Body):
    type: Literal["text"]  # pictures and sounds are refused
    text: str


class _Function(Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # which changes nothing


class _FunctionTool(Body):
    type: Literal["function"]
    function: _Function


_Tools = msgspec.defstruct("_Tools", [("tools", list[_FunctionTool])])


class _CalledFunction(Body):
    name: FunctionName
    arguments: str  # as JSON


class _Call(Body):
    type: Literal["function"]
    function: _CalledFunction
    id: str | None = None


class ChatMessage(Body):
    """A message; fields that clients send back from an answer may be null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_TextPart] | None = None
    refusal: None = None
    annotations: Raw = _NULL
    audio: None = None
    function_call: None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def __post_init__(self) -> None:
        if self.content is None and not self.tool_calls:
            raise ValueError("content: expected, got none")
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls: expected in messages of the assistant")

    def as_message(self) -> Message:
        """Return the message; raise ChatFormatError for a call whose arguments are no object."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        calls = (ToolCall(c.function.name, c.function.arguments) for c in self.tool_calls or ())
        return Message("system" if self.role == "developer" else self.role, text, tuple(calls))


class Generation(Body):
    """The fields that chats and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=_MOST_STOPS)] | None = None
    n: Annotated[int, Meta(ge=1, le=_MOST_ANSWERS)] | None = None
    response_format: ResponseFormat | None = None
    # Accepted without an effect.
    user: str | None = None
    metadata: Raw = _NULL
    store: bool | None = None
    service_tier: str | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: needs stream")
        if self.response_format is not None and self.response_format.type == "text":
            self.response_format = None

    def sampling(self) -> list[SamplingArgs]:
        """Return that of each answer; their seeds follow one another. Raises SamplingError."""
        given = ((name, getattr(self, name)) for name in _SETTINGS)
        settings = {name: value for name, value in given if value is not None}
        seed = secrets.randbits(32) if self.seed is None else self.seed
        return [SamplingArgs(**settings, seed=seed + more) for more in range(self.n or 1)]


class ChatBody(Generation, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_tokens: Many | None = None
    max_completion_tokens: Many | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | _FunctionTool | None = None
    parallel_tool_calls: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_completion_tokens is not None:
            if self.max_tokens is not None:
                raise ValueError("max_tokens: not allowed with max_completion_tokens")
            self.max_tokens = self.max_completion_tokens
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: needs logprobs")
        msgspec.convert({"tools": self.tools or []}, _Tools)  # the prompt has them as they came
        if self.functions()[0] and self.response_format is not None:
            raise ValueError("response_format: not allowed with tools")

    def functions(self) -> tuple[list[Tool], list[Tool]]:
        """Return the functions that the prompt tells of, and those that the answer may call."""
        choice, tools = self.tool_choice, self.tools or []
        if choice == "none" or (choice is None and not tools):
            return [], []
        chosen: list[Tool] = [
            tool for tool in tools
            if isinstance(choice, str | None) or tool["function"]["name"] == choice.function.name
        ]  # fmt: skip
        if not chosen:
            raise ValueError("tool_choice: expected functions of tools")
        return [*tools], chosen


class CompletionBody(Generation, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | Prompts
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Top | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: expected at least 1, or echo, got 0")
        if len({type(part) for part in self.prompt}) > 1:
            raise ValueError("prompt: expected a text, texts, ids, or lists of ids")
        if len(self.prompts()) > _MOST_PROMPTS:
            raise ValueError(f"prompt: expected at most {_MOST_PROMPTS} prompts")

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts: texts, or token ids."""
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else self.prompt  # type: ignore


def parsed(content: bytes, kind: type[T]) -> T:
    """Return a body of JSON; raise a RequestError that names the field that is wrong."""
    try:
        # msgspec does not check the UTF-8 of what it keeps as `Raw`.
        return msgspec.json.decode(content.decode(), type=kind)
    except msgspec.ValidationError as error:
        found, what = _WHERE.search(str(error)), _WHERE.sub("", str(error))
        field = _FIELD.match(what)
        name = (field[1] or field[2]) if field else ""
        place = ".".join(filter(None, (found and found[1], name))) or None
        message = f"{place or 'the body'}: {what.removeprefix(f'{name}: ')}"
        raise RequestError(400, message, place, "invalid_value") from None
    except (UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        raise RequestError(400, f"the body: expected JSON: {error}", None, "invalid_json") from None
