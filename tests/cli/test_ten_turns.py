"""The cache between turns: answers are those of a fresh process, and only what is new is run."""

import dataclasses
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src.cli.arguments import parse_arguments
from src.cli.commands import run_command
from src.cli.console import Console
from src.cli.loading import open_session
from src.cli.session import Session
from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import load_model
from tests.cli.conftest import REPOSITORY, SECONDS
from tests.cli.test_session import interrupt_after, session_of

QUESTIONS = (
    "Hello!",
    "My name is Anna.",
    "What is the capital of Turkey?",
    "What is 7 + 8?",
    "What is my name?",
    "What is the flag of Japan?",
    "What happens in attention?",
    "Which city is the capital of Ohio?",
    "Thank you.",
    "What is the capital of France? Answer in one word.",
)
GREEDY = {"temperature": 0.0, "seed": 1}
SAMPLED = {"temperature": 1.0, "top_p": 0.95, "repeat_penalty": 1.1, "seed": 5}
FRESH_PROCESS = """
import json, sys
from src.inference import InferenceEngine, Message, SamplingArgs
from src.model import load_model

asked = json.load(sys.stdin)
messages = [Message(**message) for message in asked["messages"]]
steps = InferenceEngine(load_model()).chat(messages, sampling=SamplingArgs(**asked["sampling"]))
json.dump([step.token_id for step in steps], sys.stdout)
"""


def bundled_session(sampling: dict[str, Any]) -> Session:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in sampling.items()]
    return open_session(parse_arguments(["-q", *flags]), Console(quiet=True))


def drawn(session: Session) -> list[int]:
    assert session.last is not None
    return [step.token_id for step in session.last.steps]


def fresh_engine(messages: list[Message], sampling: SamplingArgs) -> list[int]:
    steps = InferenceEngine(load_model(), speculation=False).chat(messages, sampling=sampling)
    return [step.token_id for step in steps]


def fresh_process(messages: list[Message], sampling: SamplingArgs) -> list[int]:
    asked = {
        "messages": [dataclasses.asdict(message) for message in messages],
        "sampling": dataclasses.asdict(sampling),
    }
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS],
        input=json.dumps(asked).encode(),
        capture_output=True,
        cwd=REPOSITORY,
        timeout=SECONDS,
        check=True,
    )
    ids: list[int] = json.loads(done.stdout)
    return ids


class RunCounter:
    """Notes which positions each step of a session's model runs."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spans: list[tuple[int, int]] = []
        transformer = session.engine.model.transformer
        forward = transformer.forward

        def noted(context: Any, tokens: Any, start_pos: int, **named: Any) -> Any:
            self.spans.append((start_pos, start_pos + len(tokens)))
            return forward(context, tokens, start_pos, **named)

        monkeypatch.setattr(transformer, "forward", noted)

    def prompt_tokens_run(self, prompt_tokens: int) -> range:
        """Returns the positions of the prompt that were run; each of them once."""
        spans = [span for span in self.spans if span[0] < prompt_tokens]
        self.spans = []
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert start == end
        return range(spans[0][0], spans[-1][1])


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "is_process",
    [
        pytest.param(False, id="fresh-engine"),
        pytest.param(True, id="fresh-process", marks=pytest.mark.slow),
    ],
)
def test_ten_turns_are_those_of_a_fresh_start_and_only_new_tokens_are_run(
    monkeypatch: pytest.MonkeyPatch, is_process: bool, sampling: dict[str, Any]
) -> None:
    session = bundled_session(sampling)
    counter = RunCounter(session, monkeypatch)
    args = session.settings.sampling
    held = 0  # positions whose tokens the next prompt begins with
    for question in QUESTIONS:
        messages = session.messages(session.turns, question)
        session.ask(question)
        stats = session.engine.last_stats
        assert stats is not None
        run = counter.prompt_tokens_run(stats.prompt_tokens)
        assert run == range(held, stats.prompt_tokens)
        assert stats.cached_tokens == held
        held = stats.prompt_tokens + stats.new_tokens - 1  # the end token is read with what follows
        fresh = fresh_process if is_process else fresh_engine
        assert drawn(session) == fresh(messages, args)
    assert len(session.turns) == 10


OPERATIONS = ("ask", "ask", "ask", "regen", "undo", "clear", "system", "load", "interrupt")


@pytest.mark.parametrize("seed", range(4))
def test_after_any_commands_an_answer_is_that_of_a_fresh_start(
    random_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    generator = random.Random(seed)
    session = session_of(random_model, "-c", "2000", "-n", "6", "--seed", "3")
    saved = tmp_path / "chat.json"
    session.ask("first")
    run_command(session, f"/save {saved}")
    for number in range(25):
        operation = generator.choice(OPERATIONS)
        if operation == "undo" and session.turns:
            run_command(session, "/undo")
        elif operation == "clear" and number % 3 == 0:
            run_command(session, "/clear")
        elif operation == "system":
            run_command(session, f"/system Be {generator.choice(['short', 'long'])}.")
        elif operation == "load":
            run_command(session, f"/load {saved}")
        elif operation == "interrupt":
            with monkeypatch.context() as patch:
                interrupt_after(session, generator.randint(1, 5), patch)
                session.ask("stop " * generator.randint(1, 9))
        elif operation == "regen" and (session.turns or session.unanswered is not None):
            run_command(session, "/regen")
            check_last_turn(session)
        else:
            session.ask(f"question {number}")
            check_last_turn(session)


def check_last_turn(session: Session) -> None:
    *before, last = session.turns
    messages = session.messages(before, last.question)
    engine = InferenceEngine(session.engine.model, 2000)
    steps = engine.chat(messages, 6, session.settings.sampling)
    assert drawn(session) == [step.token_id for step in steps]
