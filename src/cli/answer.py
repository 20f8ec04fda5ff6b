"""One answer: settings, streamed text, statistics and token tables."""

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
# The logit bias contains token ids, which differ between models, so the command line has
# no flag for it.
_SAMPLING = tuple(
    field.name for field in dataclasses.fields(SamplingArgs) if field.name != "logit_bias"
)


# The parser of each setting, which is the parser of its flag.
SETTINGS: dict[str, Callable[[str], Any]] = {
    **{name: FLAGS[name][1]["type"] for name in (*_SAMPLING, "max_tokens", "stop")},
    "think": checked(str, ", ".join(THINK), THINK.__contains__),
    "overflow": checked(str, ", ".join(OVERFLOW), OVERFLOW.__contains__),
}
# "none" means a new seed, no limit, no stop text
_CAN_BE_NONE = ("seed", "max_tokens", "stop")
_SECONDS_TO_CLEAR_UP = 1.0  # interrupted generators end in less time
_SMALLEST = 0.0001


@dataclass(frozen=True)
class Settings(SamplingArgs):
    """The settings of one answer; a value out of its range is a SamplingError."""

    max_tokens: int | None = None  # None: until the model stops or the context is full
    stop: tuple[str, ...] = ()  # texts that end the answer
    think: str = THINK[0]
    overflow: str = OVERFLOW[0]  # handling of a message that exceeds the context

    @classmethod
    def from_options(
        cls, options: Options, defaults: Mapping[str, float] | None = None
    ) -> "Settings":
        """Return the settings of the command line, completed by defaults of the model."""
        values = {name: getattr(options, name) for name in SETTINGS}
        set_by_flags = {
            name: value for name, value in values.items() if value is not None
        }
        return cls(**{**(defaults or {}), **set_by_flags})

    @property
    def sampling(self) -> SamplingArgs:
        """The sampling settings alone."""
        return SamplingArgs(**{name: getattr(self, name) for name in _SAMPLING})

    def changed(self, name: str, text: str) -> "Settings":
        """Return the settings with one value parsed from text as its flag parses it.

        The text "none" removes a value that is optional.
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
        """Return the name and the value of one setting, as a line."""
        name = _setting_name(name)
        value = getattr(self, name)
        if name == "stop":
            value = " ".join(map(repr, value)) or None
        return f"{name:<{max(map(len, SETTINGS))}} {'none' if value is None else value}"

    def lines(self) -> list[str]:
        """Return a line for each setting."""
        return [self.line(name) for name in SETTINGS]


def canonical(name: str) -> str:
    """Return our name of a setting, from a flag of this or of another program."""
    flag = f"--{name.replace('_', '-')}"
    return OTHER_NAMES.get(flag, flag)[2:].replace("-", "_")


def _setting_name(name: str) -> str:
    """Return our name of a setting; raise UsageError for an unknown name."""
    name = canonical(name)
    if name not in SETTINGS:
        raise UsageError(f"no setting {name}: {_reason_of_absence(name)}")
    return name


def _reason_of_absence(name: str) -> str:
    """Return an alternative to a name that is not a setting of the chat."""
    if name in FLAGS:
        flag = FLAGS[name][0].split()[-1]
        return f"it is fixed when the chat starts, with {flag}"
    reason = rejection_of(f"--{name.replace('_', '-')}")
    return reason or f"expected one of {', '.join(SETTINGS)}"


@dataclass(frozen=True)
class PrintedAnswer:
    """The result of one prompt."""

    prompt: str | list[Message]  # a text to continue, or a conversation
    settings: Settings
    text: str  # possibly incomplete
    parts: tuple[str, str]  # the thoughts, and the answer after them
    ids: tuple[int, ...]  # all tokens, including an end token
    # `eot`, `max tokens`, `stop string`, `context full` or `interrupted`
    stop_reason: str
    # The steps of this run. The first step repeats the text of the earlier runs.
    steps: tuple[Step, ...]
    stats: GenerationStats | None  # None if Ctrl-C came before the first forward pass

    @property
    def is_complete(self) -> bool:
        """Whether the answer ended by itself."""
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
    """Write an answer token by token; return its steps and its stop reason.

    Args:
        console: The streams to write to.
        start: Starts the answer.
        already: The text of a resumed answer that is visible already. The first step
            repeats it.
        split: Divides a text into thoughts and answer. Its second argument is true for
            the complete text.
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
    assert reason is not None  # the last step carries it
    return tuple(steps), reason


def statistics_line(stats: GenerationStats, stop_reason: str, context_length: int) -> str:
    """Return the tokens, speeds and stop reason of an answer, on one line."""
    read = stats.prompt_tokens - stats.cached_tokens
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    context = f"{stats.prompt_tokens + stats.new_tokens}/{context_length}"
    prompt = f"{stats.prompt_tokens} prompt{cached}{_rate(read, stats.prefill_seconds)}"
    # The pass over the prompt yields the first new token.
    new = f"{stats.new_tokens} new{_rate(stats.new_tokens - 1, stats.decode_seconds)}"
    return f"{prompt}, {new}, {context}, {stop_reason}, seed {stats.seed}"


def _rate(tokens: int, seconds: float) -> str:
    """Return ` N/s`, or an empty text if there is no time or no token."""
    if tokens <= 0 or seconds <= 0:
        return ""
    rate = tokens / seconds
    return f" {rate:.0f}/s" if rate >= 10 else f" {rate:.2g}/s"


@contextmanager
def on_signal(
    number: int, handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> Iterator[None]:
    """Install a signal handler, or the default, within the block."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def one_interrupt(
    number: int, before_death: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt at the first signal; a later signal ends the process."""
    first: float | None = None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            raise KeyboardInterrupt
        # A second signal within a second is ignored, because the first one is still being
        # handled. A later signal means that this handling hangs.
        if now - first >= _SECONDS_TO_CLEAR_UP:
            before_death()
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    return on_signal(number, interrupt)


def choice_table(tokenizer: Tokenizer, choice: Choice) -> str:
    """Return the sampling of a token as a table.

    Rows are candidates and columns are the steps of the sampling.
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
    """Return a probability of fixed width, so that the tables of an answer align."""
    text = f"{probability:.2%}" if probability >= _SMALLEST else f"<{_SMALLEST:.2%}"
    # "-": a step removed the token
    return f"{text if probability else '-':>{len('100.00%')}}"


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""Return the name of a special token, or a text in quotes.

    Bytes that are not UTF-8 become `\xe2`.
    """
    if tokenizer.is_special(token):
        return tokenizer.decode([token])
    text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    return f"'{escape_line(text)}'"


def token_table(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return a line per token (index, id, bytes, text) and a line with their count."""
    if not ids:
        return ""
    rows = [["", "id", "bytes", "text"]]
    for place, token in enumerate(ids):
        is_special = tokenizer.is_special(token)
        data = "special" if is_special else tokenizer.token_bytes(token).hex(" ")
        rows.append([str(place), str(token), data, token_text(tokenizer, token)])
    return "\n".join([*aligned(rows, ">><<"), counted(len(ids), "token")])


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
