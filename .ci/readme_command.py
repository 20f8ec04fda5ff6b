"""Prints the shell command that README.md gives under a marker, word for word.

A command is the fenced block that follows the line `<!-- command: NAME -->`.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def readme_command(name: str) -> str:
    """Return the text of the one block marked `name`."""
    pattern = rf"<!-- command: {re.escape(name)} -->\n+```[a-z]*\n(.*?)\n```"
    found = re.findall(pattern, README.read_text(encoding="utf-8"), flags=re.DOTALL)
    if len(found) != 1:
        sys.exit(f"README.md: blocks marked {name!r}: expected 1, got {len(found)}")
    return str(found[0])


if __name__ == "__main__":
    sys.stdout.write(readme_command(sys.argv[1]) + "\n")
