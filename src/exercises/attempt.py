"""Run the file of a reader, and report errors in it by the reader's own lines."""

import traceback
from typing import Any

from .errors import AttemptError


class Attempt:
    """The names that a reader's program defines.

    The program runs like any script: nothing restricts what it may do.

    Args:
        text: The program.
        label: Its name in messages, such as the path of the file.

    Raises:
        AttemptError: The program is not valid Python, or it raises an exception.
    """

    def __init__(self, text: str, label: str) -> None:
        self.label = label
        self._names: dict[str, Any] = {"__name__": "__exercise__", "__file__": label}
        try:
            exec(compile(text, label, "exec"), self._names)  # noqa: S102
        except (Exception, SystemExit) as error:
            raise self._failure(error) from error

    def value(self, name: str) -> Any:
        """Return the value of a name.

        Raises:
            AttemptError: The program does not define the name.
        """
        if name not in self._names:
            message = f"{self.label}: {name}: expected a definition, got none"
            raise AttemptError(message, "")
        return self._names[name]

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function that the program defines, and return its result.

        Raises:
            AttemptError: The program does not define the function, or it raises an
                exception.
        """
        function = self.value(name)
        if not callable(function):
            kind = type(function).__name__
            raise AttemptError(
                f"{self.label}: {name}: expected a function, got {kind}", ""
            )
        try:
            return function(*arguments)
        except (Exception, SystemExit) as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> AttemptError:
        """Return an error with the last line of the reader's program that ran."""
        if isinstance(error, AttemptError):
            return error
        if isinstance(error, SyntaxError) and error.filename == self.label:
            line = error.lineno
            reason = f"{type(error).__name__}: {error.msg}"
        else:
            lines = [
                frame.lineno
                for frame in traceback.extract_tb(error.__traceback__)
                if frame.filename == self.label
            ]
            line = lines[-1] if lines else None
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
        place = self.label if line is None else f"{self.label}:{line}"
        return AttemptError(f"{place}: {reason}", reason)
