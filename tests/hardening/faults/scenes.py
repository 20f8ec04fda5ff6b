"""What faults strike at: each thing that a program does, and what must be as before
afterwards.
"""

import contextlib
import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.cli.session import Session
from src.inference import InferenceEngine, SamplingArgs
from src.model import InferenceContext, Model, load_model
from src.tokenizer import Tokenizer
from tests.hardening.faults.injection import Inject, Line
from tests.support.held import Held, NativeBytes, held_now

GREEDY = SamplingArgs(temperature=0.0)
PROMPT = [3, 1, 4] * 4
OTHER_PROMPT = [*PROMPT[:5], 9, 8, 7]
NEW_TOKENS = 6
TEXT = "Hello, w\u00f6rld \U0001f44d!  12345 \ud800 <|eot_id|>\n\n"


@dataclass(frozen=True)
class Scene:
    run: Callable[[], object]  # does it
    # What is to be the same after a fault as before, bit for bit.
    answer: Callable[[], object]
    # Fails where what is left after a fault is inconsistent.
    check: Callable[[], None] = lambda: None


def loading(directory: Path, **options: Any) -> Scene:
    """Load a model; the next one gives the same logits."""

    def logits() -> bytes:
        model = load_model(directory, **options)
        context = InferenceContext(model.args, 16)
        result = model.transformer.forward(context, PROMPT[:5]).numpy().tobytes()
        model.checkpoint.close()
        return result

    def load() -> None:
        load_model(directory, **options).checkpoint.close()

    return Scene(load, logits)


def generating(model: Model) -> Scene:
    """Continue a prompt; the next answers of the same engine have the same bits."""
    engine = InferenceEngine(model, 32)

    def check() -> None:
        assert engine.context.length >= len(engine.cached_ids)

    return Scene(
        lambda: _steps(engine, PROMPT[::-1]),
        lambda: _steps(engine, OTHER_PROMPT) + _steps(engine, PROMPT),
        check,
    )


def _steps(engine: InferenceEngine, prompt: list[int]) -> list[object]:
    steps = engine.generate(prompt, NEW_TOKENS, GREEDY, candidates=3)
    return [(step.token_id, step.text, step.choice) for step in steps]


def starting(model: Model) -> Scene:
    """Make an engine and run its first steps."""

    def generate() -> list[object]:
        return _steps(InferenceEngine(model, 32), PROMPT)

    return Scene(generate, generate)


def encoding(tokenizer: Tokenizer) -> Scene:
    """Encode a text and decode it; the next time gives the same."""

    def ids_and_text() -> object:
        ids = tokenizer.encode(TEXT, bos=False, eos=False)
        return ids, tokenizer.decode(ids)

    return Scene(ids_and_text, ids_and_text)


def chatting(session: Session) -> Scene:
    """Ask a question in a chat; history and the next answer are those of before."""
    session.ask("the first question")
    turns = list(session.turns)

    def ask() -> None:
        session.turns = list(turns)
        if not session.ask("another question").is_complete:
            raise KeyboardInterrupt

    def check() -> None:
        asked = session.turns
        assert asked == turns or (
            asked[:-1] == turns and asked[-1].question == "another question"
        )

    def answer() -> object:
        session.turns = list(turns)
        result = session.ask("and one more")
        assert session.last is result
        return result.text, result.ids, result.stop_reason

    return Scene(ask, answer, check)


def strike(
    scene: Scene,
    inject: Inject,
    declared: tuple[type[BaseException], ...],
    native: NativeBytes,
    moments: Iterable[Any],
) -> int:
    """Let one moment after the other fail, numbers from 1 on or lines; return how many
    there were.

    After each fault, of which only what is declared may be raised, what the process holds
    and the next answer are as before.
    """
    scene.run()  # what is kept for good is made by a run that succeeds
    expected = scene.answer()
    before = held_now(native)
    faults = 0
    gc.freeze()  # the collector need not look again at what was there before
    try:
        for at in moments:
            with inject(at) as fault, contextlib.suppress(*declared):
                scene.run()
            if not fault.has_come:
                if isinstance(at, Line):
                    continue  # not every run takes each line: some depend on the time
                return faults
            faults += 1
            scene.check()
            assert gc.isenabled()
            check_held(before, native, at)
            assert scene.answer() == expected, f"the answer after a fault at {at}"
    finally:
        gc.unfreeze()
        print(f"{faults} faults")
    return faults


def check_held(before: Held, native: NativeBytes, at: object) -> None:
    """Check that nothing is left of a fault; memory that is not given back to the system
    may be.
    """
    for collect in (
        False,
        True,
    ):  # what is gone already need not be collected, which takes time
        left = held_now(native, collect=collect).minus(before)
        if max(left.native, left.descriptors, left.files, left.threads) <= 0:
            return
    raise AssertionError(f"left after a fault at {at}: {left}")
