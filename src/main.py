"""Start the command line: `python -m src.main` in a checkout, `llama-bolts` once installed."""

import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .cli.words import NO_MEMORY_TEXT, is_lack_of_memory

if TYPE_CHECKING:
    from .cli.arguments import Options

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the arguments after the program's name; those of the process when None.

    Returns:
        The exit code: 0 done, 1 internal fault, 2 usage, 3 bad model, tokenizer or config,
        4 not enough memory, 5 not-a-number in the logits, 130 interrupted.
    """
    try:
        from .cli.arguments import parse_arguments

        options = parse_arguments(arguments)
        return _import_run()(options)
    except KeyboardInterrupt:
        # A second Ctrl-C, while buffers are flushed or memory is freed, ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return INTERRUPTED
    except (ImportError, MemoryError) as error:  # before there is a console that could say it
        if is_lack_of_memory(error):
            code, text = 4, f"{NO_MEMORY_TEXT} for the program itself"
        elif isinstance(error, ModuleNotFoundError):
            code, text = 1, f"{error}: run `pip install -e .` in the repository"
        elif isinstance(error, ImportError) and error.name is None:  # the kernels are not built
            code, text = 1, str(error)
        else:
            raise
        if sys.stderr is not None:
            sys.stderr.write(f"error: {text}\n")
        return code


def _import_run() -> "Callable[[Options], int]":
    """Import what is heavy (NumPy, the kernels, rich), now that the arguments are good.

    Ctrl-C waits until that is done: extension modules turn it into an ImportError.
    """
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: pressed.append(number))
    try:
        from .cli.application import run
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
    return run


if __name__ == "__main__":
    sys.exit(main())
