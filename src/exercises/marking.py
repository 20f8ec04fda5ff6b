"""Mark the program of a reader."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model import Model
from .attempt import Attempt
from .comparison import first_difference, shown
from .errors import AttemptError
from .exercise import Case, Exercise, WrongResultError

_UNWRITTEN = "NotImplementedError"


@dataclass(frozen=True)
class Verdict:
    """Whether a program passes, and the lines that say why."""

    passed: bool
    lines: tuple[str, ...]


def mark_attempt(exercise: Exercise, text: str, label: str, model: Model) -> Verdict:
    """Run the program of a reader and compare its results with those of the engine.

    Args:
        exercise: The exercise.
        text: The program.
        label: The name of the program in messages, such as the path of its file.
        model: The bundled model.
    """
    case: Case | None = None
    cases = exercise.cases(model)
    try:
        attempt = Attempt(text, label)
        for case in cases:
            exercise.check(case, attempt)
        case = None
        return Verdict(True, tuple(exercise.finish(attempt, model)))
    except WrongResultError as wrong:
        line = _described(wrong)
        case = wrong.case
    except AttemptError as error:
        line = str(error)
        if error.reason == _UNWRITTEN and case is not None:
            return Verdict(False, (line, f"{case.name} is not written yet."))
        if not error.reason:
            hint = f"--exercise {exercise.number} shows the lines to begin with."
            return Verdict(False, (line, hint))
        if case is None:
            return Verdict(False, (line,))
    message = _mistake_message(exercise, attempt, case, cases)
    return Verdict(False, (line, message) if message else (line,))


def _described(wrong: WrongResultError) -> str:
    """Return a line with the case, and the first difference in it."""
    case = wrong.case
    if case.arguments is not None:
        call = f"{case.name}({', '.join(map(shown, case.arguments))})"
        place = f"{call}, {case.label}" if case.label else call
        return f"{place}: {wrong.difference}"
    if case.is_prediction:  # the expected value would be the solution
        if wrong.value is None:
            return f"{case.name} is not set yet."
        kind = type(case.expected).__name__
        if not _is_of_kind(wrong.value, case.expected):
            return f"{case.label}: {shown(wrong.value)}, expected a value of type {kind}"
        size = _too_large_or_small(wrong.value, case.expected)
        return f"{case.label}: {shown(wrong.value)} is not what the engine computes{size}"
    return f"{case.label}: {wrong.difference}"


def _too_large_or_small(value: Any, expected: Any) -> str:
    """Return a hint for a wrong number, and "" for other values."""
    if not isinstance(expected, int | float) or value == expected:
        return ""
    return f"; it is too {'large' if value > expected else 'small'}"


def _is_of_kind(value: Any, expected: Any) -> bool:
    """Return whether a prediction has the type of the engine's value."""
    if isinstance(expected, int | float):
        return isinstance(value, int | float | np.number)
    return isinstance(value, type(expected))


def _mistake_message(
    exercise: Exercise, attempt: Attempt, failed: Case, cases: Sequence[Case]
) -> str:
    """Return the message of the mistake that has the outcomes of the reader's program.

    It agrees with the program in the failed case. Of several such mistakes, the one that
    agrees in the most other cases is chosen. Returns "" if there is none.
    """
    message = ""
    most = 0
    compared = [failed, *(case for case in cases if case is not failed)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = [_outcome(case, attempt) for case in compared]
        for mistake in exercise.mistakes:
            other = Attempt(mistake.source(exercise.solution), "mistake")
            agreeing = [
                first_difference(_outcome(case, other), outcome, exercise.bound) is None
                for case, outcome in zip(compared, outcomes, strict=True)
            ]
            if agreeing[0] and sum(agreeing) > most:
                most = sum(agreeing)
                message = mistake.message
    return message


def _outcome(case: Case, attempt: Attempt) -> Any:
    """Return the outcome of a case, or the reason of the exception."""
    try:
        return case.outcome(attempt)
    except AttemptError as error:
        return error.reason
