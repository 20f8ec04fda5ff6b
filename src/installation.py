"""Detect how the package is installed, for hints on installing missing components."""

from pathlib import Path

# The package directory is named `src` in a checkout and in an editable installation.
_IS_CHECKOUT = Path(__file__).parent.name == "src"


def install_hint(extra: str | None = None, builds: bool = False) -> str:
    """Return advice to run the pip command that installs a missing component.

    Args:
        extra: The extra that contains the component, or None for the package itself.
        builds: Whether the package must be rebuilt, which requires reinstalling it.
    """
    if _IS_CHECKOUT:
        target = "." if extra is None else f"'.[{extra}]'"
        return f"run `pip install -e {target}` in the repository"
    target = "llama-bolts" if extra is None else f"'llama-bolts[{extra}]'"
    again = "--force-reinstall " if builds else ""
    return f"run `pip install {again}{target}`"
