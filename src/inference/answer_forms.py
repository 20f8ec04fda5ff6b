"""Forms of answers: how models write function calls and thoughts, and how to read both.

The text of a chat template shows which form its model uses. The rows below are the known
forms. `call_form_of` and `thought_form_of` choose one by the marks in the text of a
template. The forms come from the published templates; llama.cpp keeps copies of most of
them in `models/templates`.
"""

import json
import re
from dataclasses import dataclass
from functools import cache

from .answer import overlap
from .errors import ChatFormatError
from .messages import ToolCall

# The most characters of one call or list of calls. A longer one is not read, so that a
# hostile answer takes little memory.
_MOST_CHARS = 1 << 20
# In the form of a call: the name of the function, the identifier of the call and its
# arguments.
NAME = "NAME"
IDENTITY = "IDENTITY"
ARGUMENTS = "ARGUMENTS"
_ARGUMENT_KEYS = ("arguments", "parameters")
_OBJECT = '{"name": "NAME", "arguments": ARGUMENTS}'
_DECODER = json.JSONDecoder()
_BLANKS = re.compile(r"[ \t\n\r]*")
# The patterns for NAME and IDENTITY, for reading answers.
_READ = {NAME: r"""(?P<name>[^\s<>[{"]+)""", IDENTITY: "[a-zA-Z0-9]+"}


@dataclass(frozen=True)
class CallForm:
    r"""One way to write calls: `begin open call (between call)* close`.

    Grammars write these texts unchanged. A reader accepts optional white space between
    them. A call that is a JSON object may have its keys in any order, and may have other
    keys too.

    Attributes:
        name: The name of the form in this module.
        models: The models that use it.
        markers: Texts that a template with this form contains, all of them.
        absent: Texts that such a template does not contain.
        begin: The mark before the calls, which grammars exclude from text. Without a
            mark, a call is a whole answer.
        other_begins: Marks that have the same meaning.
        open: Text between the mark and the first call.
        call: A call, with NAME, ARGUMENTS for a JSON object, and optionally IDENTITY for
            nine letters and digits that are unique to the call.
        between: Text between two calls, or None if an answer has at most one call.
        close: Text after the last call.
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

    @property
    def begins(self) -> tuple[str, ...]:
        """Return all marks before calls, first the mark that grammars write."""
        return (self.begin, *self.other_begins) if self.begin else self.other_begins


@dataclass(frozen=True)
class ThoughtForm:
    """One way to write thoughts at the beginning of an answer: `begin thought end`.

    Attributes:
        name: The name of the form in this module.
        models: The models that use it.
        markers: Texts that a template with this form contains, all of them.
        begin: The mark before the thoughts.
        end: The mark after them.
        said_begin: The optional mark before the rest of the answer.
        said_end: The mark after the rest, if `said_begin` precedes it.
    """

    name: str
    models: str
    markers: tuple[str, ...]
    begin: str
    end: str
    said_begin: str = ""
    said_end: str = ""


# The first row whose markers a template contains is its form, so the order matters.
CALL_FORMS = (
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
        # Qwen3-Coder and GLM write XML between the marks. Apriel writes a list between
        # other marks.
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

# The form of models whose template does not show one.
THINK = THOUGHT_FORMS[1]


def call_form_of(template: str) -> CallForm | None:
    """Return the form of calls that a chat template shows, or None."""
    for form in CALL_FORMS:
        is_marked = all(marker in template for marker in form.markers)
        if is_marked and not any(text in template for text in form.absent):
            return form
    return None


def thought_form_of(template: str) -> ThoughtForm | None:
    """Return the form of thoughts that a chat template shows, or None."""
    for form in THOUGHT_FORMS:
        if all(marker in template for marker in form.markers):
            return form
    return None


def split_thoughts(
    text: str, opened: bool = False, is_over: bool = True, form: ThoughtForm = THINK
) -> tuple[str, str]:
    """Return the thoughts at the beginning of an answer, and the rest.

    Args:
        text: The answer so far.
        opened: Whether it begins inside of a thought.
        is_over: Whether the answer is complete. Otherwise text that may become a mark is
            held back.
        form: How the model writes thoughts.
    """
    begun = text.lstrip()
    if not is_over and form.begin.startswith(begun):
        return "", ""
    if not opened and not begun.startswith(form.begin):
        return "", text
    thought, mark, said = begun.removeprefix(form.begin).partition(form.end)
    if not mark:
        if not is_over:
            thought = thought[: len(thought) - overlap(thought, form.end)]
        return thought.strip("\n"), ""
    return thought.strip("\n"), _without_marks(form, said.lstrip("\n"), is_over)


def _without_marks(form: ThoughtForm, said: str, is_over: bool) -> str:
    """Return the rest of an answer without the marks around it."""
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
    """Return the text of an answer outside of its calls, and the calls.

    A call is returned when the text after the last call is complete. Calls that cannot be
    read stay text. White space before calls, and between the last call and the end, is
    dropped.

    Args:
        form: How the model writes calls.
        text: The answer so far, without thoughts.
        is_over: Whether the answer is complete. Otherwise text that may become a call is
            held back.
    """
    if not form.begin:
        return _split_whole(form, text, is_over)
    calls = list[ToolCall]()
    said = ""
    rest_start = 0
    held = None  # the index of text that may become a call
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
    """Do the work of `split_calls` for a form in which a call is a whole answer."""
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
    """Return the calls after a mark and the index of their end, or None if unreadable."""
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
    """Return the call that begins at an index, and the index of its end.

    Raises:
        ValueError: The call has another form, or it is cut.
        ChatFormatError: Its arguments are not a JSON object.
    """
    before, after = form.call.split(ARGUMENTS)
    if before.lstrip().startswith("{"):
        members, end = _read_object(text, start)
        name = json.loads(members.get("name", "null"))
        arguments = [members[key] for key in _ARGUMENT_KEYS if key in members]
        if not arguments and form.begin:
            arguments = ["{}"]  # a template may leave out empty arguments
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
    """Return the JSON text of arguments, which may be inside of a JSON string."""
    return str(json.loads(written)) if written.startswith('"') else written


def _read_object(text: str, start: int) -> tuple[dict[str, str], int]:
    """Return the members of a JSON object as written, and the index of its end."""
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
    """Return the index of the first character that is not white space."""
    blanks = _BLANKS.match(text, start)
    assert blanks is not None, "the pattern also matches an empty text"
    return blanks.end()


def _end_of(part: str, text: str, start: int) -> int:
    """Return the index after a part of a form; raise ValueError if the part is absent."""
    match = _pattern(part).match(text, start)
    if match is None:
        raise ValueError(f"expected {part!r}")
    return match.end()


@cache
def _pattern(part: str) -> re.Pattern[str]:
    """Compile a part of a form to a pattern in which white space is optional."""
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
    """Compile a pattern that matches any of some marks."""
    return re.compile("|".join(map(re.escape, marks)))
