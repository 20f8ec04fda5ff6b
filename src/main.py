"""Start the command line: `python -m src.main`, or `llama-bolts` after installation."""

import os
import signal
import sys
from collections.abc import Sequence

from .memory import NO_MEMORY_TEXT, is_lack_of_memory

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on arguments, by default the arguments of the process.

    Return the exit code: 0 done, 1 internal fault, 2 usage, 3 bad model, tokenizer or
    config, 4 not enough memory, 5 not-a-number in the logits, 130 interrupted.
    """
    try:
        # Ctrl-C ends the process at once during imports, because extension modules would
        # convert it to an ImportError.
        before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        from .cli import attach_rank, usage_errors_of_rank

        attach_rank()
        from .cli.arguments import parse_arguments

        with usage_errors_of_rank():
            options = parse_arguments(arguments)
        from .cli.application import run

        signal.signal(signal.SIGINT, before)
        code = run(options)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no cleanup is left
        return code
    except KeyboardInterrupt:
        # A second Ctrl-C, while buffers are flushed or memory is freed, ends the process
        # at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return INTERRUPTED
    # No console exists yet, so the error is written here.
    except (ImportError, MemoryError) as error:
        if is_lack_of_memory(error):
            code = 4
            text = f"{NO_MEMORY_TEXT} for the program itself"
        elif isinstance(error, ModuleNotFoundError):
            from .installation import install_hint

            code = 1
            text = f"{error}: {install_hint()}"
        elif isinstance(error, ImportError) and error.name is None:
            # The kernels are not built.
            code = 1
            text = str(error)
        else:
            raise
        if sys.stderr is not None:
            sys.stderr.write(f"error: {text}\n")
        return code


if __name__ == "__main__":
    sys.exit(main())
