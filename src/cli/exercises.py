"""Exercises: `--exercise` lists them, shows a task, and marks the program of a reader."""

from pathlib import Path

from ..exercises import (
    Exercise,
    UnknownExerciseError,
    find_exercise,
    list_exercises,
    mark_attempt,
)
from ..model import load_model
from ..untrusted import label_of
from .arguments import Options
from .console import Console, DifferenceError, UsageError, usage_errors

_MOST_PROGRAM_BYTES = 1 << 20
_LIST = "list"


def report_exercise(options: Options, console: Console) -> None:
    """List the exercises, show one or its solution, or mark an answer.

    Raises:
        UsageError: The exercise does not exist, or the file cannot be read.
        DifferenceError: The answer does not pass.
    """
    number, *files = options.exercise
    if number == _LIST:
        _report_list(console)
        return
    try:
        exercise = find_exercise(number)
    except UnknownExerciseError as error:
        raise UsageError(str(error)) from None
    if options.solution:
        console.report(*exercise.solution.rstrip().split("\n"))
    elif not files:
        _report_task(exercise, console)
    else:
        _mark_file(exercise, Path(files[0]), console)


def _report_list(console: Console) -> None:
    """Print a table of all exercises."""
    rows = [
        (
            exercise.number,
            exercise.title,
            exercise.kind,
            f"{exercise.minutes} min",
            exercise.difficulty,
        )
        for exercise in list_exercises()
    ]
    console.report_table(("number", "title", "kind", "time", "difficulty"), rows, "<<<><")
    console.report(
        "", "--exercise N.M shows a task; --exercise N.M FILE marks your answer in FILE."
    )


def _report_task(exercise: Exercise, console: Console) -> None:
    """Print a task, its stub, and the command that marks an answer."""
    title = f"{exercise.number} {exercise.title}"
    facts = f"{exercise.kind}, {exercise.minutes} minutes, {exercise.difficulty}"
    console.report_markdown(
        f"## {title}\n\n{facts}\n\n{exercise.task}\n```python\n{exercise.stub}```"
    )
    command = f"--exercise {exercise.number} {exercise.answer_file}"
    console.report(
        "",
        f"{command}  writes these lines to {exercise.answer_file}, if there is no such",
        f"{' ' * len(command)}  file, and marks it once you have completed it.",
        f"--exercise {exercise.number} --solution  shows a solution.",
    )


def _mark_file(exercise: Exercise, path: Path, console: Console) -> None:
    """Mark an answer, or write the stub to a file that does not exist yet."""
    label = label_of(path)
    if not path.exists() and not path.is_symlink():
        with usage_errors(f"{label}: expected a path that can be written"):
            path.write_text(exercise.stub, encoding="utf-8")
        console.report(f"{label}: a stub of exercise {exercise.number} was written.")
        return
    with usage_errors(f"{label}: expected a readable file"), open(path, "rb") as file:
        content = file.read(_MOST_PROGRAM_BYTES + 1)
    if len(content) > _MOST_PROGRAM_BYTES:
        raise UsageError(f"{label}: size: expected at most 1 MiB, got more")
    with usage_errors(f"{label}: expected UTF-8"):
        text = content.decode("utf-8-sig")
    verdict = mark_attempt(exercise, text, label, load_model())
    console.report(*(line for text in verdict.lines for line in text.split("\n")))
    if not verdict.passed:
        raise DifferenceError(f"exercise {exercise.number}: not passed yet")
    console.report(f"exercise {exercise.number}: passed")
