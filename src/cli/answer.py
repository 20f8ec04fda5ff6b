"""One answer: streamed to the console, stopped by Ctrl-C, summed up in a line."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from ..inference import GenerationStats, Step
from .console import Console

INTERRUPTED = "interrupted"
# An interrupted answer is cleared up in less time.
_SECONDS_TO_CLEAR_UP = 1.0
_COLUMNS = 80


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


def stream_answer(
    console: Console,
    start: Callable[[], Iterator[Step]],
    *,
    shows_text: bool = True,
    begun: str = "",
) -> Answer:
    """Write an answer token by token.

    Ctrl-C ends it without an exception: then `stop_reason` is `interrupted`.

    Args:
        console: where the text goes.
        start: calls `InferenceEngine.generate` or `.chat`.
        shows_text: whether to write it; an answer that is recorded is not shown as well.
        begun: what is shown already of an answer that goes on; its steps bring it again.

    Raises:
        OutputError: standard output takes no more.
        InferenceError: the engine refuses the prompt or fails.
    """
    parts: list[str] = []
    already = len(begun)
    reason: str | None = None
    with _one_interrupt():
        try:
            for step in start():
                parts.append(step.text)
                reason = step.stop_reason
                if shows_text:
                    console.answer(step.text[already:])
                already = max(already - len(step.text), 0)
        except KeyboardInterrupt:
            reason = INTERRUPTED
        finally:
            console.clear_progress()
            console.end_answer(interrupted=reason == INTERRUPTED)
    assert reason is not None  # the last step carries it
    return Answer("".join(parts) or begun, reason)


def statistics_line(stats: GenerationStats, stop_reason: str, context_length: int) -> str:
    """Return what an answer took, on one line of a terminal of 80 columns.

    What a long line leaves out is the sum of the tokens beside the context, then the seed.

    Args:
        stats: of the engine.
        stop_reason: of the answer.
        context_length: positions of the key/value cache.
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
def _one_interrupt() -> Iterator[None]:
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

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
