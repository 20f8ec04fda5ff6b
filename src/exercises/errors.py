"""The errors of the exercises."""

from ..ml.errors import LlamaBoltsError


class ExerciseError(LlamaBoltsError):
    """Base class of all errors of the exercises."""


class UnknownExerciseError(ExerciseError):
    """Raised for a number that no exercise has."""


class AttemptError(ExerciseError):
    """Raised when the code of the reader fails, with the reader's line.

    `reason` is the class and the message of the exception, without the place.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
