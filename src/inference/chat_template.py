"""Chat templates: the program that writes a conversation as a model was trained on it.

A model comes with its template, and that one is run. For the layouts of Meta, which have
none, and for `--chat-format`, there are templates in `templates/`. `docs/CHAT-FORMATS.md`
shows what they write.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

from ..untrusted import escape_line
from .answer_forms import THINK, CallForm, ThoughtForm, call_form_of, thought_form_of
from .errors import ChatFormatError
from .marked_text import mark_values
from .messages import TEMPLATE_ROLES, Message

# Characters of a template. The longest one that is known has 35 thousand.
LONGEST_TEMPLATE = 1 << 17
# What may be a special token in the text of a template.
TOKEN_LIKE = re.compile(r"<[|｜][^<>\s]{1,60}[|｜]>|</?[\w.▁-]{1,60}>|\[/?[A-Z_]{1,60}\]")
# Arguments of `render`, which templates read under the same names.
_RESERVED_NAMES = frozenset(
    {"self", "messages", "tools", "documents", "add_generation_prompt", "special_tokens"}
)
_READ_CHARS = 1000  # of an error, which may repeat a long text
_SHOWN_CHARS = 200
_ROLE_TEXTS = {role: role for role in TEMPLATE_ROLES}
# The names of the thoughts in a message. Most templates read the first one, those of
# gpt-oss and LFM2.5 the second one. Transformers fills in both of them from any of the
# three.
_THOUGHT_NAMES = ("reasoning_content", "thinking", "reasoning")
_ADVICE = "name a format with --chat-format, or continue raw text with --completion"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Args:
        text: The template.
        name: The name of its format, for people and for `--chat-format`.
        by: How it was found: `chat template`, `special tokens`, `layout`, or the flag.
        tool_text: The template for conversations with tools, if it is another one.
        variables: What the template reads beside the conversation.
        tokens: The special tokens that a tokenizer must have; `bos` and `eos` stand for
            those that begin and end a text, whatever their names are.
        arguments: What a user gives the template to read, in addition to its own
            variables.
    """

    text: str
    name: str = "of the model"
    by: str = "chat template"
    tool_text: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    tokens: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def call_form(self) -> CallForm | None:
        """How answers ask for calls of functions; None if the template has no tools."""
        return call_form_of(self.tool_text or self.text) if self.has_tools else None

    @cached_property
    def thought_form(self) -> ThoughtForm:
        """How answers begin with thoughts; that of most models if the template does not
        show it.
        """
        return thought_form_of(self.text) or THINK

    @cached_property
    def words(self) -> frozenset[str]:
        """What may be special tokens in the text of the template."""
        return frozenset(TOKEN_LIKE.findall(self.text + (self.tool_text or "")))

    @property
    def has_tools(self) -> bool:
        """Whether the template writes tools."""
        return self.tool_text is not None or self.reads("tools")

    @property
    def can_leave_out_thoughts(self) -> bool:
        """Whether answers have no thoughts, or the template has a variable that leaves
        them out.
        """
        has_switch = self.reads("enable_thinking") or self.reads("thinking")
        return has_switch or thought_form_of(self.text) is None

    def with_arguments(self, arguments: Mapping[str, Any]) -> "ChatTemplate":
        """Return the template with further values that a user gives it to read.

        Raises:
            ChatFormatError: One has a name of what a conversation consists of.
        """
        check_argument_names(arguments)
        return (
            replace(self, arguments={**self.arguments, **arguments})
            if arguments
            else self
        )

    def reads(self, variable: str) -> bool:
        """Return whether the template reads a variable."""
        return re.search(rf"\b{variable}\b", self.text) is not None

    @cached_property
    def _environment(self) -> Any:
        # Jinja is loaded for chats alone, because that takes as long as loading a small
        # model.
        return import_module(".template_sandbox", __package__).TemplateEnvironment()

    @cached_property
    def _compiled(self) -> dict[str, Any]:
        return {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        **variables: Any,
    ) -> str:
        """Write a conversation.

        Args:
            messages: The messages as transformers' `apply_chat_template` takes them.
            tools: The functions that an answer may call.
            documents: Texts that an answer may quote.
            add_generation_prompt: Whether to begin an answer.
            special_tokens: The variables `bos_token`, `eos_token` and the like.
            **variables: What else the template may read.

        Returns:
            The prompt, in which the characters from outside of the template are marked.

        Raises:
            ChatFormatError: The template fails, or takes too many steps.
        """
        text = self.tool_text if tools and self.tool_text is not None else self.text
        spoken = [_with_thoughts(message) for message in messages]
        outside = {"messages": spoken, "tools": tools, "documents": documents}
        outside |= {**self.arguments, **variables}
        try:
            given = {name: mark_values(value) for name, value in outside.items()}
            for message in given["messages"]:
                if (
                    message.get("role") in TEMPLATE_ROLES
                ):  # a word of templates, as in '<|' + role
                    message["role"] = _ROLE_TEXTS[message["role"]]
            given["add_generation_prompt"] = add_generation_prompt
            if text not in self._compiled:
                self._compiled[text] = self._environment.compile_template(text)
            template = self._compiled[text]
            values = {**self.variables, **special_tokens, **given}
            rendered = self._environment.run(template, values)
        except Exception as error:  # noqa: BLE001 - a template can raise any
            raise ChatFormatError(
                f"[chat] chat template: {_reason(error)}; {_ADVICE}"
            ) from None
        return str(rendered)

    def render_messages(self, messages: Sequence[Message], **options: Any) -> str:
        """Write a conversation, with the arguments of `render`.

        Arguments of calls are objects, as transformers gives them; to a template that
        fails with objects they are given as text, which is how clients send them.
        """
        variables = [message.as_variable() for message in messages]
        try:
            return self.render(variables, **options)
        except ChatFormatError:
            if not any(message.tool_calls for message in messages):
                raise
            texts = [message.as_variable(arguments_as_text=True) for message in messages]
            try:
                return self.render(texts, **options)
            except ChatFormatError:
                pass
            raise


def check_argument_names(names: Iterable[str]) -> None:
    """Raise ChatFormatError for an argument that would replace a part of the
    conversation.
    """
    for name in names:
        if name in _RESERVED_NAMES:
            raise ChatFormatError(f"[chat] a template argument must not be called {name}")


def _with_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its thoughts under each name that templates read."""
    given = [message[name] for name in _THOUGHT_NAMES if message.get(name) is not None]
    if not given:
        return message
    return {"thinking": given[0], **message, "reasoning_content": given[0]}


def _reason(error: Exception) -> str:
    """Return the text of an error of Jinja or Python, as one short line."""
    message = " ".join(str(error)[:_READ_CHARS].split()) or type(error).__name__
    shown = escape_line(message).encode("ascii", "backslashreplace").decode()
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return shown[:_SHOWN_CHARS] + where
