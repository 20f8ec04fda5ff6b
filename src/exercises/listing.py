"""Find exercises: each module of `tasks` contains one, as `EXERCISE`."""

import pkgutil
from importlib import import_module

from . import tasks
from .errors import UnknownExerciseError
from .exercise import Exercise


def list_exercises() -> list[Exercise]:
    """Return all exercises, in the order of the book."""
    found: list[Exercise] = []
    for module in pkgutil.iter_modules(tasks.__path__):
        found.append(import_module(f".{module.name}", tasks.__name__).EXERCISE)
    return sorted(found, key=lambda each: tuple(map(int, each.number.split("."))))


def find_exercise(number: str) -> Exercise:
    """Return the exercise with a number such as "10.2".

    Raises:
        UnknownExerciseError: If there is no such exercise.
    """
    exercises = {each.number: each for each in list_exercises()}
    if number not in exercises:
        chapter = number.partition(".")[0]
        near = [other for other in exercises if other.partition(".")[0] == chapter]
        expected = " or ".join([*near, "list"])
        raise UnknownExerciseError(f"--exercise: expected {expected}, got {number}")
    return exercises[number]
