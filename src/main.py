"""Run the command line with `python -m src.main`, or `llama-bolts` once installed."""

import os
import signal
import sys
from collections.abc import Sequence

from .memory import NO_MEMORY_TEXT, is_lack_of_memory

INTERRUPTED = 130  # 128 + SIGINT, the exit code that shells use


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The command-line arguments, by default those of the process.

    Returns:
        The exit code: 0 for success, 1 for an internal error, 2 for a usage error, 3 for
        an invalid model, tokenizer or configuration, 4 for insufficient memory, 5 for NaN
        in the logits, and 130 after an interrupt.
    """
    try:
        # During imports, Ctrl-C exits immediately, because extension modules would
        # convert the KeyboardInterrupt to an ImportError.
        before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
        from .cli import attach_rank, usage_errors_of_rank

        attach_rank()
        from .cli.arguments import parse_arguments

        with usage_errors_of_rank():
            options = parse_arguments(arguments)
        from .cli.application import run

        signal.signal(signal.SIGINT, before)
        code = run(options)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no cleanup remains
        return code
    except KeyboardInterrupt:
        # A second Ctrl-C, while buffers are flushed or memory is freed, terminates the
        # process immediately.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return INTERRUPTED
    # The console has not been created yet, so write the error to stderr here.
    except (ImportError, MemoryError) as error:
        if is_lack_of_memory(error):
            code = 4
            text = f"{NO_MEMORY_TEXT} for the program itself"
        elif isinstance(error, ModuleNotFoundError):
            from .installation import install_hint

            code = 1
            text = f"{error}: {install_hint()}"
        elif isinstance(error, ImportError) and error.name is None:
            # The kernels have not been built, and the message contains the advice.
            code = 1
            text = str(error)
        else:
            raise
        if sys.stderr is not None:
            sys.stderr.write(f"error: {text}\n")
        return code


if __name__ == "__main__":
    sys.exit(main())
