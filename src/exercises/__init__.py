"""Exercises that the engine marks: the tasks, and the program that marks an answer."""

from .errors import AttemptError, ExerciseError, UnknownExerciseError
from .exercise import BreakIt, Case, Exercise, Mistake, PredictIt, WriteIt
from .listing import find_exercise, list_exercises
from .marking import Verdict, mark_attempt

__all__ = [
    "AttemptError",
    "BreakIt",
    "Case",
    "Exercise",
    "ExerciseError",
    "Mistake",
    "PredictIt",
    "UnknownExerciseError",
    "Verdict",
    "WriteIt",
    "find_exercise",
    "list_exercises",
    "mark_attempt",
]
