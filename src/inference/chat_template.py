"""Chat templates: programs that write a conversation as a model was trained on it.

A model comes with its template, which is used by default. `templates/` contains templates
for Meta's layouts, which have none, and for `--chat-format`. `docs/CHAT-FORMATS.md` shows
their output.
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

# Characters of a template. The longest known one has 35 thousand.
LONGEST_TEMPLATE = 1 << 17
# Matches a possible special token in the text of a template.
TOKEN_LIKE = re.compile(r"<[|｜][^<>\s]{1,60}[|｜]>|</?[\w.▁-]{1,60}>|\[/?[A-Z_]{1,60}\]")
# Arguments of `render`, which templates read under the same names.
_RESERVED_NAMES = frozenset(
    {"self", "messages", "tools", "documents", "add_generation_prompt", "special_tokens"}
)
_READ_CHARS = 1000  # of an error message, which may repeat a long text
_SHOWN_CHARS = 200
_ROLE_TEXTS = {role: role for role in TEMPLATE_ROLES}
# The names of the thoughts in a message. Most templates read the first one; the templates
# of gpt-oss and LFM2.5 read the second one. Transformers sets both of them from any of
# the three.
_THOUGHT_NAMES = ("reasoning_content", "thinking", "reasoning")
_ADVICE = "name a format with --chat-format, or continue raw text with --completion"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Args:
        text: The template.
        name: The name of its format, for people and for `--chat-format`.
        by: How it was found: `chat template`, `special tokens`, `layout`, or the flag.
        tool_text: The template for conversations with tools, if it is a separate one.
        variables: Variables of the template, in addition to the conversation.
        tokens: The special tokens that a tokenizer must have; `bos` and `eos` stand for
            the tokens that begin and end a text, independent of their names.
        arguments: Variables that a user sets, in addition to `variables`.
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
        """The form of function calls in answers; None if the template has no tools."""
        return call_form_of(self.tool_text or self.text) if self.has_tools else None

    @cached_property
    def thought_form(self) -> ThoughtForm:
        """The form of thoughts in answers; by default the most common one."""
        return thought_form_of(self.text) or THINK

    @cached_property
    def words(self) -> frozenset[str]:
        """Possible special tokens in the text of the template."""
        return frozenset(TOKEN_LIKE.findall(self.text + (self.tool_text or "")))

    @property
    def has_tools(self) -> bool:
        """Whether the template writes tools."""
        return self.tool_text is not None or self.reads("tools")

    @property
    def can_leave_out_thoughts(self) -> bool:
        """Whether answers have no thoughts, or a variable turns them off."""
        has_switch = self.reads("enable_thinking") or self.reads("thinking")
        return has_switch or thought_form_of(self.text) is None

    def with_arguments(self, arguments: Mapping[str, Any]) -> "ChatTemplate":
        """Return the template with further variables that a user sets.

        Raises:
            ChatFormatError: A name belongs to a part of the conversation.
        """
        check_argument_names(arguments)
        if not arguments:
            return self
        return replace(self, arguments={**self.arguments, **arguments})

    def reads(self, variable: str) -> bool:
        """Return whether the template reads a variable."""
        return re.search(rf"\b{variable}\b", self.text) is not None

    @cached_property
    def _environment(self) -> Any:
        # Jinja is loaded only for chats, because that takes as long as loading a small
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
            messages: The messages, in the form of transformers' `apply_chat_template`.
            tools: The functions that an answer may call.
            documents: Texts that an answer may quote.
            add_generation_prompt: Whether to begin an answer.
            special_tokens: The variables `bos_token`, `eos_token` and similar ones.
            **variables: Further variables of the template.

        Returns:
            The prompt, in which the characters from outside of the template are marked.

        Raises:
            ChatFormatError: The template fails, or takes too many steps.
        """
        text = self.tool_text if tools and self.tool_text is not None else self.text
        with_thoughts = [_with_thoughts(message) for message in messages]
        outside = {"messages": with_thoughts, "tools": tools, "documents": documents}
        outside |= {**self.arguments, **variables}
        try:
            values = {name: mark_values(value) for name, value in outside.items()}
            for message in values["messages"]:
                # A role is a word of the template, as in '<|' + role.
                if message.get("role") in TEMPLATE_ROLES:
                    message["role"] = _ROLE_TEXTS[message["role"]]
            values["add_generation_prompt"] = add_generation_prompt
            if text not in self._compiled:
                self._compiled[text] = self._environment.compile_template(text)
            template = self._compiled[text]
            variables = {**self.variables, **special_tokens, **values}
            rendered = self._environment.run(template, variables)
        except Exception as error:  # noqa: BLE001 - a template can raise any error
            raise ChatFormatError(
                f"[chat] chat template: {_reason(error)}; {_ADVICE}"
            ) from None
        return str(rendered)

    def render_messages(self, messages: Sequence[Message], **options: Any) -> str:
        """Write a conversation, with the arguments of `render`.

        Arguments of calls are passed as objects, as in transformers. If a template fails
        with objects, they are passed as text, as in requests of clients.
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
    """Raise ChatFormatError for an argument with a reserved name."""
    for name in names:
        if name in _RESERVED_NAMES:
            raise ChatFormatError(f"[chat] a template argument must not be called {name}")


def _with_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its thoughts under each name that templates read."""
    thoughts = [message[name] for name in _THOUGHT_NAMES if message.get(name) is not None]
    if not thoughts:
        return message
    return {"thinking": thoughts[0], **message, "reasoning_content": thoughts[0]}


def _reason(error: Exception) -> str:
    """Return the message of an error of Jinja or Python, as one short line."""
    message = " ".join(str(error)[:_READ_CHARS].split()) or type(error).__name__
    shown = escape_line(message).encode("ascii", "backslashreplace").decode()
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return shown[:_SHOWN_CHARS] + where
