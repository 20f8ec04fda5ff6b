"""Chat for a million tokens and print what the process holds: `python -m
tests.hardening.soak`.

What the process holds must not grow, and answers must stay what they were.
A tiny model with random weights chats through the same `Session` as the command line:
questions and answers of random lengths until the context is full, Ctrl-C at random
moments, `/clear`, `/undo`, `/regen`, `/save` and `/load`. At intervals the same question
is asked in a new session, and what the process holds is counted.
"""

import argparse
import contextlib
import os
import random
import signal
import string
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest

from src.cli.arguments import parse_arguments
from src.cli.console import Console, UsageError
from src.cli.new_session import open_session
from src.cli.saved_chat import load_chat, save_chat
from src.cli.session import Session
from src.inference import ContextFullError
from src.tokenizer.encoders import CACHED_PIECES
from tests.model.tiny import write_byte_tokenizer
from tests.support import held
from tests.support.held import Held, NativeBytes, held_now
from tests.support.pth_writer import SMALL_PARAMS, write_random_meta_directory

CONTEXT = 512
LONGEST_QUESTION = 120
LONGEST_ANSWER = 120
# Bytes: pages that the allocators of Python and C keep for themselves, and the scratch
# memory of the kernels, which is as large as the largest product so far has needed.
MOST_GROWTH = 4 << 20
MOST_SCRATCH = 1 << 20


@dataclass
class Soak:
    # At intervals, the first after a fifth of the tokens, when all is warm: how many
    # there were, the seconds, and what the process held.
    readings: list[tuple[int, float, Held]] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)  # how often each thing happened
    same_answers: bool = True  # whether the fixed question was answered alike each time

    @property
    def drift(self) -> Held:
        """What was held at the end less what was held when all was warm."""
        return self.readings[-1][2].minus(self.readings[0][2])

    @property
    def has_grown(self) -> bool:
        """Whether anything is left behind, or more memory than allocators keep for
        themselves.
        """
        drift = self.drift
        counts = (drift.descriptors, drift.files, drift.threads)
        return (
            drift.resident > MOST_GROWTH or drift.native > MOST_SCRATCH or max(counts) > 0
        )


def soak(tokens: int, intervals: int, seed: int = 1) -> Soak:
    """Chat until so many tokens were read or written, with a reading after each equal
    part.
    """
    result = Soak()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(nowhere))
        stack.enter_context(contextlib.redirect_stderr(nowhere))
        native = NativeBytes(stack.enter_context(pytest.MonkeyPatch.context()))
        stack.enter_context(_alarm_as_ctrl_c())
        # A model that answers with noise, with a token for each byte.
        write_byte_tokenizer(directory / "tokenizer.model")
        write_random_meta_directory(directory, SMALL_PARAMS)
        chat = _Chat(directory, seed, result.events)
        chat.fill_caches()
        expected = chat.fixed_answer()
        started = time.perf_counter()
        for number in range(1, intervals + 1):
            chat.run_until(tokens * number // intervals)
            result.same_answers &= chat.fixed_answer() == expected
            if number * 5 >= intervals:
                seconds = time.perf_counter() - started
                result.readings.append((chat.tokens, seconds, held_now(native)))
    return result


class _Chat:
    """One session, and the person who types."""

    def __init__(self, model: Path, seed: int, events: Counter[str]) -> None:
        self._options = parse_arguments(
            ["-m", str(model), "-q", "-c", str(CONTEXT), "--seed", str(seed)]
        )
        self._saved = model / "saved.json"
        self._random = random.Random(seed)
        self._events = events
        self._session = self._new_session()
        self.tokens = 0

    def _new_session(self) -> Session:
        return open_session(self._options, Console(quiet=True))

    def fill_caches(self) -> None:
        """Let the tokenizer remember as many pieces as it ever does, as after weeks of
        talk.
        """
        letters = string.ascii_lowercase
        words = (
            "".join(self._random.choices(letters, k=12)) for _ in range(CACHED_PIECES)
        )
        self._session.tokenizer.encode(" ".join(words), bos=False, eos=False)

    def fixed_answer(self) -> str:
        """Ask a new session, of a model that is loaded anew, what is always asked."""
        session = self._new_session()
        answer = session.ask("the same as ever").text
        session.engine.model.checkpoint.close()
        return answer

    def run_until(self, tokens: int) -> None:
        """Ask, or do one of the other things that a chat can do, until there are so many
        tokens.
        """
        session = self._session
        path = str(self._saved)
        doings = {
            "regenerated": session.regenerate,
            "undone": session.undo,
            "saved": lambda: save_chat(session, path),
            "loaded": lambda: load_chat(session, path),
            "asked": lambda: session.ask(self._question()),
        }
        while self.tokens < tokens:
            (name,) = self._random.choices(
                [*doings, "interrupted"], [10, 5, 5, 3, 60, 17]
            )
            if name == "interrupted":
                self._interrupted_question()
            else:
                self._command(name, doings[name])

    def _question(self) -> str:
        length = self._random.randint(1, LONGEST_QUESTION)
        most = str(self._random.randint(1, LONGEST_ANSWER))
        self._session.settings = self._session.settings.changed("max_tokens", most)
        return "".join(self._random.choices("abc déf 👍", k=length))

    def _command(self, name: str, do: Callable[[], object]) -> None:
        """Do something and count it; where the context is full, clear the chat."""
        self._session.engine.last_stats = None
        try:
            do()
            self._events[name] += 1
        except ContextFullError:
            self._events["context full"] += 1
            self._session.clear()
        except UsageError:  # nothing to undo, no question yet
            self._events["refused"] += 1
        self._count()

    def _interrupted_question(self) -> None:
        """Ask, with Ctrl-C after a moment; history and cache are those of before or
        after.
        """
        question = self._question()
        turns = list(self._session.turns)
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-4, 1e-2))
        try:
            self._command("asked", lambda: self._session.ask(question))
        except KeyboardInterrupt:  # beside the answer: a chat goes on at its prompt
            self._events["interrupted beside the answer"] += 1
            self._count()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        kept = self._session.turns
        assert kept in ([], turns) or (
            kept[:-1] == turns and kept[-1].question == question
        )

    def _count(self) -> None:
        stats = self._session.engine.last_stats
        last = self._session.last
        if stats is not None:
            self.tokens += stats.prompt_tokens - stats.cached_tokens + stats.new_tokens
            reason = "nothing" if last is None else last.stop_reason
            self._events[f"stopped by {reason}"] += 1


@contextlib.contextmanager
def _alarm_as_ctrl_c() -> Iterator[None]:
    def press(_number: int, frame: FrameType | None) -> None:
        struck = None if frame is None else frame.f_code.co_filename
        if struck == held.__file__:
            # What counts memory is not the chat.
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
        elif struck != __file__:  # nor is the person who types
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, press)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def report(result: Soak) -> None:
    print(
        "| tokens | seconds | resident KiB | native bytes | descriptors | mapped | "
        "threads |"
    )
    print("|---|---|---|---|---|---|---|")
    for tokens, seconds, each in result.readings:
        counts = f"{each.native} | {each.descriptors} | {each.files} | {each.threads}"
        print(f"| {tokens} | {seconds:.0f} | {each.resident >> 10} | {counts} |")
    drift = result.drift
    print(
        f"drift: {drift.resident / 1024:+.0f} KiB resident, {drift.native:+d} native "
        f"bytes, {drift.descriptors:+d} descriptors, {drift.files:+d} mapped files, "
        f"{drift.threads:+d} threads"
    )
    print("; ".join(f"{name}: {count}" for name, count in sorted(result.events.items())))
    print(
        "the same question: "
        f"{'the same answer' if result.same_answers else 'another answer'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.hardening.soak", description=__doc__
    )
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--intervals", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    result = soak(options.tokens, options.intervals, options.seed)
    report(result)
    return int(result.has_grown or not result.same_answers)


if __name__ == "__main__":
    sys.exit(main())
