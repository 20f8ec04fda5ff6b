"""One answer: its settings, its text as it comes, and what is told of it and of its tokens."""

import argparse
import dataclasses
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeAlias

from ..inference import Choice, GenerationStats, InferenceEngine, SamplingArgs, Step
from ..inference.sampling import log_probabilities
from ..tokenizer import Tokenizer
from ..untrusted import escape_line, replace_surrogates
from .arguments import FLAGS, THINK, Options
from .console import Console, UsageError
from .flag_parser import OTHER_NAMES

INTERRUPTED = "interrupted"
Split: TypeAlias = Callable[[str, bool], tuple[str, str]]
SAMPLING = {field.name: field.default for field in dataclasses.fields(SamplingArgs)}


def _think(text: str) -> str:
    if text not in THINK:
        raise argparse.ArgumentTypeError(f"must be {', '.join(THINK)}: got {text}")
    return text


# How the text of each setting is read: as that of its flag.
SETTINGS: dict[str, Callable[[str], object]] = {
    **{name: FLAGS[name].reading["type"] for name in (*SAMPLING, "max_tokens", "stop")},
    "think": _think,
}
_NONE = "none"
_CAN_BE_NONE = ("seed", "max_tokens", "stop")
_SECONDS_TO_CLEAR_UP = 1.0  # an interrupted answer is cleared up in less time
_COLUMNS = 80
_DIGITS = 6  # of a time in seconds
_SMALLEST = 0.0001
_NARROWEST = len("100.00%")  # so that the tables of an answer stand below each other


@dataclass(frozen=True)
class Settings:
    """The settings of one answer."""

    sampling: SamplingArgs
    max_tokens: int | None = None  # None until the model stops or the context is full
    stop: tuple[str, ...] = ()  # texts that end the answer
    think: str = THINK[0]

    @classmethod
    def from_options(cls, options: Options) -> "Settings":
        """Take the settings from the command line; what it does not say has its default.

        Raises:
            SamplingError: A sampling setting is out of its range.
        """
        given = {name: getattr(options, name) for name in SAMPLING}
        sampling = SamplingArgs(**{name: v for name, v in given.items() if v is not None})
        return cls(sampling, options.max_tokens, options.stop, options.think or THINK[0])

    def changed(self, name: str, text: str) -> "Settings":
        """Return the settings with one of them read from text.

        Args:
            name: One of `SETTINGS`, with hyphens or underscores.
            text: Its value; "none" for a fresh seed, no limit of tokens or no stop text.

        Raises:
            UsageError: There is no such setting, or the text is not a value of it.
            SamplingError: The value is out of its range.
        """
        name = _known(name)
        try:
            value = None if text == _NONE and name in _CAN_BE_NONE else SETTINGS[name](text)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"{name}: {error}") from None
        if name in SAMPLING:
            sampling = dataclasses.replace(self.sampling, **{name: value})  # type: ignore[arg-type]
            return dataclasses.replace(self, sampling=sampling)
        if name == "stop":
            value = () if value is None else (value,)
        return dataclasses.replace(self, **{name: value})  # type: ignore[arg-type]

    def line(self, name: str) -> str:
        """Return one setting as a line: its name and its value.

        Args:
            name: One of `SETTINGS`, with hyphens or underscores.

        Raises:
            UsageError: There is no such setting.
        """
        name = _known(name)
        value = getattr(self.sampling if name in SAMPLING else self, name)
        if name == "stop":
            value = " ".join(map(repr, value)) or None
        return f"{name:<{max(map(len, SETTINGS))}} {_NONE if value is None else value}"

    def lines(self) -> list[str]:
        """Return a line for each setting."""
        return [self.line(name) for name in SETTINGS]


def canonical(name: str) -> str:
    """Return our name of a setting, which may be typed as a flag of ours or of other programs."""
    flag = f"--{name.replace('_', '-')}"
    return OTHER_NAMES.get(flag, flag)[2:].replace("-", "_")


def _known(name: str) -> str:
    name = canonical(name)
    if name not in SETTINGS:
        raise UsageError(f"no setting {name}: expected one of {', '.join(SETTINGS)}")
    return name


@dataclass(frozen=True)
class Answer:
    """What came of one prompt."""

    text: str  # complete or as far as it came
    stop_reason: str  # `eot`, `max tokens`, `stop string`, `context full` or `interrupted`
    begun: tuple[int, ...]  # tokens that were drawn before, of an answer that went on
    steps: tuple[Step, ...]
    stats: GenerationStats | None  # None if it was interrupted before anything was run
    settings: Settings
    first: bool  # whether the answer began a text; see `StreamDecoder`
    parts: tuple[str, str]  # its thoughts, and what it says

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its own end."""
        return self.stop_reason != INTERRUPTED

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens of the answer, an end token included."""
        return self.begun + tuple(step.token_id for step in self.steps)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """How each token was chosen, where that was asked for."""
        return tuple(step.choice for step in self.steps if step.choice is not None)


def stream_answer(
    console: Console,
    start: Callable[[], Iterator[Step]],
    shows_text: bool = True,
    already: str = "",
    split: Split = lambda text, _is_over: ("", text),
) -> tuple[tuple[Step, ...], str]:
    """Write an answer token by token.

    Ctrl-C ends it without an exception: then the reason is `interrupted`.

    Args:
        console: Where the text goes.
        start: Calls `InferenceEngine.generate` or `.chat`.
        shows_text: Whether to write it; an answer that is recorded is not shown as well.
        already: What is shown already; of an answer that goes on, the steps bring it again.
        split: Parts what there is of a text, which may be all of it, into thoughts and the rest.

    Returns:
        The steps, and why the answer stopped.

    Raises:
        OutputError: Standard output takes no more.
        InferenceError: The engine refuses the prompt or fails.
    """
    steps: list[Step] = []
    reason: str | None = None
    text, shown = "", split(already, False)
    with _one_interrupt():
        try:
            for step in start():
                steps.append(step)
                reason = step.stop_reason
                text += step.text
                before, shown = shown, split(text, reason is not None)
                if shows_text:
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
    """Return what an answer took, on one line of a terminal of 80 columns.

    What a long line leaves out is the sum of the tokens beside the context, then the seed.

    Args:
        stats: Of the engine.
        stop_reason: Of the answer.
        context_length: Positions of the key/value cache.
    """
    read = stats.prompt_tokens - stats.cached_tokens
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    context = f"{stats.prompt_tokens + stats.new_tokens}/{context_length}"
    seed = f"seed {stats.seed}"
    parts = [
        f"{stats.prompt_tokens} prompt{cached}{_rate(read, stats.prefill_seconds)}",
        # The first new token comes from reading the prompt.
        f"{stats.new_tokens} new{_rate(stats.new_tokens - 1, stats.decode_seconds)}",
        context,
        stop_reason,
        seed,
    ]
    for part in (context, seed):
        if len(", ".join(parts)) > _COLUMNS:
            parts.remove(part)
    return ", ".join(parts)


def _rate(tokens: int, seconds: float) -> str:
    """Return ` N/s`, or nothing where nothing was run."""
    if tokens <= 0 or seconds <= 0:
        return ""
    rate = tokens / seconds
    return f" {rate:.0f}/s" if rate >= 10 else f" {rate:.2g}/s"


@contextmanager
def on_signal(number: int, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a function handle a signal inside."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def _one_interrupt() -> AbstractContextManager[None]:
    """Let the first Ctrl-C raise KeyboardInterrupt inside, and one a second later end the process.

    Those between the two are not heard: they would interrupt the clearing up after the first.
    """
    first: float | None = None

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            raise KeyboardInterrupt
        if now - first >= _SECONDS_TO_CLEAR_UP:  # the first was lost, or its clearing up hangs
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)

    return on_signal(signal.SIGINT, interrupt)


def answer_record(
    engine: InferenceEngine, answer: Answer, logprobs: int | None, line: int | None
) -> str:
    """Return an answer, also an interrupted one, as a JSON object on one line, in ASCII.

    `model`, `text`, `thoughts` where there are any, `token_ids` (those of the answer, an end token
    included), `stop_reason`, `context_length`, the fields of `GenerationStats` (counts, seconds and
    the seed), and on request `logprobs` in the shape of OpenAI's chat API, with the `id` of each
    token.

    Args:
        engine: The one that answered.
        answer: Its answer, with statistics.
        logprobs: How many of the most probable tokens to tell of; None for no log-probabilities.
        line: Of the file of prompts, which is then the first field.
    """
    assert answer.stats is not None
    assert engine.model.tokenizer is not None
    tokenizer = engine.model.tokenizer
    numbers = dataclasses.asdict(answer.stats).items()
    record = {
        **({} if line is None else {"line": line}),
        "model": replace_surrogates(str(engine.model.source_directory)),
        "text": answer.parts[1],
        **({"thoughts": answer.parts[0]} if answer.parts[0] else {}),
        "token_ids": answer.ids,
        "stop_reason": answer.stop_reason,
        "context_length": engine.sequence_length,
        **{name: round(v, _DIGITS) if isinstance(v, float) else v for name, v in numbers},
    }
    if logprobs is not None:
        content = [_logprobs(tokenizer, choice, logprobs) for choice in answer.choices]
        record["logprobs"] = {"content": content}
    return json.dumps(record)


def _logprobs(tokenizer: Tokenizer, choice: Choice, count: int) -> dict[str, object]:
    """Return the natural log-probabilities of a drawn token and of the most probable ones.

    They are the model's own: no temperature, penalty or filter has touched them.
    """
    told = {
        token: {
            "id": token,
            "token": tokenizer.decode([token]),
            "bytes": list(tokenizer.token_bytes(token)),
            "logprob": chance,
        }
        for token, chance in log_probabilities(choice).items()
    }
    return {**told[choice.token_id], "top_logprobs": [*told.values()][:count]}


def choice_table(tokenizer: Tokenizer, choice: Choice) -> str:
    """Return how a token was chosen: a row per candidate, a column per step of the sampling."""
    headings = [
        stage.name if stage.value is None else f"{stage.name} {stage.value:g}"
        for stage in choice.stages
    ]
    rows = [("", headings, f"position {choice.position}")]
    for candidate in choice.candidates:
        token = candidate.token_id
        cells = [_percent(probability) for probability in candidate.probabilities]
        rows.append(("*" * (token == choice.token_id), cells, f"{token} {piece(tokenizer, token)}"))
    rows.append(("", [str(stage.kept) for stage in choice.stages], "tokens have a chance"))
    columns = zip(*(cells for _, cells, _ in rows), strict=True)
    widths = [max(_NARROWEST, *map(len, column)) for column in columns]
    return "\n".join(
        f"{mark:1} "
        + "".join(f"{cell:>{width}}  " for cell, width in zip(cells, widths, strict=True))
        + text
        for mark, cells, text in rows
    )


def _percent(probability: float) -> str:
    if probability == 0.0:
        return "-"  # left out
    return f"{probability:.2%}" if probability >= _SMALLEST else f"<{_SMALLEST:.2%}"


def piece(tokenizer: Tokenizer, token: int) -> str:
    r"""Return a token as text between quotes; bytes that are no whole character stand as `\xe2`.

    A special token is its name alone.
    """
    if tokenizer.is_special(token):
        return tokenizer.decode([token])
    text = tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")
    return f"'{escape_line(text)}'"


def token_table(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return a line per token: its place, id, bytes and text."""
    rows = [("", "id", "bytes", "text")]
    for place, token in enumerate(ids):
        is_special = tokenizer.is_special(token)
        data = "special" if is_special else tokenizer.token_bytes(token).hex(" ")
        rows.append((str(place), str(token), data, piece(tokenizer, token)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{place:>{widths[0]}}  {token:>{widths[1]}}  {data:<{widths[2]}}  {text}"
        for place, token, data, text in rows
    )


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
