"""How this copy of the package is installed, for hints about a missing component."""

from pathlib import Path

# The directory of the package is `src` in a checkout, also in an editable installation.
_IS_CHECKOUT = Path(__file__).parent.name == "src"


def install_hint(extra: str | None = None, builds: bool = False) -> str:
    """Return the advice to run the pip command that installs a missing component.

    Args:
        extra: The extra that contains it; None for the package itself.
        builds: Whether the package is installed and must be reinstalled.
    """
    if _IS_CHECKOUT:
        target = "." if extra is None else f"'.[{extra}]'"
        return f"run `pip install -e {target}` in the repository"
    target = "llama-bolts" if extra is None else f"'llama-bolts[{extra}]'"
    again = "--force-reinstall " if builds else ""
    return f"run `pip install {again}{target}`"
