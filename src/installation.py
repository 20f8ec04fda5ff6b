"""How this copy of the package is installed, for messages about something that is
missing.
"""

from pathlib import Path

# The directory of the package is `src` in a checkout, also of an editable installation.
_IS_CHECKOUT = Path(__file__).parent.name == "src"


def install_hint(extra: str | None = None, builds: bool = False) -> str:
    """Return the advice to run the command of pip that installs what is missing.

    Args:
        extra: The extra that has it; None for the package itself.
        builds: Whether the package is there and has to be installed once more.
    """
    if _IS_CHECKOUT:
        target = "." if extra is None else f"'.[{extra}]'"
        return f"run `pip install -e {target}` in the repository"
    target = "llama-bolts" if extra is None else f"'llama-bolts[{extra}]'"
    again = "--force-reinstall " if builds else ""
    return f"run `pip install {again}{target}`"
