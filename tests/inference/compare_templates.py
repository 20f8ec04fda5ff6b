"""Compare the chat templates of a directory with transformers.

`python -m tests.inference.compare_templates DIRECTORY` reads JSON files with a `text`,
which is a chat template, and a `source`. Each template writes each conversation of
`template_conversations.py`, with and without a generation prompt. For each template whose
results differ, the report shows the first difference.
"""

import datetime
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from src.inference import template_sandbox
from src.inference.chat_template import ChatTemplate
from src.inference.errors import ChatFormatError
from tests.inference.template_conversations import CONVERSATIONS, Conversation

SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
}
NOW = datetime.datetime(2026, 2, 3, 4, 5, 6)
_SHOWN_CHARACTERS = 60
_SHOWN_ERROR = 150


class FrozenDatetime(datetime.datetime):
    """A class of times in which it is always `NOW`."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return NOW


@contextmanager
def frozen_clock() -> Iterator[None]:
    """Let `strftime_now` see the same time in both programs."""
    from transformers.utils import chat_template_utils

    frozen_module = SimpleNamespace(datetime=FrozenDatetime)
    ours = mock.patch.object(template_sandbox, "datetime", frozen_module)
    theirs = mock.patch.object(chat_template_utils, "datetime", FrozenDatetime)
    with ours, theirs:
        yield


@dataclass(frozen=True)
class Outcome:
    """What a program made of a template and a conversation: a text or an error."""

    text: str | None
    error: str = ""


def our_outcome(
    template: ChatTemplate, conversation: Conversation, add_generation_prompt: bool
) -> Outcome:
    """Return the outcome of the template in our sandbox.

    Errors other than `ChatFormatError` are not caught: no template may cause them.
    """
    try:
        text = template.render(
            conversation.messages,
            tools=conversation.tools,
            documents=conversation.documents,
            add_generation_prompt=add_generation_prompt,
            special_tokens=SPECIAL_TOKENS,
            **conversation.variables,
        )
    except ChatFormatError as error:
        return Outcome(None, str(error))
    return Outcome(text)


def their_outcome(
    text: str, conversation: Conversation, add_generation_prompt: bool
) -> Outcome:
    """Return the outcome of the template in transformers."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        (rendered,), _ = render_jinja_template(
            [conversation.messages],
            tools=conversation.tools,
            documents=conversation.documents,
            chat_template=text,
            add_generation_prompt=add_generation_prompt,
            **SPECIAL_TOKENS,
            **conversation.variables,
        )
    except Exception as error:  # noqa: BLE001 - a template can raise any error
        return Outcome(None, f"{type(error).__name__}: {error}")
    return Outcome(rendered)


def describe_difference(ours: Outcome, theirs: Outcome) -> str:
    """Return how two outcomes differ; an empty text if both are errors or the same
    text.
    """
    if ours.text is None and theirs.text is None:
        return ""
    if ours.text is None:
        return f"ours raises: {ours.error[:_SHOWN_ERROR]}"
    if theirs.text is None:
        return f"transformers raises: {theirs.error[:_SHOWN_ERROR]}"
    if ours.text == theirs.text:
        return ""
    place = 0
    for our_character, their_character in zip(ours.text, theirs.text, strict=False):
        if our_character != their_character:
            break
        place += 1
    start = max(place - _SHOWN_CHARACTERS // 2, 0)
    stop = place + _SHOWN_CHARACTERS
    return (
        f"differs at character {place}: ours {ours.text[start:stop]!r}, "
        f"transformers {theirs.text[start:stop]!r}"
    )


@dataclass(frozen=True)
class Comparison:
    """The result of a template for one conversation."""

    conversation: Conversation
    add_generation_prompt: bool
    difference: str
    is_text: bool

    @property
    def summary(self) -> str:
        """The conversation and the difference, as one line."""
        opened = "with" if self.add_generation_prompt else "without"
        return (
            f"{self.conversation.name}, {opened} a generation prompt: {self.difference}"
        )


def compare_template(text: str) -> list[Comparison]:
    """Compare a template on all conversations; call it with a frozen clock."""
    template = ChatTemplate(text)
    comparisons = []
    for conversation in CONVERSATIONS:
        for add_generation_prompt in (False, True):
            ours = our_outcome(template, conversation, add_generation_prompt)
            theirs = their_outcome(text, conversation, add_generation_prompt)
            difference = describe_difference(ours, theirs)
            is_text = theirs.text is not None
            comparison = Comparison(
                conversation, add_generation_prompt, difference, is_text
            )
            comparisons.append(comparison)
    return comparisons


def main(directory: Path, show: Callable[[str], None] = print) -> int:
    """Compare the templates of a directory, and return how many of them differ."""
    totals: Counter[str] = Counter()
    with frozen_clock():
        for path in sorted(directory.glob("*.json")):
            row = json.loads(path.read_text(encoding="utf-8"))
            comparisons = compare_template(row["text"])
            differences = [each for each in comparisons if each.difference]
            texts = sum(each.is_text for each in comparisons)
            totals["comparisons"] += len(comparisons)
            totals["comparisons with a text"] += texts
            totals["comparisons that differ"] += len(differences)
            totals["templates"] += 1
            totals["templates that differ"] += bool(differences)
            label = f"{path.name} {row['source']}"
            if not differences:
                show(
                    f"equal   {label} ({texts} texts, {len(comparisons) - texts} errors)"
                )
                continue
            first = differences[0]
            show(f"differs {label} ({len(differences)} of {len(comparisons)})")
            show(f"        {first.summary}")
    for name, count in totals.items():
        show(f"{count:8} {name}")
    return totals["templates that differ"]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.inference.compare_templates DIRECTORY")
    sys.exit(1 if main(Path(sys.argv[1])) else 0)
