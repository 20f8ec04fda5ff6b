"""Chat templates, which format a conversation the way a model was trained on it.

By default, the template that comes with the model is used. `templates/` contains the
templates for `--chat-format`, and for Meta's checkpoints, which do not include one.
`docs/CHAT-FORMATS.md` shows their output.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..chat_formats import CHAT_FORMATS
from ..untrusted import escape_line
from .answer_forms import (
    THINK,
    CallForm,
    ThoughtForm,
    call_form_of,
    split_thoughts,
    thought_form_of,
)
from .errors import ChatFormatError
from .marked_text import mark_values
from .messages import TEMPLATE_ROLES, Message

# Maximum template length, in characters. The longest known template has about 35,000.
LONGEST_TEMPLATE = 1 << 17
# Matches anything in a template's text that looks like a special token.
TOKEN_LIKE = re.compile(r"<[|｜][^<>\s]{1,60}[|｜]>|</?[\w.▁-]{1,60}>|\[/?[A-Z_]{1,60}\]")
# Parameters of `render` that templates access under the same names.
_RESERVED_NAMES = frozenset(
    {"self", "messages", "tools", "documents", "add_generation_prompt", "special_tokens"}
)
_READ_CHARS = 1000  # limit for error messages, which may contain long strings
_SHOWN_CHARS = 200
_SHOWN_NAME_CHARS = 80
_DIRECTORY = Path(__file__).resolve().parent / "templates"
_ROLE_TEXTS = {role: role for role in TEMPLATE_ROLES}
# Keys that may contain a message's thoughts. Most templates read the first key, and the
# templates of gpt-oss and LFM2.5 read the second one. As in transformers, the first two
# keys are both set from the one of these three keys that is present.
_THOUGHT_NAMES = ("reasoning_content", "thinking", "reasoning")
_ADVICE = "name a format with --chat-format, or continue raw text with --completion"


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template.

    Args:
        text: The template's source.
        name: The format name, for messages and for `--chat-format`.
        by: How the template was found: `chat template`, `special tokens`, `layout`, or
            the flag.
        tool_text: The source of a separate template for conversations with tools, if any.
        variables: Template variables in addition to the conversation.
        tokens: Special tokens that the tokenizer must have. `bos` and `eos` refer to the
            tokens that begin and end a text, regardless of their names.
        arguments: Variables set by the user, in addition to `variables`.
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
        """How answers write function calls, or None if the template has no tools."""
        return call_form_of(self.tool_text or self.text) if self.has_tools else None

    @cached_property
    def thought_form(self) -> ThoughtForm:
        """How answers write thoughts. The default is the most common form."""
        return thought_form_of(self.text) or THINK

    @cached_property
    def words(self) -> frozenset[str]:
        """All substrings of the template that look like special tokens."""
        return frozenset(TOKEN_LIKE.findall(self.text + (self.tool_text or "")))

    @property
    def has_tools(self) -> bool:
        """Whether the template supports tools."""
        return self.tool_text is not None or self.reads("tools")

    @property
    def can_leave_out_thoughts(self) -> bool:
        """Whether answers do not include thoughts, or a variable can disable them."""
        if self.thought_form.has_channels:  # `thinking` is only a key of messages
            return False
        has_switch = self.reads("enable_thinking") or self.reads("thinking")
        return has_switch or thought_form_of(self.text) is None

    def with_arguments(self, arguments: Mapping[str, Any]) -> "ChatTemplate":
        """Return a copy of the template with additional variables set by the user.

        Raises:
            ChatFormatError: If a variable has a reserved name, such as `messages`.
        """
        check_argument_names(arguments)
        if not arguments:
            return self
        return replace(self, arguments={**self.arguments, **arguments})

    def reads(self, variable: str) -> bool:
        """Return whether the template mentions a variable."""
        return re.search(rf"\b{variable}\b", self.text) is not None

    @cached_property
    def _environment(self) -> Any:
        # Jinja is loaded lazily, because that takes as long as loading a small model.
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
        """Render a conversation as a prompt.

        Args:
            messages: The messages, as for transformers' `apply_chat_template`.
            tools: The functions that the answer may call.
            documents: Documents that the answer may quote.
            add_generation_prompt: Whether to append the header of an answer.
            special_tokens: Variables such as `bos_token` and `eos_token`.
            **variables: Other template variables.

        Returns:
            The prompt. Characters that do not come from the template are marked.

        Raises:
            ChatFormatError: If the template fails or exceeds its step limit.
        """
        text = self.tool_text if tools and self.tool_text is not None else self.text
        with_thoughts = [_with_thoughts(message) for message in messages]
        outside = {"messages": with_thoughts, "tools": tools, "documents": documents}
        outside |= {**self.arguments, **variables}
        try:
            values = {name: mark_values(value) for name, value in outside.items()}
            for message in values["messages"]:
                # Known roles count as template text, because templates may combine them
                # with a special token, as in '<|' + role.
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
        """Render a conversation of `Message` objects. See `render` for the options.

        Call arguments are passed as objects, as in transformers. If the template fails
        with objects, they are passed as JSON strings, as in API requests. Answers with
        channels are divided into thoughts and text, because templates reject the markers.
        """
        if self.thought_form.has_channels:
            messages = [self._without_channels(message) for message in messages]
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

    def _without_channels(self, message: Message) -> Message:
        """Return an answer as the model wrote it without its channels."""
        if message.role != "assistant" or "<|message|>" not in message.content:
            return message
        thoughts, said = split_thoughts(message.content, form=self.thought_form)
        return replace(message, content=said, reasoning=message.reasoning or thoughts)


@cache
def named_template(name: str, by: str = "name") -> ChatTemplate:
    """Return the template of a named format, which is cached and compiled only once.

    Args:
        name: A key of `CHAT_FORMATS`.
        by: How the format was found, for messages.

    Raises:
        ChatFormatError: If the name is unknown.
    """
    if name not in CHAT_FORMATS:
        names = ", ".join(CHAT_FORMATS)
        shown = ascii(name)[:_SHOWN_NAME_CHARS]
        raise ChatFormatError(f"[chat] chat_format must be one of {names}: got {shown}")
    chat_format = CHAT_FORMATS[name]
    return ChatTemplate(
        text=_text_of(chat_format.files),
        name=name,
        by=by,
        variables=chat_format.variables,
        tokens=chat_format.tokens,
        tool_text=_text_of(chat_format.tool_files) or None,
    )


def _text_of(files: tuple[str, ...]) -> str:
    """Return the concatenated contents of template files."""
    return "".join(
        (_DIRECTORY / f"{file}.jinja").read_text(encoding="utf-8") for file in files
    )


def check_argument_names(names: Iterable[str]) -> None:
    """Raise ChatFormatError if a template argument has a reserved name."""
    for name in names:
        if name in _RESERVED_NAMES:
            raise ChatFormatError(f"[chat] a template argument must not be called {name}")


def _with_thoughts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its thoughts under every key that templates read."""
    thoughts = [message[name] for name in _THOUGHT_NAMES if message.get(name) is not None]
    if not thoughts:
        return message
    return {"thinking": thoughts[0], **message, "reasoning_content": thoughts[0]}


def _reason(error: Exception) -> str:
    """Return the message of a Jinja or Python exception, as one short line."""
    message = " ".join(str(error)[:_READ_CHARS].split()) or type(error).__name__
    shown = escape_line(message).encode("ascii", "backslashreplace").decode()
    line = getattr(error, "lineno", None)
    where = f" (line {line})" if line else ""
    return shown[:_SHOWN_CHARS] + where
