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

# Forms of a message; see `_turn`.
_LLAMA3 = "{<|start_header_id|>}ROLE{<|end_header_id|>}\n\nTEXT{<|eot_id|>}"
_CHATML = "{<|im_start|>}ROLE\nTEXT{<|im_end|>}\n"


@dataclass(frozen=True)
class ToolStyle:
    """How the answers of a chat format ask for calls: each a JSON object, between two marks."""

    key: str  # that of the arguments, beside `name`
    begin: str = ""  # the mark before a call; without marks a call is a whole answer
    end: str = ""  # the mark after it

    def written(self, call: ToolCall) -> list[Part]:
        """Return a call as an answer has it; the marks are tokens of some vocabularies."""
        whole = f'{{"name": "{call.name}", "{self.key}": {json_text(call.values())}}}'
        begin, end = (Special(mark, required=False) for mark in (self.begin, self.end))
        return [begin, f"\n{whole}\n", end] if self.begin else [whole]


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
        opens_thought: Whether an answer that is opened begins inside of a thought.
        no_thought: What an answer begins with to leave thoughts out: nothing where the models have
            none. None where they cannot be left out.
        build_thoughtless: Builds a conversation without thoughts where more differs than that.
        tools: How answers ask for calls of functions; None where the format has none.
    """

    name: str
    models: str
    build: Builder
    opens_thought: bool = False
    no_thought: str | None = ""
    build_thoughtless: Builder | None = None
    tools: ToolStyle | None = None

    @property
    def specials(self) -> list[Special | Edge]:
        """Return the special tokens of a question and its answer, which ends with the last one."""
        parts = self.build([Message("user", ""), Message("assistant", "")], False)
        return [part for part in parts if not isinstance(part, str)]


def _parts(form: str) -> list[Part]:
    """Cut a form at its special tokens: `{bos}`, `{eos}`, `{name}`; `{name?}` may be text."""
    parts: list[Part] = []
    for number, piece in enumerate(re.split(r"\{(bos|eos|[<[].+?)\}", form)):
        name = piece.removesuffix("?")
        special = {"bos": Edge.BEGIN, "eos": Edge.END}.get(name) or Special(name, name == piece)
        parts.append(special if number % 2 else piece)
    return parts


def _turn(form: str, role: str, *content: Part) -> list[Part]:
    """Write a message: in its form, ROLE and TEXT are in the places of role and content."""
    before, _, after = form.replace("ROLE", role).partition("TEXT")
    return [*_parts(before), *content, *_parts(after)]


def _opening(form: str) -> list[Part]:
    """Return what comes before the content of an answer."""
    return _parts(form.replace("ROLE", "assistant").partition("TEXT")[0])


def _split_system(messages: Messages) -> tuple[str | None, Messages]:
    """Return the system message that a conversation begins with, if any, and the rest."""
    has_one = messages[0].role == "system"
    return (messages[0].content, messages[1:]) if has_one else (None, messages)


def _llama3(messages: Messages, open_answer: bool, tools: Sequence[Tool] = ()) -> list[Part]:
    """Build Meta's format: headers, stripped contents.

    Source: meta-llama/llama-models, models/llama3/chat_format.py; with tools the template of
        meta-llama/Llama-3.1-8B-Instruct, which puts them into the first question.
    """
    parts: list[Part] = [Edge.BEGIN]
    if tools:
        system, messages = _split_system(messages)
        if not messages:
            raise ChatFormatError("[chat] the format llama3 has tools in a question: got none")
        question, *messages = messages
        described = "".join(f"{json_text(tool, 4)}\n\n" for tool in tools)
        parts += _turn(_LLAMA3, "system", _LLAMA3_ENVIRONMENT + (system or "").strip())
        parts += _turn(_LLAMA3, "user", _LLAMA3_TOOLS + described + question.content.strip())
    for message in messages:
        if (count := len(message.tool_calls)) > 1:
            raise ChatFormatError(
                f"[chat] the format llama3 has one call in a message: got {count}"
            )
        if count:
            parts += _turn(_LLAMA3, "assistant", *_LLAMA3_CALLS.written(message.tool_calls[0]))
        elif message.role == "tool":
            parts += _turn(_LLAMA3, "ipython", json_text(message.content))
        else:
            parts += _turn(_LLAMA3, message.role, message.content.strip())
    return parts + (_opening(_LLAMA3) if open_answer else [])


def _chatml(
    messages: Messages,
    open_answer: bool,
    tools: Sequence[Tool] = (),
    form: str = _CHATML,
    begin: str = "",
    default_system: str = "",
) -> list[Part]:
    """Build ChatML, or a format in which all messages have another form.

    Tools are part of the system message. For that there may be a default, in which `%d` and the
    like are the date of the day; `begin` comes first.
    """
    if default_system and messages[0].role != "system":
        default = datetime.date.today().strftime(default_system)
        messages = [Message("system", default), *messages]
    turns: list[tuple[str, list[Part]]] = []
    if tools:
        system, messages = _split_system(messages)
        told = "" if system is None else f"{system}\n\n"
        described = "".join(f"\n{json_text(tool)}" for tool in tools)
        turns.append(("system", [told, *_turn(_CHATML_TOOLS, "", described)]))
    for number, message in enumerate(messages):
        if message.role != "tool":
            content: list[Part] = [message.content]
            for at, call in enumerate(message.tool_calls):
                content += ("\n" if at or message.content else "", *_CALLS.written(call))
            turns.append((message.role, content))
            continue
        result = _turn("{<tool_response>?}\nTEXT\n{</tool_response>?}", "", message.content)
        if number and messages[number - 1].role == "tool":  # one turn has all results
            turns[-1][1].extend(("\n", *result))
        else:
            turns.append(("user", result))
    parts = [part for role, content in turns for part in _turn(form, role, *content)]
    return [*_parts(begin), *parts, *(_opening(form) if open_answer else ())]


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
    given = _split_system(messages)[0] or ""
    thinks = "/no_think" not in given and (thinks or "/think" in given)
    custom = given.replace("/no_think", "").replace("/think", "").rstrip()
    if "/system_override" in given:
        parts = _turn(_CHATML, "system", custom.replace("/system_override", "").rstrip())
    else:  # only a list of tools, which is never there, would end this message
        mode, own = ("/think", _SMOLLM3_THOUGHTS) if thinks else ("/no_think", "")
        today = f"{datetime.date.today():%d %B %Y}"
        header = _SMOLLM3_SYSTEM.format(today, mode, custom or f"{_SMOLLM2_SYSTEM}.{own}")
        parts = [Special("<|im_start|>"), header]
    thought = "" if thinks else "<think>\n\n</think>\n"
    for message in messages:
        if message.role == "user":
            parts += _turn(_CHATML, "user", message.content)
        elif message.role == "assistant":
            parts += _turn(_CHATML, "assistant", thought + message.content.lstrip("\n"))
    return parts + ([*_opening(_CHATML), thought] if open_answer else [])


def _olmo2(messages: Messages, open_answer: bool) -> list[Part]:
    """Build the format of OLMo 2 and Tulu 3, whose roles are text."""
    parts: list[Part] = [Edge.BEGIN]
    for message in messages:
        end = (Edge.END,) if message.role == "assistant" else ()
        is_end = message is messages[-1] and message.role == "assistant"
        parts += (f"<|{message.role}|>\n{message.content}", *end, "" if is_end else "\n")
    return parts + (["<|assistant|>\n"] if open_answer else [])


def _deepseek_r1(messages: Messages, open_answer: bool, opening: str = "") -> list[Part]:
    """Build R1-Distill's format: earlier answers lose their reasoning; `opening` begins one."""
    system = [message.content for message in messages if message.role == "system"]
    parts: list[Part] = [Edge.BEGIN, *system[-1:]]
    for message in messages:
        if message.role == "user":
            parts += _turn("{<｜User｜>}TEXT", "", message.content)
        elif message.role == "assistant":
            answer = message.content.split("</think>")[-1]
            parts += _turn("{<｜Assistant｜>}TEXT{<｜end▁of▁sentence｜>}", "", answer)
    return parts + (_parts("{<｜Assistant｜>}" + opening) if open_answer else [])


def _exchanges(
    messages: Messages,
    _open_answer: bool,
    question: str = "{[INST]?} TEXT {[/INST]?}",
    answer: str = "TEXT{eos}",
    begin: str = "{bos}",
    frame: str = "{}\n\n{}",
    place: int = 0,
    stripped: tuple[str, ...] = (),
) -> list[Part]:
    """Build a format of questions and answers, each in its form; `begin` comes first.

    The system message goes into a question: `frame` takes both, and `place` is that of the question
    among the turns. Where an answer is there, it is left out. Contents of the roles in `stripped`
    lose white space at both ends.
    """
    system, turns = _split_system(messages)
    parts = _parts(begin)
    for index, message in enumerate(turns):
        number, expected = len(messages) - len(turns) + index + 1, ("user", "assistant")[index % 2]
        if message.role != expected:
            raise ChatFormatError(
                "[chat] after an optional system message, roles must alternate from user on: "
                f"message {number} is of {message.role}, expected {expected}"
            )
        content, form = message.content, (question, answer)[index % 2]
        if system is not None and message.role == "user" and index == place % len(turns):
            content = frame.format(system, content)
        parts += _turn(form, "", content.strip() if message.role in stripped else content)
    return parts


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
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>TEXT"
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    'within {<tool_call>?}{</tool_call>?} XML tags:\n{<tool_call>?}\n{"name": <function-name>, '
    '"arguments": <args-json-object>}\n{</tool_call>?}'
)
_QWEN2_5_SYSTEM = f"You are Qwen, created by Alibaba Cloud. {_QWEN2_SYSTEM}"
_QWEN2_5 = partial(_chatml, default_system=_QWEN2_5_SYSTEM)
_QWEN3_NO_THOUGHT = "<think>\n\n</think>\n\n"
_SMOLLM3_BRIEF = partial(_smollm3, thinks=False)
_GRANITE = partial(_chatml, form="{<|start_of_role|>}ROLE{<|end_of_role|>}TEXT{<|end_of_text|>}\n")
_GRANITE_DATED = partial(_GRANITE, default_system=_GRANITE_SYSTEM)
_ZEPHYR = partial(_chatml, form="{<|ROLE|>?}\nTEXT{eos}\n")
_R1 = partial(_deepseek_r1, opening="{<think>?}\n")
_LLAMA2 = partial(
    _exchanges, question="{bos}{[INST]?} TEXT {[/INST]?}", answer=" TEXT {eos}", begin="",
    frame="<<SYS>>\n{}\n<</SYS>>\n\n{}", stripped=("user", "assistant"),
)  # fmt: skip
_MISTRAL = partial(_exchanges, answer=" TEXT{eos}")
_MISTRAL_V1 = partial(_MISTRAL, question=" {[INST]?} TEXT {[/INST]?}")
_MISTRAL_V3 = partial(
    _MISTRAL, question="{[INST]} TEXT{[/INST]}", place=-1, stripped=("assistant",)
)
_MISTRAL_2023 = partial(_exchanges, answer="TEXT{eos} ")

_ROWS = (
    ChatFormat("llama3", "Llama 3, 3.1, 3.2, 3.3", _llama3, tools=_LLAMA3_CALLS),
    ChatFormat("llama2", "Llama 2 Chat, Code Llama Instruct", _LLAMA2),
    ChatFormat("chatml", "SmolLM", _chatml),
    ChatFormat("chatml-bos", "Hermes 3", partial(_chatml, begin="{bos}")),
    ChatFormat("smollm2", "SmolLM2", partial(_chatml, default_system=_SMOLLM2_SYSTEM)),
    ChatFormat("qwen2", "Qwen2", partial(_chatml, default_system=_QWEN2_SYSTEM)),
    ChatFormat("qwen2.5", "Qwen2.5", _QWEN2_5, tools=_CALLS),
    ChatFormat("qwen3", "Qwen3", _qwen3, no_thought=_QWEN3_NO_THOUGHT, tools=_CALLS),
    ChatFormat("smollm3", "SmolLM3", _smollm3, build_thoughtless=_SMOLLM3_BRIEF),
    ChatFormat("granite", "Granite 3.1, 3.2, 3.3", _GRANITE_DATED),
    ChatFormat("granite-3.0", "Granite 3.0", _GRANITE),
    ChatFormat("olmo2", "OLMo 2 Instruct", _olmo2),
    ChatFormat("zephyr", "TinyLlama Chat, Zephyr", _ZEPHYR),
    ChatFormat("mistral-v1", "Mistral 7B Instruct v0.1, v0.2", _MISTRAL_V1),
    ChatFormat("mistral-v3", "Mistral 7B Instruct v0.3", _MISTRAL_V3),
    ChatFormat("mistral-v0.1-2023", "Mistral 7B Instruct v0.1, first template", _MISTRAL_2023),
    ChatFormat("mistral-v0.2-2023", "Mistral 7B Instruct v0.2, first template", _exchanges),
    ChatFormat("deepseek-r1", "R1-Distill", _R1, opens_thought=True, no_thought=None),
    ChatFormat("deepseek-r1-2025-01", "R1-Distill, first template", _deepseek_r1, no_thought=None),
)

CHAT_FORMATS: Mapping[str, ChatFormat] = MappingProxyType({row.name: row for row in _ROWS})
