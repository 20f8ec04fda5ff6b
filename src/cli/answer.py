"""One answer: its settings, its text as it comes, and what is told of it and of its
tokens.
"""

import argparse
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ..inference import Choice, GenerationStats, Message, SamplingArgs, Step
from ..tokenizer import Tokenizer
from ..untrusted import escape_line
from .arguments import FLAGS, OVERFLOW, THINK, Options
from .console import Console, UsageError, aligned
from .flag_parser import OTHER_NAMES, checked, rejection_of

INTERRUPTED = "interrupted"
# The logit bias names token ids, which differ between models: the command line has no
# flag for it.
_SAMPLING = tuple(
    field.name for field in dataclasses.fields(SamplingArgs) if field.name != "logit_bias"
)


# How the text of each setting is read: as that of its flag.
SETTINGS: dict[str, Callable[[str], Any]] = {
    **{name: FLAGS[name][1]["type"] for name in (*_SAMPLING, "max_tokens", "stop")},
    "think": checked(str, ", ".join(THINK), THINK.__contains__),
    "overflow": checked(str, ", ".join(OVERFLOW), OVERFLOW.__contains__),
}
_CAN_BE_NONE = ("seed", "max_tokens", "stop")  # a fresh one, no limit, no text
_SECONDS_TO_CLEAR_UP = 1.0  # an interrupted answer is cleared up in less time
_SMALLEST = 0.0001


@dataclass(frozen=True)
class Settings(SamplingArgs):
    """The settings of one answer; SamplingError where one of the sampling is out of its
    range.
    """

    max_tokens: int | None = None  # None until the model stops or the context is full
    stop: tuple[str, ...] = ()  # texts that end the answer
    think: str = THINK[0]
    overflow: str = OVERFLOW[0]  # what becomes of a message for which a chat has no room

    @classmethod
    def from_options(
        cls, options: Options, defaults: Mapping[str, float] | None = None
    ) -> "Settings":
        """Take the settings from the command line, or else from defaults of the model."""
        given = {name: getattr(options, name) for name in SETTINGS}
        set_by_flags = {name: value for name, value in given.items() if value is not None}
        return cls(**{**(defaults or {}), **set_by_flags})

    @property
    def sampling(self) -> SamplingArgs:
        """Those of the sampling alone."""
        return SamplingArgs(**{name: getattr(self, name) for name in _SAMPLING})

    def changed(self, name: str, text: str) -> "Settings":
        """Return the settings with one of them read from text, as its flag reads it, or
        "none".
        """
        name = _known(name)
        try:
            value: Any = (
                None if text == "none" and name in _CAN_BE_NONE else SETTINGS[name](text)
            )
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{name}: {error}") from None
        if name == "stop":
            value = () if value is None else (value,)
        return dataclasses.replace(self, **{name: value})

    def line(self, name: str) -> str:
        """Return one setting as a line: its name and its value."""
        name = _known(name)
        value = getattr(self, name)
        if name == "stop":
            value = " ".join(map(repr, value)) or None
        return f"{name:<{max(map(len, SETTINGS))}} {'none' if value is None else value}"

    def lines(self) -> list[str]:
        """Return a line for each setting."""
        return [self.line(name) for name in SETTINGS]


def canonical(name: str) -> str:
    """Return our name of a setting, which may be typed as a flag of ours or of other
    programs.
    """
    flag = f"--{name.replace('_', '-')}"
    return OTHER_NAMES.get(flag, flag)[2:].replace("-", "_")


def _known(name: str) -> str:
    name = canonical(name)
    if name not in SETTINGS:
        raise UsageError(f"no setting {name}: {_reason_of_absence(name)}")
    return name


def _reason_of_absence(name: str) -> str:
    """Return what to do instead of setting a name that is not a setting of the chat."""
    if name in FLAGS:
        flag = FLAGS[name][0].split()[-1]
        return f"it is fixed when the chat starts, with {flag}"
    reason = rejection_of(f"--{name.replace('_', '-')}")
    return reason or f"expected one of {', '.join(SETTINGS)}"


@dataclass(frozen=True)
class PrintedAnswer:
    """What came of one prompt."""

    asked: str | list[Message]  # a text to continue, or a conversation
    settings: Settings
    text: str  # complete or as far as it came
    parts: tuple[str, str]  # its thoughts, and what it says
    ids: tuple[int, ...]  # all its tokens, an end token included
    stop_reason: (
        str  # `eot`, `max tokens`, `stop string`, `context full` or `interrupted`
    )
    # Of this run; the text of those before comes with the first one.
    steps: tuple[Step, ...]
    stats: GenerationStats | None  # None if it was interrupted before anything was run

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its own end."""
        return self.stop_reason != INTERRUPTED

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How each token was chosen, where that was asked for."""
        return tuple(step.choice for step in self.steps if step.choice is not None)


def stream_answer(
    console: Console,
    start: Callable[[], Iterator[Step]],
    already: str = "",
    split: Callable[[str, bool], tuple[str, str]] = lambda text, _is_over: ("", text),
) -> tuple[tuple[Step, ...], str]:
    """Write an answer token by token; return its steps, and why it stopped, also by
    Ctrl-C.

    What is shown `already` of one that goes on comes again with its first step. `split`
    parts a text, and whether it is all, into the thoughts and the rest that are to be
    shown.
    """
    steps: list[Step] = []
    reason: str | None = None
    text = ""
    shown = split(already, False)
    with one_interrupt(signal.SIGINT, console.before_death):
        try:
            for step in start():
                steps.append(step)
                reason = step.stop_reason
                text += step.text
                before = shown
                shown = split(text, reason is not None)
                console.thought(shown[0][len(before[0]) :])
                console.answer(shown[1][len(before[1]) :])
        except KeyboardInterrupt:
            reason = INTERRUPTED
        finally:
            console.clear_progress()
            console.end_answer(interrupted=reason == INTERRUPTED)
    assert reason is not None  # the last step carries it
    return tuple(steps), reason


def statistics_line(stats: GenerationStats, stop_reason: str, context_length: int) -> str:
    """Return what an answer took, on one line."""
    read = stats.prompt_tokens - stats.cached_tokens
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    context = f"{stats.prompt_tokens + stats.new_tokens}/{context_length}"
    prompt = f"{stats.prompt_tokens} prompt{cached}{_rate(read, stats.prefill_seconds)}"
    # The first new token comes from reading the prompt.
    new = f"{stats.new_tokens} new{_rate(stats.new_tokens - 1, stats.decode_seconds)}"
    return f"{prompt}, {new}, {context}, {stop_reason}, seed {stats.seed}"


def _rate(tokens: int, seconds: float) -> str:
    """Return ` N/s`, or nothing where nothing was run."""
    if tokens <= 0 or seconds <= 0:
        return ""
    rate = tokens / seconds
    return f" {rate:.0f}/s" if rate >= 10 else f" {rate:.2g}/s"


@contextmanager
def on_signal(
    number: int, handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[None]:
    """Let a function, or what the system does, handle a signal inside."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def one_interrupt(
    number: int, before_death: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Let the first such signal raise KeyboardInterrupt, and one a second later end the
    process.
    """
    first: float | None = None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            raise KeyboardInterrupt
        # An earlier one would interrupt the clearing up, which hangs now, or the first
        # was lost.
        if now - first >= _SECONDS_TO_CLEAR_UP:
            before_death()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return on_signal(number, interrupt)


def choice_table(tokenizer: Tokenizer, choice: Choice) -> str:
    """Return how a token was chosen: a row per candidate, a column per step of the
    sampling.
    """
    headings = [
        stage.name if stage.value is None else f"{stage.name} {stage.value:g}"
        for stage in choice.stages
    ]
    rows = [[*headings, f"position {choice.position}"]]
    for candidate in choice.candidates:
        token = candidate.token_id
        first, *others = map(_percent, candidate.probabilities)
        mark = "*" if token == choice.token_id else " "
        rows.append([f"{mark} {first}", *others, f"{token} {piece(tokenizer, token)}"])
    rows.append([*(str(stage.kept) for stage in choice.stages), "tokens have a chance"])
    return "\n".join(aligned(rows, ">" * len(headings) + "<"))


def _percent(probability: float) -> str:
    """Return a probability, as wide as the largest: the tables of an answer stand below
    others.
    """
    shown = f"{probability:.2%}" if probability >= _SMALLEST else f"<{_SMALLEST:.2%}"
    return f"{shown if probability else '-':>{len('100.00%')}}"  # "-": it was left out


def piece(tokenizer: Tokenizer, token: int) -> str:
    r"""Return the name of a special token, or text in quotes,
    with other bytes as `\xe2`.
    """
    if tokenizer.is_special(token):
        return tokenizer.decode([token])
    text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    return f"'{escape_line(text)}'"


def token_table(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return a line per token: its place, id, bytes and text; and how many there are, if
    any.
    """
    if not ids:
        return ""
    rows = [["", "id", "bytes", "text"]]
    for place, token in enumerate(ids):
        is_special = tokenizer.is_special(token)
        data = "special" if is_special else tokenizer.token_bytes(token).hex(" ")
        rows.append([str(place), str(token), data, piece(tokenizer, token)])
    return "\n".join([*aligned(rows, ">><<"), counted(len(ids), "token")])


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
