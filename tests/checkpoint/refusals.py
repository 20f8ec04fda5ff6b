"""What every refusal of a file is: one line, short and safe to show, that begins with the
file.
"""

from collections.abc import Callable

import pytest

from src.checkpoint import CheckpointError


def refusal_of(
    read: Callable[..., object],
    *given: object,
    begin: object = "",
    match: str | None = None,
    most: int = 800,
) -> str:
    """Return the text of the refusal in which a call ends; `match` is a regular
    expression.
    """
    with pytest.raises(CheckpointError, match=match or None) as caught:
        read(*given)
    text = str(caught.value)
    assert text.startswith(str(begin))
    assert text.isprintable()
    assert len(text) < most + len(str(begin))
    return text
