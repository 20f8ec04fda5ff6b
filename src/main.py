"""Start the command line: `python -m src.main` in a checkout, `llama-bolts` once installed."""

import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: the arguments after the program's name; those of the process when None.

    Returns:
        The exit code: 0 done, 1 internal fault, 2 usage, 3 bad model, tokenizer or config,
        4 not enough memory, 5 not-a-number in the logits, 130 interrupted.
    """
    try:
        from .cli.arguments import parse_arguments

        options = parse_arguments(arguments)
        # What is heavy (NumPy, the kernels, rich) waits until the arguments are known to be good.
        from .cli.application import run

        return run(options)
    except KeyboardInterrupt:
        # A second Ctrl-C, while buffers are flushed or memory is freed, ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
