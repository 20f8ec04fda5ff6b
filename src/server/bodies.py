"""Request bodies: their fields, and their conversion for the engine."""

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from ..inference import Message, SamplingArgs, Tool, ToolCall
from ..inference.grammars import Grammar, read_grammar
from ..sampling_steps import STEPS
from .errors import RequestError

# Maximum lengths of the lists in a body, because even a short entry has a cost.
MOST_TOKENS = 1 << 20
_MOST_PROMPTS = 64
_MOST_STOPS = 16
_MOST_ANSWERS = 16
_MOST_BIASED = 1024
# Added to negative seeds. JavaScript can represent all resulting integers.
_NEGATIVE_SEEDS = 1 << 53
_MOST_MESSAGES = 2048
_MOST_ADAPTERS = 64
_MOST_CHANGES = 64  # interventions of a request
_MOST_CHANGE = 200  # characters of an intervention
MOST_SCALE = 1000  # maximum magnitude of the scale of an adapter
_MOST_PARTS = 1024
_MOST_TOOLS = 128
_MOST_CONTAINERS = 1 << 16  # maximum number of lists and objects in total
_LONGEST_STOP = 4096  # maximum length; each step searches the text for its beginning
_NULL = Raw(b"null")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,18}")
# Fields that may contain any value, including null.
_OPAQUE = ("schema", "parameters", "metadata")
_WHERE = re.compile(r" - at `\$\.?([^`]*)`$")
# Matches the field name in an error of msgspec or of a `__post_init__`.
_FIELD = re.compile(
    r"Object (?:contains unknown|missing required) field `([^`]*)`|(\w+): "
)
_SETTINGS = [field.name for field in fields(SamplingArgs) if field.name != "seed"]

Text = Annotated[str, Meta(min_length=1, max_length=_LONGEST_STOP)]
Many = Annotated[int, Meta(ge=1)]
Prompts = Annotated[
    list[str | int | list[int]], Meta(min_length=1, max_length=MOST_TOKENS)
]
# The number of alternatives per token in `logprobs`.
Top = Annotated[int, Meta(ge=0, le=20)]
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
T = TypeVar("T")


class Body(Struct, forbid_unknown_fields=True):
    """A body or a part of one. Unknown fields are rejected unless they are null."""


class _StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None

    def __post_init__(self) -> None:
        if self.include_obfuscation:  # msgspec before 0.22 lacks Literal[False]
            raise ValueError("include_obfuscation: expected false or no value, got true")


class _JsonSchema(Body):
    name: str = ""  # without effect
    description: str | None = None
    schema: Raw = _NULL
    strict: bool | None = None

    def __post_init__(self) -> None:
        if bytes(self.schema) == bytes(_NULL):
            self.schema = Raw(b'{"type":"object"}')


class AdapterScale(Body):
    """The scale of a LoRA adapter, as in llama-server."""

    id: Annotated[int, Meta(ge=0)]
    scale: Annotated[float, Meta(ge=-MOST_SCALE, le=MOST_SCALE)]


class ResponseFormat(Body):
    """The format of an answer. `regex` and `grammar` (Lark) extend OpenAI's API."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: _JsonSchema | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if self.type in self.__struct_fields__[1:] and getattr(self, self.type) is None:
            raise ValueError(f"{self.type}: expected a value for this type, got none")

    def as_grammar(self) -> Grammar:
        """Return the grammar of a format other than text, or raise GrammarError."""
        if self.type == "regex":
            return Grammar("regex", self.regex or "")
        if self.type == "grammar":
            return read_grammar(self.grammar or "")
        json_schema = self.json_schema if self.type == "json_schema" else None
        return Grammar(
            "json_schema", bytes((json_schema or _JsonSchema()).schema).decode()
        )


class _TextPart(Body):
    type: Literal["text"]  # images and audio are rejected
    text: str
    prompt_cache_breakpoint: Raw = _NULL  # without effect


class _Function(Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # without effect


class _FunctionTool(Body):
    type: Literal["function"]
    function: _Function


_Tools = msgspec.defstruct("_Tools", [("tools", list[_FunctionTool])])


class _CalledFunction(Body):
    name: FunctionName
    arguments: str  # JSON


class _Call(Body):
    function: _CalledFunction
    type: Literal["function"] = "function"
    id: str | None = None
    # Part of a streamed call that a client sends back; only the order matters.
    index: int | None = None


class ChatMessage(Body):
    """A message. Fields that clients copy from an answer may be null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[_TextPart], Meta(max_length=_MOST_PARTS)] | None = None
    name: str | None = None
    refusal: None = None
    annotations: Raw = _NULL
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[_Call], Meta(max_length=_MOST_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def __post_init__(self) -> None:
        if self.content is None and not self.tool_calls:
            raise ValueError("content: expected a text, got none")
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls: expected the role assistant, got {self.role}")

    def as_message(self) -> Message:
        """Return the message; raise ChatFormatError for invalid call arguments."""
        content = self.content or ""
        text = (
            content
            if isinstance(content, str)
            else "".join(part.text for part in content)
        )
        calls = tuple(
            ToolCall(call.function.name, call.function.arguments, call.id or "")
            for call in self.tool_calls or ()
        )
        return Message(
            role="system" if self.role == "developer" else self.role,
            content=text,
            tool_calls=calls,
            reasoning=self.reasoning_content or "",
            name=self.name or "",
            tool_call_id=self.tool_call_id or "",
        )


if TYPE_CHECKING:
    _Steps = Body
else:  # one field for each sampling step
    _Steps = msgspec.defstruct(
        "_Steps",
        [
            (name, (int if step.is_whole else float) | None, None)
            for name, step in STEPS.items()
        ],
        bases=(Body,),
    )


class Generation(_Steps):
    """The fields that chats and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    logit_bias: Annotated[dict[str, float], Meta(max_length=_MOST_BIASED)] | None = None
    seed: int | None = None
    stop: Text | Annotated[list[Text], Meta(max_length=_MOST_STOPS)] | None = None
    n: Annotated[int, Meta(ge=1, le=_MOST_ANSWERS)] | None = None
    response_format: ResponseFormat | None = None
    # The scales of LoRA adapters, an extension as in llama-server.
    lora: Annotated[list[AdapterScale], Meta(max_length=_MOST_ADAPTERS)] | None = None
    # Changes of tensors, such as "layers.3.attention.heads[5]=0", an extension.
    interventions: (
        Annotated[
            list[Annotated[str, Meta(max_length=_MOST_CHANGE)]],
            Meta(max_length=_MOST_CHANGES),
        ]
        | None
    ) = None
    # Without API keys, requests with the same `prompt_cache_key` share cached prefixes.
    prompt_cache_key: str | None = None
    # These fields are accepted but have no effect.
    user: str | None = None
    metadata: Raw = _NULL
    store: bool | None = None
    service_tier: str | None = None

    def __post_init__(self) -> None:
        options = self.stream_options
        if options is not None and options.include_usage and not self.stream:
            raise ValueError(
                "stream_options: expected stream with include_usage, got none"
            )
        for token in self.logit_bias or ():
            if not _TOKEN_ID.fullmatch(token):
                raise ValueError(
                    f"logit_bias: expected token ids, got {ascii(token)[:80]}"
                )
        if self.response_format is not None and self.response_format.type == "text":
            self.response_format = None

    def sampling(self, defaults: Mapping[str, float]) -> list[SamplingArgs]:
        """Return the sampling settings of each answer, with consecutive seeds.

        Args:
            defaults: The settings used if a request omits them.

        Raises:
            SamplingError: A setting is out of range.
        """
        values = ((name, getattr(self, name)) for name in _SETTINGS)
        settings: dict[str, Any] = {**defaults}
        settings |= {name: value for name, value in values if value is not None}
        settings["logit_bias"] = {
            int(token): bias for token, bias in (self.logit_bias or {}).items()
        }
        first = secrets.randbits(32) if self.seed is None else self.seed
        seeds = range(first, first + (self.n or 1))
        return [
            SamplingArgs(**settings, seed=seed if seed >= 0 else seed % _NEGATIVE_SEEDS)
            for seed in seeds
        ]


class ChatBody(Generation, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=_MOST_MESSAGES)]
    max_tokens: Many | None = None
    max_completion_tokens: Many | None = None
    logprobs: bool | None = None
    top_logprobs: Top | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=_MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | _FunctionTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    # Additional variables for the chat template, which are extensions as in vLLM.
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], Meta(max_length=_MOST_TOOLS)] | None = None
    # These values have no effect. Other values would require features that are missing.
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1)] | None = None
    verbosity: Literal["medium"] | None = None
    functions: Annotated[list[Any], Meta(max_length=0)] | None = None
    function_call: Literal["none", "auto"] | None = None
    # These fields are accepted but have no effect.
    prediction: Raw = _NULL
    prompt_cache_options: Raw = _NULL
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_completion_tokens is not None:
            if self.max_tokens is not None:
                raise ValueError("max_tokens: not allowed with max_completion_tokens")
            self.max_tokens = self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs: expected logprobs as well, got none")
        _drop_nulls(self.tools or [])
        # The conversion only checks the tools. The prompt contains them unchanged.
        msgspec.convert({"tools": self.tools or []}, _Tools)
        if self.offered_tools()[0] and self.response_format is not None:
            raise ValueError("response_format: not allowed with tools")

    def offered_tools(self) -> tuple[list[Tool], list[Tool]]:
        """Return the functions in the prompt, and the functions that may be called."""
        choice = self.tool_choice
        tools = self.tools or []
        if choice == "none" or (choice in (None, "auto") and not tools):
            return [], []
        chosen: list[Tool] = [
            tool
            for tool in tools
            if isinstance(choice, str | None)
            or tool["function"]["name"] == choice.function.name
        ]
        if not chosen:
            raise ValueError(
                "tool_choice: expected functions of tools, got others or none"
            )
        return [*tools], chosen


class CompletionBody(Generation, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | Prompts
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    logprobs: Top | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens: expected at least 1, or echo, got 0")
        if len({type(part) for part in self.prompt}) > 1:
            raise ValueError(
                "prompt: expected a text, texts, ids, or lists of ids, got a mixture"
            )
        if len(self.prompts()) > _MOST_PROMPTS:
            raise ValueError(
                f"prompt: expected at most {_MOST_PROMPTS} prompts, got "
                f"{len(self.prompts())}"
            )

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts, each as a string or as token ids."""
        is_one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if is_one else self.prompt  # type: ignore


def prepare(kind: type) -> None:
    """Make msgspec inspect a body type before threads parse bodies of this type.

    If two threads parse the first body of a type at the same time, one of them uses a
    partially initialized type, and the process ends with a segmentation fault (msgspec
    0.20 to 0.22).
    """
    msgspec.json.Decoder(kind)
    msgspec.convert({"tools": []}, _Tools)


def parse_body(content: bytes, kind: type[T]) -> T:
    """Return a parsed body, or raise a RequestError that names the invalid field.

    Fields that are null are treated as absent.
    """
    _check_containers(content)
    try:
        # Decoding checks the UTF-8 of `Raw` values, which msgspec does not check.
        text = content.decode()
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.ValidationError:
            if "null" not in text:
                raise
            fields = msgspec.json.decode(text)
            _drop_nulls(fields)
            return msgspec.json.decode(json.dumps(fields), type=kind)
    except msgspec.ValidationError as error:
        location = _WHERE.search(str(error))
        problem = _WHERE.sub("", str(error))
        field = _FIELD.match(problem)
        name = (field[1] or field[2]) if field else ""
        path = ".".join(filter(None, (location and location[1], name))) or None
        if problem.startswith("Object contains unknown field"):
            problem = "expected a supported field, got an unknown one"
        message = f"{path or 'the body'}: {problem.removeprefix(f'{name}: ')}"
        raise RequestError(400, message, path, "invalid_value") from None
    except (UnicodeDecodeError, RecursionError, msgspec.DecodeError) as error:
        raise RequestError(
            400, f"the body: expected JSON, got: {error}", None, "invalid_json"
        ) from None


def _check_containers(content: bytes) -> None:
    """Raise RequestError if a body contains too many lists and objects.

    Each of them, even an empty one, costs as much as hundreds of bytes of text.
    """
    if content.count(b"[") + content.count(b"{") <= _MOST_CONTAINERS:
        return
    structure = _STRING.sub(b"", content)
    count = structure.count(b"[") + structure.count(b"{")
    if count > _MOST_CONTAINERS:
        message = (
            f"the body: expected at most {_MOST_CONTAINERS} lists and objects, got "
            f"{count}"
        )
        raise RequestError(400, message, None, "invalid_value")


def _drop_nulls(value: Any) -> None:
    """Remove null fields from a JSON value and from the values in it."""
    if isinstance(value, dict):
        for name in [name for name, item in value.items() if item is None]:
            del value[name]
        parts = [item for name, item in value.items() if name not in _OPAQUE]
    else:
        parts = value if isinstance(value, list) else []
    for part in parts:
        if part and isinstance(part, dict | list):
            _drop_nulls(part)
