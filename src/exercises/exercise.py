"""What an exercise consists of, and the three kinds of exercises.

A module of `tasks` defines one exercise: its task, a stub, the solution, typical
mistakes, and cases with the results that the engine computes.
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from ..inference import SamplingArgs
from ..model import Model
from .attempt import Attempt
from .chat import QUESTION, ChatRun, run_chat
from .comparison import first_difference
from .errors import ExerciseError


@dataclass(frozen=True)
class Case:
    """A value that the reader's program has to define or compute.

    Attributes:
        name: The name of a function, or of a value if `arguments` is None.
        arguments: The arguments of the function.
        expected: The result of the engine.
        label: A description of the case for the reader.
    """

    name: str
    arguments: tuple[Any, ...] | None
    expected: Any
    label: str

    @property
    def is_prediction(self) -> bool:
        """Whether the case is a value that the reader predicts."""
        return self.name in ("answer", "prediction")

    def outcome(self, attempt: Attempt) -> Any:
        """Return the value of the reader's program for this case."""
        if self.arguments is None:
            return attempt.value(self.name)
        return attempt.call(self.name, *copy.deepcopy(self.arguments))


@dataclass(frozen=True)
class Mistake:
    """A typical mistake.

    Attributes:
        message: The name of the mistake, for the reader.
        swaps: Texts of the solution, each with the text that a wrong answer has instead.
    """

    message: str
    swaps: tuple[tuple[str, str], ...]

    def source(self, solution: str) -> str:
        """Return the wrong answer."""
        for right, wrong in self.swaps:
            assert right in solution, right
            solution = solution.replace(right, wrong)
        return solution


class WrongResultError(ExerciseError):
    """Raised within the marking when a result differs from the expected one."""

    def __init__(self, case: Case, value: Any, difference: str) -> None:
        super().__init__(difference)
        self.case = case
        self.value = value
        self.difference = difference


# A function that computes a result with the reader's function and returns it: the
# arguments, and the result of the engine.
Call = Callable[[tuple[Any, ...], Any], Any]


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """An exercise.

    Attributes:
        number: The chapter and the number in it, such as "10.2".
        title: The title.
        minutes: The time that it takes.
        difficulty: "easy", "medium" or "hard".
        task: What the reader is asked to do, in Markdown.
        stub: The program that the reader completes.
        solution: A program that passes.
        mistakes: The mistakes that are named.
        cases: Computes the cases.
        bound: The accepted difference of floating-point elements, in units of the largest
            element. 0 requires equal bits.
    """

    kind: ClassVar[str]

    number: str
    title: str
    minutes: int
    difficulty: str
    task: str
    stub: str
    solution: str
    mistakes: tuple[Mistake, ...]
    cases: Callable[[Model], list[Case]]
    bound: float = 0.0

    @property
    def chapter(self) -> int:
        """The chapter that the exercise belongs to."""
        return int(self.number.partition(".")[0])

    @property
    def answer_file(self) -> str:
        """The name that tasks suggest for the file of the answer."""
        return f"answer_{self.number.replace('.', '_')}.py"

    def check(self, case: Case, attempt: Attempt) -> Any:
        """Return the outcome of a case.

        Raises:
            WrongResultError: The outcome is not the expected one.
            AttemptError: The reader's program fails.
        """
        value = case.outcome(attempt)
        difference = first_difference(value, case.expected, self.bound)
        if difference is not None:
            raise WrongResultError(case, value, difference)
        return value

    def finish(self, attempt: Attempt, model: Model) -> list[str]:
        """Run the reader's program in the engine, and return lines about the result.

        The arguments and exceptions are as in `check`.
        """
        raise NotImplementedError


def _expected_result(_arguments: tuple[Any, ...], expected: Any) -> Any:
    """Return the engine's result, in the place of a reader's function."""
    return expected


@dataclass(frozen=True, kw_only=True)
class WriteIt(Exercise):
    """The reader writes a function, which then replaces the engine's for a chat.

    Attributes:
        in_chat: Replaces the function of the engine. It receives a function that calls
            the reader's function with arguments and compares the result with the
            engine's.
        question: The question of the chat.
        sampling: The sampling settings of the chat, by default with a temperature of 0.
        changes_model: Whether the engine does not use the function in other chats. The
            reader's chat is then compared with a chat that uses the engine's results.
    """

    kind = "write it"

    in_chat: Callable[[Call], AbstractContextManager[None]]
    function: str
    question: str = QUESTION
    sampling: SamplingArgs | None = None
    changes_model: bool = False

    def finish(self, attempt: Attempt, model: Model) -> list[str]:
        """Chat with the reader's function; see `Exercise.finish`."""
        calls = 0

        def call(arguments: tuple[Any, ...], expected: Any) -> Any:
            nonlocal calls
            calls += 1
            label = f"call {calls} in a chat"
            return self.check(Case(self.function, arguments, expected, label), attempt)

        same = self.in_chat(_expected_result) if self.changes_model else nullcontext()
        with same:
            plain = run_chat(model, self.question, self.sampling)
        with self.in_chat(call):
            chat = run_chat(model, self.question, self.sampling)
        case = Case(self.function, None, plain.answer, "the answer of a chat")
        if chat.answer != plain.answer or not calls:
            difference = first_difference(chat.answer, plain.answer, 0.0)
            text = difference or "the chat did not call the function"
            raise WrongResultError(case, chat.answer, text)
        times = "once" if calls == 1 else f"{calls} times"
        lines = [
            f"A chat called your function {times} instead of the engine's:",
            f"  {chat.question}",
            f"  {chat.answer.strip()}",
        ]
        if chat.has_bits_of(plain):
            lines.append(
                "The answer and all logits are equal to the engine's, bit for bit."
            )
        elif self.bound == 0.0:
            raise WrongResultError(case, chat.answer, "the logits have other bits")
        else:
            lines.append(
                "The answer is the engine's. Its logits differ by an rms of at most "
                f"{chat.largest_distance(plain):.2g}, because you sum in another order."
            )
        return lines


@dataclass(frozen=True, kw_only=True)
class PredictIt(Exercise):
    """The reader predicts a value, which the engine then computes.

    Attributes:
        explanation: Why the value is what it is, shown after the right answer.
    """

    kind = "predict it"

    explanation: str

    def finish(self, attempt: Attempt, model: Model) -> list[str]:
        """Explain the value; see `Exercise.finish`."""
        del attempt, model
        return [self.explanation]


@dataclass(frozen=True, kw_only=True)
class BreakIt(Exercise):
    """The reader breaks a function of the engine and predicts what happens to a chat.

    The program defines the broken function and `prediction`, a letter.

    Attributes:
        in_chat: Replaces the function of the engine, as in `WriteIt`.
        function: The name of the broken function.
        outcome: Returns the letter of what happened, from the chats without and with the
            broken function.
        explanation: Why it happened.
        question: The question of the chat.
    """

    kind = "break it"

    in_chat: Callable[[Call], AbstractContextManager[None]]
    function: str
    outcome: Callable[[ChatRun, ChatRun], str]
    explanation: str
    question: str = QUESTION

    def finish(self, attempt: Attempt, model: Model) -> list[str]:
        """Chat with the broken function; see `Exercise.finish`."""

        def call(arguments: tuple[Any, ...], expected: Any) -> Any:
            del expected
            return attempt.call(self.function, *arguments)

        plain = run_chat(model, self.question)
        with self.in_chat(call):
            broken = run_chat(model, self.question)
        letter = self.outcome(plain, broken)
        self.check(Case("prediction", None, letter, "your prediction"), attempt)
        return [
            f"  {plain.question}",
            f"  before: {plain.answer.strip()}",
            f"  broken: {broken.answer.strip()}",
            "The logits after the prompt differ by an rms of "
            f"{broken.distance(plain):.2g}.",
            self.explanation,
        ]
