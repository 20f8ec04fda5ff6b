"""What argparse lacks: errors of one line, short help, and names that other programs use."""

import argparse
import difflib
import shutil
from typing import NoReturn

from .escape import escape_line

USAGE_ERROR = 2
# What llama.cpp, ollama and transformers call some of our flags.
_OTHER_NAMES = {
    "--ctx-size": "--context-length",
    "--num-ctx": "--context-length",
    "--predict": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--num-predict": "--max-tokens",
    "--max-new-tokens": "--max-tokens",
    "--temp": "--temperature",
    "--reverse-prompt": "--stop",
    "--system-prompt": "--system",
    "--chat-template": "--chat-format",
    "--repetition-penalty": "--repeat-penalty",
    "--no-conversation": "--completion",
}
_LONGEST_MESSAGE = 400
_NEAR = 0.7  # how alike a flag must be to be suggested


class FlagParser(argparse.ArgumentParser):
    """Refuses with one line; argparse's own way prints the usage first."""

    def error(self, message: str) -> NoReturn:
        """End the process with 2 after one line on standard error."""
        line = escape_line(message, _LONGEST_MESSAGE)
        self.exit(USAGE_ERROR, f"error: {line} (--help lists the options)\n")

    def near(self, unknown: str) -> str:
        """Return `; near it: ...` with the flags that an unknown one may stand for, or nothing."""
        name = unknown.partition("=")[0]
        if name in _OTHER_NAMES:
            found = [_OTHER_NAMES[name]]
        else:
            flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
            beginnings = [flag for flag in flags if name.startswith("--") and flag.startswith(name)]
            found = beginnings or difflib.get_close_matches(name, flags, cutoff=_NEAR)
        return f"; near it: {', '.join(found)}" if found else ""


class FlagFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows flags as `-p, --prompt TEXT`, on lines of 79 characters, or less in a small window."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, max_help_position=27, width=min(columns, 80) - 1)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = f"[{action.metavar}]" if action.nargs == "?" else str(action.metavar)
        return f"{', '.join(action.option_strings)} {metavar}"
