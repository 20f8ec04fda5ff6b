"""One answer: streamed to the console, stopped by Ctrl-C, summed up in a line."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ..inference import GenerationStats, Step
from .console import Console

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Answer:
    """What came of one prompt.

    Attributes:
        text: the answer, complete or as far as it came.
        stop_reason: `eot`, `max tokens`, `stop string`, `context full` or `interrupted`.
    """

    text: str
    stop_reason: str

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its own end."""
        return self.stop_reason != INTERRUPTED


def stream_answer(console: Console, start: Callable[[], Iterator[Step]]) -> Answer:
    """Write an answer token by token.

    Ctrl-C ends it without an exception: then `stop_reason` is `interrupted`.

    Args:
        console: where the text goes.
        start: calls `InferenceEngine.generate` or `.chat`.

    Raises:
        OutputError: standard output takes no more.
        InferenceError: the engine refuses the prompt or fails.
    """
    parts: list[str] = []
    reason: str | None = None
    with _one_interrupt():
        try:
            for step in start():
                parts.append(step.text)
                reason = step.stop_reason
                console.answer(step.text)
        except KeyboardInterrupt:
            reason = INTERRUPTED
        finally:
            console.end_answer()
    assert reason is not None  # the last step carries it
    return Answer("".join(parts), reason)


def statistics_line(stats: GenerationStats, stop_reason: str, context_length: int) -> str:
    """Return what an answer took, on one line.

    Args:
        stats: of the engine.
        stop_reason: of the answer.
        context_length: positions of the key/value cache.
    """
    read = stats.prompt_tokens - stats.cached_tokens
    used = stats.prompt_tokens + stats.new_tokens
    # The first new token comes from reading the prompt.
    return " · ".join(
        (
            f"{stats.prompt_tokens} prompt tokens ({stats.cached_tokens} cached)"
            f"{_rate(read, stats.prefill_seconds)}",
            f"{stats.new_tokens} new{_rate(stats.new_tokens - 1, stats.decode_seconds)}",
            f"context {used}/{context_length}",
            stop_reason,
            f"seed {stats.seed}",
        )
    )


def _rate(tokens: int, seconds: float) -> str:
    """Return `, N tok/s`, or nothing where nothing was run."""
    return f", {tokens / seconds:.0f} tok/s" if tokens > 0 and seconds > 0 else ""


@contextmanager
def _one_interrupt() -> Iterator[None]:
    """Let the first Ctrl-C raise KeyboardInterrupt inside and ignore the others.

    A second one would otherwise interrupt the clearing up after the first.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
