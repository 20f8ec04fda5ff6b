"""Messages, and the chat formats: what is around them in a prompt, one builder for each format.

`docs/CHAT-FORMATS.md` shows the formats side by side and says where each comes from.
"""

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any

from ..untrusted import parse_strict_json
from .errors import ChatFormatError

ROLES = ("system", "user", "assistant", "tool")
_SHOWN_CHARS = 80
_EXPECTED = "Message, or dicts such as {'role': 'user', 'content': 'hi'}"


# A function as clients describe it: `{"type": "function", "function": {"name": ...}}`.
Tool = Mapping[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer asks for.

    Attributes:
        name: The function.
        arguments: A JSON object, as text.

    Raises:
        ChatFormatError: The arguments are something else.
    """

    name: str
    arguments: str

    def __post_init__(self) -> None:
        if not isinstance(self.values(), dict):
            raise ChatFormatError("[message] arguments of a call must be a JSON object")

    def values(self) -> object:
        """Return the arguments as JSON has them; None where it cannot be read."""
        try:
            return parse_strict_json(self.arguments.encode("utf-8", "surrogatepass"))
        except ValueError:
            return None


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Raises:
        ChatFormatError: The role is not one of `ROLES`, or the content not a text.

    Attributes:
        tool_calls: What an assistant asked for; messages of the role tool hold the results.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            shown = ascii(self.role)[:_SHOWN_CHARS]
            raise ChatFormatError(f"[message] role must be one of {', '.join(ROLES)}: got {shown}")
        kind = type(self.content)
        if not issubclass(kind, str):
            raise ChatFormatError(f"[message] content must be a text: got {kind.__name__}")


# A message as code passes it: ours, or the dict that APIs for chats share.
AnyMessage = Message | Mapping[str, str]


def as_messages(messages: Sequence[AnyMessage]) -> list[Message]:
    """Return the messages of a conversation, each as `Message`.

    Args:
        messages: Messages, or dicts with the keys `role` and `content` and no others.

    Raises:
        ChatFormatError: It is not a list of messages, it is empty, or a message cannot be read.
    """
    given: object = messages
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        got = type(given).__name__
        raise ChatFormatError(f"[chat] messages must be a list of {_EXPECTED}: got {got}")
    if not messages:
        raise ChatFormatError("[chat] messages must hold at least one message: got none")
    return [_as_message(number, message) for number, message in enumerate(messages)]


def _as_message(number: int, message: object) -> Message:
    if isinstance(message, Message):
        return message
    where = f"[chat] messages[{number}]"
    if not isinstance(message, Mapping):
        raise ChatFormatError(f"{where} must be {_EXPECTED}: got {type(message).__name__}")
    if set(message) != {"role", "content"}:
        found = ", ".join(ascii(key)[:_SHOWN_CHARS] for key in list(message)[:5]) or "none"
        raise ChatFormatError(f"{where} must have the keys role and content: got {found}")
    return Message(message["role"], message["content"])


class Edge(Enum):
    """The two special tokens that each tokenizer names itself: begin and end of text."""

    BEGIN = "begin of text"
    END = "end of text"


@dataclass(frozen=True)
class Special:
    """A special token that a format calls by its name."""

    name: str  # such as `<|eot_id|>`
    # Else the name is text for a tokenizer without it, as `[INST]` in the vocabulary of Llama 2.
    required: bool = True


Messages = Sequence[Message]
# A plain string is text, which never becomes a special id.
Part = str | Special | Edge
# Takes the messages, and whether to open the assistant's next one; where the format has tools, also
# the functions that it may ask for.
Builder = Callable[..., list[Part]]


@dataclass(frozen=True)
class ToolStyle:
    """How the answers of a chat format ask for calls: each a JSON object, between two marks."""

    key: str  # that of the arguments, beside `name`
    begin: str = ""  # the mark before a call; without marks a call is a whole answer
    end: str = ""  # the mark after it

    @property
    def gap(self) -> str:
        """Return what is between a mark and the object."""
        return "\n" if self.begin else ""

    def written(self, call: ToolCall) -> str:
        """Return a call as an answer has it."""
        arguments = json_text(call.values())
        whole = f'{{"name": "{call.name}", "{self.key}": {arguments}}}'
        return f"{self.begin}{self.gap}{whole}{self.gap}{self.end}"


def json_text(value: object, indent: int | None = None) -> str:
    """Return JSON as the chat templates of transformers write it."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


@dataclass(frozen=True)
class ChatFormat:
    """One way to write a conversation.

    Attributes:
        name: What `--chat-format` calls it.
        models: Whose format it is.
        build: Returns the parts of a conversation of at least one message.
        end_names: Special tokens that end an answer, beside those that the tokenizer knows.
        opens_thought: Whether an answer that is opened begins inside of a thought.
        no_thought: What an answer begins with to leave thoughts out: nothing where the models have
            none. None where they cannot be left out.
        build_thoughtless: Builds a conversation without thoughts where more differs than that.
        tools: How answers ask for calls of functions; None where the format has none.
    """

    name: str
    models: str
    build: Builder
    end_names: tuple[str, ...]
    opens_thought: bool = False
    no_thought: str | None = ""
    build_thoughtless: Builder | None = None
    tools: ToolStyle | None = None


def _llama3(messages: Messages, open_answer: bool, tools: Sequence[Tool] = ()) -> list[Part]:
    """Build Meta's format: headers, stripped contents.

    Source: meta-llama/llama-models, models/llama3/chat_format.py; with tools the template of
        meta-llama/Llama-3.1-8B-Instruct, which puts them into the first question.
    """
    parts: list[Part] = [Edge.BEGIN]
    if tools:
        system, (question, *messages) = _split_system(messages, "")
        written = "".join(f"{json_text(tool, 4)}\n\n" for tool in tools)
        parts += _llama3_turn("system", _LLAMA3_ENVIRONMENT + (system or "").strip())
        parts += _llama3_turn("user", _LLAMA3_TOOLS + written + question.content.strip())
    for message in messages:
        if message.tool_calls:
            if len(message.tool_calls) > 1:
                raise ChatFormatError("[chat] the format llama3 has one call in a message: got "
                                      f"{len(message.tool_calls)}")  # fmt: skip
            parts += _llama3_turn("assistant", _LLAMA3_CALLS.written(message.tool_calls[0]))
        elif message.role == "tool":
            parts += _llama3_turn("ipython", json_text(message.content))
        else:
            parts += _llama3_turn(message.role, message.content.strip())
    return parts + (_llama3_turn("assistant", None) if open_answer else [])


def _llama3_turn(role: str, content: str | None) -> list[Part]:
    start, end = Special("<|start_header_id|>"), Special("<|end_header_id|>")
    header: list[Part] = [start, role, end, "\n\n"]
    return header if content is None else [*header, content, Special("<|eot_id|>")]


def _chatml(
    messages: Messages,
    open_answer: bool,
    tools: Sequence[Tool] = (),
    begin: tuple[Part, ...] = (),
    default_system: str | None = None,
) -> list[Part]:
    """Build ChatML: each message between two special tokens, its role in the first line.

    Tools are part of the system message, for which there may be a default; `begin` comes first.
    """
    start, end, parts = Special("<|im_start|>"), Special("<|im_end|>"), list(begin)
    system, messages = _split_system(messages, default_system)
    if tools:
        written = "".join(f"\n{json_text(tool)}" for tool in tools)
        before, after = map(_marked, _CHATML_TOOLS)
        told = "" if system is None else f"{system}\n\n"
        parts += (start, "system\n", told, *before, written, *after, end, "\n")
    elif system is not None:
        parts += (start, f"system\n{system}", end, "\n")
    for number, message in enumerate(messages):
        if message.role != "tool":
            parts += (start, f"{message.role}\n{message.content}")
            for at, call in enumerate(message.tool_calls):
                parts += ("\n" if at or message.content else "", *_marked(_CALLS.written(call)))
        elif number and messages[number - 1].role == "tool":  # one turn has all results
            parts = [*parts[:-2], "\n", *_tool_result(message)]
        else:
            parts += (start, "user\n", *_tool_result(message))
        parts += (end, "\n")
    return parts + ([start, "assistant\n"] if open_answer else [])


def _tool_result(message: Message) -> list[Part]:
    return [*_marked("<tool_response>\n"), message.content, *_marked("\n</tool_response>")]


def _marked(text: str) -> list[Part]:
    """Cut a text that the format writes at marks which are tokens of some vocabularies."""
    cut = re.split("(</?tool_(?:call|response)>)", text)
    return [Special(part, required=False) if n % 2 else part for n, part in enumerate(cut)]


def _split_system(messages: Messages, default: str | None = None) -> tuple[str | None, Messages]:
    """Return the system message that a conversation begins with, or a default, and the rest."""
    has_own = messages[0].role == "system"
    return (messages[0].content, messages[1:]) if has_own else (default, messages)


def _qwen3(messages: Messages, open_answer: bool, tools: Sequence[Tool] = ()) -> list[Part]:
    """Build ChatML in which only what follows the last question keeps its thoughts."""
    result = re.compile("<tool_response>.*</tool_response>", re.DOTALL)
    questions = [n for n, message in enumerate(messages)
                 if message.role == "user" and not result.fullmatch(message.content)]  # fmt: skip
    last, written = questions[-1] if questions else len(messages) - 1, []
    for number, message in enumerate(messages):
        content = message.content
        if message.role == "assistant":
            before, *rest = content.split("</think>")
            content = rest[-1].lstrip("\n") if rest else content
            thought = before.split("<think>")[-1].strip("\n") if rest else ""
            if number > last and (thought or number == len(messages) - 1):
                content = f"<think>\n{thought}\n</think>\n\n{content.lstrip(chr(10))}"
        written.append(replace(message, content=content))
    return _chatml(written, open_answer, tools)


def _smollm3(messages: Messages, open_answer: bool, thinks: bool = True) -> list[Part]:
    """Build ChatML with a header, in which the first system message is one of several parts.

    Later ones are left out. If none says it, `thinks` tells whether answers begin with thoughts.
    """
    given = messages[0].content if messages[0].role == "system" else ""
    thinks = "/no_think" not in given and (thinks or "/think" in given)
    custom = given.replace("/no_think", "").replace("/think", "").rstrip()
    start, end = Special("<|im_start|>"), Special("<|im_end|>")
    parts: list[Part] = [start]
    if "/system_override" in given:
        parts += (f"system\n{custom.replace('/system_override', '').rstrip()}", end, "\n")
    else:  # only a list of tools, which is never there, would end this message
        mode, own = ("/think", _SMOLLM3_THOUGHTS) if thinks else ("/no_think", "")
        today = f"{datetime.date.today():%d %B %Y}"
        parts += [_SMOLLM3_SYSTEM.format(today, mode, custom or f"{_SMOLLM2_SYSTEM}.{own}")]
    answer = "assistant\n" if thinks else "assistant\n<think>\n\n</think>\n"
    for message in messages:
        if message.role == "user":
            parts += (start, f"user\n{message.content}", end, "\n")
        elif message.role == "assistant":
            parts += (start, answer + message.content.lstrip("\n"), end, "\n")
    return parts + ([start, answer] if open_answer else [])


def _granite(messages: Messages, open_answer: bool, is_dated: bool = False) -> list[Part]:
    """Build Granite's format; a default system message has the date of the day in it."""
    if is_dated and messages[0].role != "system":
        default = f"{datetime.date.today():{_GRANITE_SYSTEM}}"
        messages = [Message("system", default), *messages]
    start, end = Special("<|start_of_role|>"), Special("<|end_of_role|>")
    parts: list[Part] = []
    for message in messages:
        parts += (start, message.role, end, message.content, Special("<|end_of_text|>"), "\n")
    return parts + ([start, "assistant", end] if open_answer else [])


def _olmo2(messages: Messages, open_answer: bool) -> list[Part]:
    """Build the format of OLMo 2 and Tulu 3, whose roles are text."""
    parts: list[Part] = [Edge.BEGIN]
    for message in messages:
        end = (Edge.END,) if message.role == "assistant" else ()
        is_end = message is messages[-1] and message.role == "assistant"
        parts += (f"<|{message.role}|>\n{message.content}", *end, "" if is_end else "\n")
    return parts + (["<|assistant|>\n"] if open_answer else [])


def _zephyr(messages: Messages, open_answer: bool) -> list[Part]:
    """Build Zephyr's format; without a begin of text, as its published template."""
    parts: list[Part] = []
    for message in messages:
        role = Special(f"<|{message.role}|>", required=False)
        parts += (role, f"\n{message.content}", Edge.END, "\n")
    return parts + ([Special("<|assistant|>", required=False), "\n"] if open_answer else [])


def _deepseek_r1(messages: Messages, open_answer: bool, opening: Sequence[Part] = ()) -> list[Part]:
    """Build R1-Distill's format: earlier answers lose their reasoning; `opening` begins one."""
    user, assistant = Special("<｜User｜>"), Special("<｜Assistant｜>")
    system = [message.content for message in messages if message.role == "system"]
    parts: list[Part] = [Edge.BEGIN, *system[-1:]]
    for message in messages:
        if message.role == "user":
            parts += (user, message.content)
        elif message.role == "assistant":
            answer = message.content.split("</think>")[-1]
            parts += (assistant, answer, Special("<｜end▁of▁sentence｜>"))
    return parts + ([assistant, *opening] if open_answer else [])


def _llama2(messages: Messages, _open_answer: bool) -> list[Part]:
    """Build Llama 2's format: each exchange has its own begin and end of text.

    Source: meta-llama/llama, llama/generation.py, `chat_completion`.
    """
    opening, closing = Special("[INST]", required=False), Special("[/INST]", required=False)
    system, turns = _alternating(messages)
    parts: list[Part] = []
    for message in turns:
        if message.role == "assistant":
            parts += (f" {message.content.strip()} ", Edge.END)
            continue
        content = message.content
        if message is turns[0] and system is not None:
            content = f"<<SYS>>\n{system}\n<</SYS>>\n\n{content}"
        parts += (Edge.BEGIN, opening, f" {content.strip()} ", closing)
    return parts


def _mistral(
    messages: Messages,
    _open_answer: bool,
    before: str = "",  # text before `[INST]`
    answer: str = "",  # text before an answer
    after: str = "",  # text after the end of an answer
    is_v3: bool = False,
) -> list[Part]:
    """Build one of Mistral's formats: they differ in spaces and in the place of the system message.

    The system message goes into the first question. In version 3 it goes into the last message if
    that is a question, and is left out otherwise; there answers are stripped, and `[INST]` and
    `[/INST]` have to be special tokens.
    """
    opening, closing = Special("[INST]", is_v3), Special("[/INST]", is_v3)
    system, turns = _alternating(messages)
    place = len(turns) - 1 if is_v3 else 0
    parts: list[Part] = [Edge.BEGIN]
    for index, message in enumerate(turns):
        content = message.content
        if message.role == "assistant":
            parts += (f"{answer}{content.strip() if is_v3 else content}", Edge.END, after)
            continue
        if index == place and system is not None:
            content = f"{system}\n\n{content}"
        parts += (before, opening, f" {content}{'' if is_v3 else ' '}", closing)
    return parts


def _alternating(messages: Messages) -> tuple[str | None, Messages]:
    """Split a conversation into its system message and the turns after it: user, assistant, ..."""
    system, turns = _split_system(messages)
    for index, message in enumerate(turns):
        number, expected = len(messages) - len(turns) + index + 1, ("user", "assistant")[index % 2]
        if message.role != expected:
            raise ChatFormatError(
                "[chat] after an optional system message, roles must alternate from user on: "
                f"message {number} is of {message.role}, expected {expected}"
            )
    return system, turns


_SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_QWEN2_SYSTEM = "You are a helpful assistant."
_GRANITE_SYSTEM = (
    "Knowledge Cutoff Date: April 2024.\nToday's Date: %B %d, %Y.\n"
    "You are Granite, developed by IBM. You are a helpful AI assistant."
)
_SMOLLM3_SYSTEM = (
    "system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: {}\n"
    "Reasoning Mode: {}\n\n## Custom Instructions\n\n{}\n\n"
)
_SMOLLM3_THOUGHTS = (
    " Your role as an assistant involves thoroughly exploring questions through a systematic "
    "thinking process before providing the final precise and accurate solutions. This requires "
    "engaging in a comprehensive cycle of analysis, summarizing, exploration, reassessment, "
    "reflection, backtracking, and iteration to develop well-considered thinking process. Please "
    "structure your response into two main sections: Thought and Solution using the specified "
    "format: <think> Thought section </think> Solution section. In the Thought section, detail "
    "your reasoning process in steps. Each step should include detailed considerations such as "
    "analysing questions, summarizing relevant findings, brainstorming new ideas, verifying the "
    "accuracy of the current steps, refining any errors, and revisiting previous steps. In the "
    "Solution section, based on various attempts, explorations, and reflections from the Thought "
    "section, systematically present the final solution that you deem correct. The Solution "
    "section should be logical, accurate, and concise and detail necessary steps needed to reach "
    "the conclusion."
)
_LLAMA3_ENVIRONMENT = (
    "Environment: ipython\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
)
_LLAMA3_TOOLS = (
    "Given the following functions, please respond with a JSON for a function call with its proper "
    "arguments that best answers the given prompt.\n\nRespond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.'
    "Do not use variables.\n\n"
)
_LLAMA3_CALLS = ToolStyle("parameters")
_CALLS = ToolStyle("arguments", "<tool_call>", "</tool_call>")
_CHATML_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    'within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, '
    '"arguments": <args-json-object>}\n</tool_call>',
)
_QWEN2_5_SYSTEM = f"You are Qwen, created by Alibaba Cloud. {_QWEN2_SYSTEM}"
_QWEN2_5 = partial(_chatml, default_system=_QWEN2_5_SYSTEM)
_QWEN3_NO_THOUGHT = "<think>\n\n</think>\n\n"
_SMOLLM3_BRIEF = partial(_smollm3, thinks=False)
_R1 = partial(_deepseek_r1, opening=(Special("<think>", required=False), "\n"))
_MISTRAL_V1 = partial(_mistral, before=" ", answer=" ")
_MISTRAL_V3 = partial(_mistral, answer=" ", is_v3=True)
_MISTRAL_2023 = partial(_mistral, after=" ")
_EOS, _IM_END, _R1_END = ("</s>",), ("<|im_end|>",), ("<｜end▁of▁sentence｜>",)
_GRANITE_END = ("<|end_of_text|>",)
_LLAMA3_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")

_ROWS = (
    ChatFormat("llama3", "Llama 3, 3.1, 3.2, 3.3", _llama3, _LLAMA3_ENDS, tools=_LLAMA3_CALLS),
    ChatFormat("llama2", "Llama 2 Chat, Code Llama Instruct", _llama2, _EOS),
    ChatFormat("chatml", "SmolLM", _chatml, _IM_END),
    ChatFormat("chatml-bos", "Hermes 3", partial(_chatml, begin=(Edge.BEGIN,)), _IM_END),
    ChatFormat("smollm2", "SmolLM2", partial(_chatml, default_system=_SMOLLM2_SYSTEM), _IM_END),
    ChatFormat("qwen2", "Qwen2", partial(_chatml, default_system=_QWEN2_SYSTEM), _IM_END),
    ChatFormat("qwen2.5", "Qwen2.5", _QWEN2_5, _IM_END, tools=_CALLS),
    ChatFormat("qwen3", "Qwen3", _qwen3, _IM_END, no_thought=_QWEN3_NO_THOUGHT, tools=_CALLS),
    ChatFormat("smollm3", "SmolLM3", _smollm3, _IM_END, build_thoughtless=_SMOLLM3_BRIEF),
    ChatFormat("granite", "Granite 3.1, 3.2, 3.3", partial(_granite, is_dated=True), _GRANITE_END),
    ChatFormat("granite-3.0", "Granite 3.0", _granite, _GRANITE_END),
    ChatFormat("olmo2", "OLMo 2 Instruct", _olmo2, ("<|endoftext|>",)),
    ChatFormat("zephyr", "TinyLlama Chat, Zephyr", _zephyr, _EOS),
    ChatFormat("mistral-v1", "Mistral 7B Instruct v0.1, v0.2", _MISTRAL_V1, _EOS),
    ChatFormat("mistral-v3", "Mistral 7B Instruct v0.3", _MISTRAL_V3, _EOS),
    ChatFormat(
        "mistral-v0.1-2023", "Mistral 7B Instruct v0.1, first template", _MISTRAL_2023, _EOS
    ),
    ChatFormat("mistral-v0.2-2023", "Mistral 7B Instruct v0.2, first template", _mistral, _EOS),
    ChatFormat("deepseek-r1", "R1-Distill", _R1, _R1_END, opens_thought=True, no_thought=None),
    ChatFormat(
        "deepseek-r1-2025-01", "R1-Distill, first template", _deepseek_r1, _R1_END, no_thought=None
    ),
)

CHAT_FORMATS: Mapping[str, ChatFormat] = MappingProxyType({row.name: row for row in _ROWS})
