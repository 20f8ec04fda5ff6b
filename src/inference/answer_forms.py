"""Parse function calls and thoughts in answers, in the formats of different models.

The source of a chat template reveals which format its model uses. `call_form_of` and
`thought_form_of` select one of the formats below by the markers in the template. The
formats are based on the published templates. llama.cpp contains copies of most of them in
`models/templates`.
"""

import json
import re
from dataclasses import dataclass
from functools import cache

from .answer import overlap
from .errors import ChatFormatError
from .messages import ToolCall

# Maximum length of a call or a list of calls, in characters. Longer ones are not parsed,
# so that a malicious answer cannot use much memory.
_MOST_CHARS = 1 << 20
# Placeholders in `CallForm.call` for the function name, the call ID and the arguments.
NAME = "NAME"
IDENTITY = "IDENTITY"
ARGUMENTS = "ARGUMENTS"
_ARGUMENT_KEYS = ("arguments", "parameters")
_OBJECT = '{"name": "NAME", "arguments": ARGUMENTS}'
_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")
# The patterns that NAME and IDENTITY match in answers.
_READ = {NAME: r"""(?P<name>[^\s<>[{"]+)""", IDENTITY: "[a-zA-Z0-9]+"}


@dataclass(frozen=True)
class CallForm:
    r"""A format for function calls: `begin open call (between call)* close`.

    Grammars require exactly these strings. The parser also accepts white space between
    them. If a call is a JSON object, the parser accepts its keys in any order, and
    ignores additional keys.

    Attributes:
        name: The name of the format in this module.
        models: The models that use this format.
        markers: Strings that must all be in the template of a model with this format.
        absent: Strings that must not be in such a template.
        begin: The marker before the calls, which grammars do not allow in plain text. If
            it is empty, a call must be the whole answer.
        other_begins: Alternative markers with the same meaning.
        open: The string between the marker and the first call.
        call: The format of a call, with the placeholders NAME, ARGUMENTS for a JSON
            object, and optionally IDENTITY for a unique ID of nine letters and digits.
        between: The string between two calls, or None if an answer can contain only one.
        close: The string after the last call.
        stop: The special token that ends an answer with a call, if another one ends
            other answers.
        follows_tokens: Whether the calls may follow special tokens, such as those of
            channels. Grammars, whose text cannot contain special tokens, can then require
            a call, but not allow one.
    """

    name: str
    models: str
    markers: tuple[str, ...]
    absent: tuple[str, ...] = ()
    begin: str = ""
    other_begins: tuple[str, ...] = ()
    open: str = ""
    call: str = _OBJECT
    between: str | None = ", "
    close: str = ""
    stop: str = ""
    follows_tokens: bool = False

    @property
    def begins(self) -> tuple[str, ...]:
        """All markers before calls, beginning with the one that grammars require."""
        return (self.begin, *self.other_begins) if self.begin else self.other_begins


@dataclass(frozen=True)
class ThoughtForm:
    """A format for thoughts at the beginning of an answer: `begin thought end`.

    Attributes:
        name: The name of the format in this module.
        models: The models that use this format.
        markers: Strings that must all be in the template of a model with this format.
        begin: The marker before the thoughts.
        end: The marker after the thoughts.
        said_begin: The optional marker before the rest of the answer.
        said_end: The marker after the rest, if `said_begin` is present.
        has_channels: Whether an answer consists of messages, each with a channel and
            perhaps a recipient in its header.
    """

    name: str
    models: str
    markers: tuple[str, ...]
    begin: str
    end: str
    said_begin: str = ""
    said_end: str = ""
    has_channels: bool = False


# The header of a message in OpenAI's Harmony format. The recipient is in the role or in
# the channel. The first header of an answer is in the prompt up to the role.
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?(?: ?to=(?P<role_to>[^\s<]+))?"
    r"<\|channel\|>(?P<channel>[a-z]+)(?: to=(?P<to>[^\s<]+))?"
    r"(?: ?<\|constrain\|>[a-z]+| [a-z]+)?<\|message\|>"
)
_MESSAGE_END = re.compile(r"<\|(?:end|call|return)\|>")
_MESSAGE_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADER_BEGINS = ("<|start|>assistant", "<|channel|>", "to=")
_MOST_HEADER_CHARS = 300
_FUNCTIONS = "functions."
_CALL_BEGIN = f"<|channel|>commentary to={_FUNCTIONS}"
_CALL_MIDDLE = " <|constrain|>json<|message|>"

# The first row that matches a template is used, so the order matters.
CALL_FORMS = (
    CallForm(
        "harmony",
        "gpt-oss",
        markers=("<|start|>assistant to=", "<|channel|>commentary "),
        begin=_CALL_BEGIN,
        call=f"NAME{_CALL_MIDDLE}ARGUMENTS",
        between=None,
        stop="<|call|>",
        follows_tokens=True,
    ),
    CallForm(
        "deepseek-r1",
        "DeepSeek V3, R1, R1-Distill",
        markers=("<｜tool▁calls▁begin｜>", "```json"),
        begin="<｜tool▁calls▁begin｜>",
        call=(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n"
            "```json\nARGUMENTS\n```<｜tool▁call▁end｜>"
        ),
        between="\n",
        close="<｜tool▁calls▁end｜>",
    ),
    CallForm(
        "deepseek-v3.1",
        "DeepSeek V3.1",
        markers=("<｜tool▁calls▁begin｜>",),
        begin="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>",
        between="",
        close="<｜tool▁calls▁end｜>",
    ),
    CallForm(
        "mistral-small-3.2",
        "Mistral Small 3.2",
        markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        begin="[TOOL_CALLS]",
        call="NAME[CALL_ID]IDENTITY[ARGS]ARGUMENTS",
        between="[TOOL_CALLS]",
    ),
    CallForm(
        "mistral-named",
        "Devstral, Magistral, Ministral 3",
        markers=("[TOOL_CALLS]", "[ARGS]"),
        begin="[TOOL_CALLS]",
        call="NAME[ARGS]ARGUMENTS",
        between="[TOOL_CALLS]",
    ),
    CallForm(
        "mistral-v3",
        "Mistral 7B Instruct v0.3, Mistral Small 3.1",
        markers=("[TOOL_CALLS] [",),
        begin="[TOOL_CALLS]",
        open=" [",
        close="]",
    ),
    CallForm(
        "mistral-nemo",
        "Mistral Nemo",
        markers=("[TOOL_CALLS]",),
        begin="[TOOL_CALLS]",
        open="[",
        close="]",
    ),
    CallForm(
        "phi-4-mini-objects",
        "Phi-4-mini with the template of llama.cpp",
        markers=("<|/tool|>", '<|tool_call|>{"name"'),
        begin="<|tool_call|>",
        between="<|/tool_call|><|tool_call|>",
        close="<|/tool_call|>",
    ),
    CallForm(
        "phi-4-mini",
        "Phi-4-mini",
        markers=("<|/tool|>",),
        begin="<|tool_call|>",
        open="[",
        close="]<|/tool_call|>",
    ),
    CallForm(
        "granite-3",
        "Granite 3.0, 3.1, 3.2, 3.3",
        markers=("<|tool_call|>",),
        begin="<|tool_call|>",
        other_begins=("<tool_call>",),
        open="[",
        close="]",
    ),
    CallForm(
        "nemotron",
        "Llama Nemotron, Nemotron Nano 2",
        markers=("<TOOLCALL>",),
        begin="<TOOLCALL>",
        open="[",
        close="]</TOOLCALL>",
    ),
    CallForm(
        "functools",
        "Firefunction v2",
        markers=("functools[",),
        begin="functools[",
        close="]",
    ),
    CallForm(
        "hermes",
        "Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4",
        markers=("<tool_call>", '"arguments'),
        # Qwen3-Coder and GLM write XML between these markers, and Apriel writes a list
        # between other markers.
        absent=("<function=", "<arg_key>", "<tool_calls>"),
        begin="<tool_call>",
        call=f"\n{_OBJECT}\n",
        between="</tool_call>\n<tool_call>",
        close="</tool_call>",
    ),
    CallForm(
        "functionary-v3.1",
        "Functionary v3.1",
        markers=("<function=", "</function>"),
        absent=("<parameter", "<tool_call>"),
        begin="<function=",
        call="NAME>ARGUMENTS",
        between="</function><function=",
        close="</function>",
    ),
    CallForm(
        "llama3",
        "Llama 3.1, 3.2, 3.3",
        markers=("<|start_header_id|>", '"parameters": '),
        other_begins=("<|python_tag|>",),
        call='{"name": "NAME", "parameters": ARGUMENTS}',
        between=None,
    ),
)

THOUGHT_FORMS = (
    ThoughtForm(
        "harmony",
        "gpt-oss",
        markers=("<|channel|>analysis<|message|>",),
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
        has_channels=True,
    ),
    ThoughtForm(
        "granite-3.3",
        "Granite 3.3",
        markers=("</think>", "<response></response>"),
        begin="<think>",
        end="</think>",
        said_begin="<response>",
        said_end="</response>",
    ),
    ThoughtForm(
        "think",
        "Qwen3, SmolLM3, DeepSeek R1",
        markers=("</think>",),
        begin="<think>",
        end="</think>",
    ),
    ThoughtForm(
        "mistral",
        "Magistral, Ministral 3 Reasoning",
        markers=("[/THINK]",),
        begin="[THINK]",
        end="[/THINK]",
    ),
    ThoughtForm(
        "granite-3.2",
        "Granite 3.2",
        markers=("Here is my thought process:", "Here is my response:"),
        begin="Here is my thought process:",
        end="Here is my response:",
    ),
    ThoughtForm(
        "command",
        "Command R7B, Command A Reasoning",
        markers=("<|START_THINKING|>", "<|END_THINKING|>"),
        begin="<|START_THINKING|>",
        end="<|END_THINKING|>",
        said_begin="<|START_RESPONSE|>",
        said_end="<|END_RESPONSE|>",
    ),
)

# The default format for models whose template does not match any format.
THINK = next(form for form in THOUGHT_FORMS if form.name == "think")


def call_form_of(template: str) -> CallForm | None:
    """Return the call format that matches a chat template, or None."""
    for form in CALL_FORMS:
        is_marked = all(marker in template for marker in form.markers)
        if is_marked and not any(text in template for text in form.absent):
            return form
    return None


def thought_form_of(template: str) -> ThoughtForm | None:
    """Return the thought format that matches a chat template, or None."""
    for form in THOUGHT_FORMS:
        if all(marker in template for marker in form.markers):
            return form
    return None


def split_thoughts(
    text: str, opened: bool = False, is_over: bool = True, form: ThoughtForm = THINK
) -> tuple[str, str]:
    """Split an answer into the thoughts at its beginning and the rest.

    Args:
        text: The answer so far.
        opened: Whether the answer begins inside a thought.
        is_over: Whether the answer is complete. Otherwise, text that may be the beginning
            of a marker is held back.
        form: How the model writes thoughts.
    """
    begun = text.lstrip()
    if not is_over and form.begin.startswith(begun):
        return "", ""
    if form.has_channels:
        is_inside = opened and not begun.startswith(form.begin)
        return _split_channels(form.begin + text if is_inside else begun, is_over)
    if not opened and not begun.startswith(form.begin):
        return "", text
    thought, mark, said = begun.removeprefix(form.begin).partition(form.end)
    if not mark:
        if not is_over:
            thought = thought[: len(thought) - overlap(thought, form.end)]
        return thought.strip("\n"), ""
    return thought.strip("\n"), _without_marks(form, said.lstrip("\n"), is_over)


def _split_channels(text: str, is_over: bool) -> tuple[str, str]:
    """Implement `split_thoughts` for answers that consist of messages with channels.

    Messages in the analysis channel are thoughts. Calls are written as in `CALL_FORMS`,
    wherever their header contains the recipient. Text without a header is part of the
    answer. A header that is cut is left out.
    """
    thoughts = list[str]()
    said = ""
    start = 0
    while start < len(text):
        header = _HEADER.match(text, start)
        if header is None:
            rest = text[start:].lstrip("\n")
            if not _may_be_header(rest, is_over):
                said += rest
            break
        end = _MESSAGE_END.search(text, header.end())
        content = text[header.end() : end.start() if end else None]
        if end is None and not is_over:
            cut = max(overlap(content, mark) for mark in _MESSAGE_ENDS)
            content = content[: len(content) - cut]
        recipient = header["role_to"] or header["to"] or ""
        if recipient.startswith(_FUNCTIONS):
            name = recipient.removeprefix(_FUNCTIONS)
            said += f"{_CALL_BEGIN}{name}{_CALL_MIDDLE}{content}"
        elif header["channel"] == "analysis":
            thoughts.append(content.strip("\n"))
        elif content:
            said += f"\n\n{content}" if said else content.lstrip("\n")
        start = len(text) if end is None else end.end()
    return "\n\n".join(filter(None, thoughts)), said


def _may_be_header(text: str, is_over: bool) -> bool:
    """Return whether a text is the beginning of a header.

    At the end of an answer, only the markers show that it is one.
    """
    begins = _HEADER_BEGINS[:2] if is_over else _HEADER_BEGINS
    if any(text.startswith(begin) for begin in begins):
        return "<|message|>" not in text and len(text) <= _MOST_HEADER_CHARS
    return not is_over and any(begin.startswith(text) for begin in begins)


def _without_marks(form: ThoughtForm, said: str, is_over: bool) -> str:
    """Return the rest of an answer without the markers around it."""
    if not form.said_begin:
        return said
    begun = said.lstrip()
    if not begun.startswith(form.said_begin):
        return "" if not is_over and form.said_begin.startswith(begun) else said
    said, mark, after = begun.removeprefix(form.said_begin).partition(form.said_end)
    if not mark and not is_over:
        said = said[: len(said) - overlap(said, form.said_end)]
    return said.strip("\n") + after


def split_calls(
    form: CallForm, text: str, is_over: bool = True
) -> tuple[str, list[ToolCall]]:
    """Split an answer into its text and its function calls.

    Calls are returned as soon as the whole list of calls is complete. Calls that cannot
    be parsed remain part of the text. White space before calls, and between the last call
    and the end of the answer, is dropped.

    Args:
        form: How the model writes calls.
        text: The answer so far, without thoughts.
        is_over: Whether the answer is complete. Otherwise, text that may be the beginning
            of a call is held back.
    """
    if not form.begin:
        return _split_whole(form, text, is_over)
    calls = list[ToolCall]()
    said = ""
    rest_start = 0
    held = None  # the index from which text may be an incomplete call
    mark = _any_of(form.begins).search(text)
    while mark is not None:
        section = _read_calls(form, text, mark.end())
        if section is not None:
            said += text[rest_start : mark.start()].rstrip()
            calls += section[0]
            rest_start = section[1]
        elif not is_over:
            held = mark.start()
            break
        mark = _any_of(form.begins).search(
            text, mark.end() if section is None else rest_start
        )
    rest = text[rest_start:held]
    if not is_over:
        if held is None:
            rest = rest[: len(rest) - max(overlap(rest, begin) for begin in form.begins)]
        rest = rest.rstrip()
    elif calls and not rest.strip():
        rest = ""
    return said + rest, calls


def _split_whole(form: CallForm, text: str, is_over: bool) -> tuple[str, list[ToolCall]]:
    """Implement `split_calls` for formats in which a call must be the whole answer."""
    mark = next((begin for begin in form.begins if text.startswith(begin)), "")
    may_be_call = mark != "" or text.startswith("{")
    if not is_over:
        may_be_mark = any(begin.startswith(text) for begin in form.begins)
        return "" if may_be_call or may_be_mark else text, []
    section = _read_calls(form, text, len(mark)) if may_be_call else None
    if section is None or text[section[1] :].strip():
        return text, []
    return "", section[0]


def _read_calls(
    form: CallForm, text: str, start: int
) -> tuple[list[ToolCall], int] | None:
    """Parse the calls after a marker.

    Return the calls and the index of their end, or None if they cannot be parsed.
    """
    text = text[: start + _MOST_CHARS]
    calls = list[ToolCall]()
    try:
        end = _end_of(form.open, text, start)
        while True:
            call, end = _read_call(form, text, end)
            calls.append(call)
            close = _pattern(form.close).match(text, end)
            if close is not None:
                return calls, close.end()
            if form.between is None:
                return None
            end = _end_of(form.between, text, end)
    except (ValueError, RecursionError, ChatFormatError):
        return None


def _read_call(form: CallForm, text: str, start: int) -> tuple[ToolCall, int]:
    """Parse the call at an index, and return it with the index of its end.

    Raises:
        ValueError: If the call has another format or is incomplete.
        ChatFormatError: If the arguments are not a JSON object.
    """
    before, after = form.call.split(ARGUMENTS)
    if before.lstrip().startswith("{"):
        members, end = _read_object(text, start)
        name = json.loads(members.get("name", "null"))
        arguments = [members[key] for key in _ARGUMENT_KEYS if key in members]
        if not arguments and form.begin:
            arguments = ["{}"]  # templates may omit empty arguments
        if not isinstance(name, str) or not name or len(arguments) != 1:
            raise ValueError("expected a name and arguments")
        return ToolCall(name, _as_arguments(arguments[0])), end
    head = _pattern(before).match(text, start)
    if head is None:
        raise ValueError(f"expected {before!r}")
    arguments_start = _end_of_blanks(text, head.end())
    _, end = _DECODER.raw_decode(text, arguments_start)
    call = ToolCall(head["name"], _as_arguments(text[arguments_start:end]))
    return call, _end_of(after, text, end)


def _as_arguments(written: str) -> str:
    """Return arguments as JSON, unwrapping them if they are inside a JSON string."""
    return str(json.loads(written)) if written.startswith('"') else written


def _read_object(text: str, start: int) -> tuple[dict[str, str], int]:
    """Parse a JSON object at an index.

    Return its members, with values as unparsed JSON, and the index of its end.
    """
    members: dict[str, str] = {}
    end = _end_of("{", text, start)
    if _pattern("}").match(text, end):
        return members, _end_of("}", text, end)
    while True:
        key, end = _DECODER.raw_decode(text, _end_of_blanks(text, end))
        if not isinstance(key, str) or key in members:
            raise ValueError("expected each key once, as a text")
        value_start = _end_of_blanks(text, _end_of(":", text, end))
        _, end = _DECODER.raw_decode(text, value_start)
        members[key] = text[value_start:end]
        if _pattern("}").match(text, end):
            return members, _end_of("}", text, end)
        end = _end_of(",", text, end)


def _end_of_blanks(text: str, start: int) -> int:
    """Return the index of the first character from `start` on that is not white space."""
    blanks = _BLANKS.match(text, start)
    assert blanks is not None, "the pattern also matches an empty text"
    return blanks.end()


def _end_of(part: str, text: str, start: int) -> int:
    """Match a part of a format, and return its end, or raise ValueError."""
    match = _pattern(part).match(text, start)
    if match is None:
        raise ValueError(f"expected {part!r}")
    return match.end()


@cache
def _pattern(part: str) -> re.Pattern[str]:
    """Compile a part of a format to a pattern in which white space is optional."""
    if not part:
        return re.compile("")
    spaced = part.replace("<", " <").strip()
    pieces = re.split(rf"({NAME}|{IDENTITY}|\s+)", spaced)
    patterns = [
        _BLANKS.pattern if piece.isspace() else _READ.get(piece, re.escape(piece))
        for piece in pieces
    ]
    return re.compile(_BLANKS.pattern + "".join(patterns))


@cache
def _any_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Compile a pattern that matches any of the markers."""
    return re.compile("|".join(map(re.escape, marks)))
