"""One answer: its settings, streamed text, statistics and token tables."""

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
# Sampling settings that have a flag. The logit bias has none, because it contains token
# ids, which differ between models.
_SAMPLING = tuple(
    field.name for field in dataclasses.fields(SamplingArgs) if field.name != "logit_bias"
)


# The parser of each setting, which is also the parser of its flag.
SETTINGS: dict[str, Callable[[str], Any]] = {
    **{name: FLAGS[name][1]["type"] for name in (*_SAMPLING, "max_tokens", "stop")},
    "think": checked(str, ", ".join(THINK), THINK.__contains__),
    "overflow": checked(str, ", ".join(OVERFLOW), OVERFLOW.__contains__),
}
# Settings that accept "none": a new seed, no limit, or no stop string.
_CAN_BE_NONE = ("seed", "max_tokens", "stop")
_SECONDS_TO_CLEAR_UP = 1.0  # an interrupted generator ends in less time
_SMALLEST = 0.0001


@dataclass(frozen=True)
class Settings(SamplingArgs):
    """The settings of one answer. A value out of range raises SamplingError."""

    max_tokens: int | None = None  # None: no limit except the context
    stop: tuple[str, ...] = ()  # strings that end the answer
    think: str = THINK[0]
    overflow: str = OVERFLOW[0]  # what to do with a message that exceeds the context

    @classmethod
    def from_options(
        cls, options: Options, defaults: Mapping[str, float] | None = None
    ) -> "Settings":
        """Return the settings from the command line, completed with model defaults."""
        values = {name: getattr(options, name) for name in SETTINGS}
        set_by_flags = {
            name: value for name, value in values.items() if value is not None
        }
        return cls(**{**(defaults or {}), **set_by_flags})

    @property
    def sampling(self) -> SamplingArgs:
        """The settings that are passed to the sampler."""
        return SamplingArgs(**{name: getattr(self, name) for name in _SAMPLING})

    def changed(self, name: str, text: str) -> "Settings":
        """Return the settings with one value, parsed from text as for its flag.

        The text "none" resets an optional value.
        """
        name = _setting_name(name)
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
        """Return the name and value of one setting as a line."""
        name = _setting_name(name)
        value = getattr(self, name)
        if name == "stop":
            value = " ".join(map(repr, value)) or None
        return f"{name:<{max(map(len, SETTINGS))}} {'none' if value is None else value}"

    def lines(self) -> list[str]:
        """Return one line for each setting."""
        return [self.line(name) for name in SETTINGS]


def canonical(name: str) -> str:
    """Return the name of a setting, given a flag of this or another program."""
    flag = f"--{name.replace('_', '-')}"
    return OTHER_NAMES.get(flag, flag)[2:].replace("-", "_")


def _setting_name(name: str) -> str:
    """Return the field name of a setting, or raise UsageError if it is unknown."""
    name = canonical(name)
    if name not in SETTINGS:
        raise UsageError(f"no setting {name}: {_reason_of_absence(name)}")
    return name


def _reason_of_absence(name: str) -> str:
    """Return why a name is not a chat setting, and an alternative."""
    if name in FLAGS:
        flag = FLAGS[name][0].split()[-1]
        return f"it is fixed when the chat starts, with {flag}"
    reason = rejection_of(f"--{name.replace('_', '-')}")
    return reason or f"expected one of {', '.join(SETTINGS)}"


@dataclass(frozen=True)
class PrintedAnswer:
    """The result of one prompt."""

    prompt: str | list[Message]  # text to continue, or a conversation
    settings: Settings
    text: str  # may be incomplete
    parts: tuple[str, str]  # the thoughts, and the answer that follows them
    ids: tuple[int, ...]  # all tokens, including the end token if any
    # One of `eot`, `max tokens`, `stop string`, `context full` and `interrupted`.
    stop_reason: str
    # The steps of this run. If an answer was resumed, the first step repeats its text.
    steps: tuple[Step, ...]
    stats: GenerationStats | None  # None if interrupted before the first forward pass

    @property
    def is_complete(self) -> bool:
        """Whether the answer ended without an interruption."""
        return self.stop_reason != INTERRUPTED

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The sampling details of each token, if they were requested."""
        return tuple(step.choice for step in self.steps if step.choice is not None)


def stream_answer(
    console: Console,
    start: Callable[[], Iterator[Step]],
    already: str = "",
    split: Callable[[str, bool], tuple[str, str]] = lambda text, _is_over: ("", text),
) -> tuple[tuple[Step, ...], str]:
    """Print an answer token by token; return its steps and its stop reason.

    Args:
        console: The streams to write to.
        start: Starts the answer.
        already: The text of a resumed answer that has already been printed. The first
            step repeats it.
        split: Divides a text into thoughts and answer. Its second argument is True if the
            text is complete.
    """
    steps: list[Step] = []
    reason: str | None = None
    text = ""
    visible = split(already, False)
    with one_interrupt(signal.SIGINT, console.before_death):
        try:
            for step in start():
                steps.append(step)
                reason = step.stop_reason
                text += step.text
                before = visible
                visible = split(text, reason is not None)
                console.thought(visible[0][len(before[0]) :])
                console.answer(visible[1][len(before[1]) :])
        except KeyboardInterrupt:
            reason = INTERRUPTED
        finally:
            console.clear_progress()
            console.end_answer(interrupted=reason == INTERRUPTED)
    assert reason is not None  # the last step has a stop reason
    return tuple(steps), reason


def statistics_line(stats: GenerationStats, stop_reason: str, context_length: int) -> str:
    """Return an answer's token counts, speeds and stop reason on one line."""
    read = stats.prompt_tokens - stats.cached_tokens
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    context = f"{stats.prompt_tokens + stats.new_tokens}/{context_length}"
    prompt = f"{stats.prompt_tokens} prompt{cached}{_rate(read, stats.prefill_seconds)}"
    # The first new token is the result of the pass over the prompt.
    new = f"{stats.new_tokens} new{_rate(stats.new_tokens - 1, stats.decode_seconds)}"
    return f"{prompt}, {new}, {context}, {stop_reason}, seed {stats.seed}"


def _rate(tokens: int, seconds: float) -> str:
    """Return ` N/s`, or an empty string if there are no tokens or no time."""
    if tokens <= 0 or seconds <= 0:
        return ""
    rate = tokens / seconds
    return f" {rate:.0f}/s" if rate >= 10 else f" {rate:.2g}/s"


@contextmanager
def on_signal(
    number: int, handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[None]:
    """Install a signal handler, or the default one, within the `with` block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def one_interrupt(
    number: int, before_death: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt on the first signal; a later signal ends the process."""
    first: float | None = None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            raise KeyboardInterrupt
        # A second signal within a second is ignored, because the first one is still being
        # handled. A later signal means that the handling hangs.
        if now - first >= _SECONDS_TO_CLEAR_UP:
            before_death()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return on_signal(number, interrupt)


def choice_table(tokenizer: Tokenizer, choice: Choice) -> str:
    """Return a table of the sampling steps for one token.

    Each row is a candidate token, and each column is a sampling step.
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
        rows.append(
            [f"{mark} {first}", *others, f"{token} {token_text(tokenizer, token)}"]
        )
    rows.append([*(str(stage.kept) for stage in choice.stages), "tokens have a chance"])
    return "\n".join(aligned(rows, ">" * len(headings) + "<"))


def _percent(probability: float) -> str:
    """Return a probability with a fixed width, so that an answer's tables align."""
    text = f"{probability:.2%}" if probability >= _SMALLEST else f"<{_SMALLEST:.2%}"
    # "-" means that a step removed the token.
    return f"{text if probability else '-':>{len('100.00%')}}"


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""Return the name of a special token, or the text of another token in quotes.

    Bytes that are not valid UTF-8 are shown as `\xe2`.
    """
    if tokenizer.is_special(token):
        return tokenizer.decode([token])
    text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    return f"'{escape_line(text)}'"


def token_table(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return one line per token (index, id, bytes, text), followed by the token count."""
    if not ids:
        return ""
    rows = [["", "id", "bytes", "text"]]
    for place, token in enumerate(ids):
        is_special = tokenizer.is_special(token)
        data = "special" if is_special else tokenizer.token_bytes(token).hex(" ")
        rows.append([str(place), str(token), data, token_text(tokenizer, token)])
    return "\n".join([*aligned(rows, ">><<"), counted(len(ids), "token")])


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: `1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
