"""What can go wrong between text and token ids.

The error of a file reads `<file>: <what>: expected X, got Y`, that of a call `[call]
rule: got X`. Text from a file passes through `shown` of `untrusted` first.
"""

from pathlib import Path

from ..ml.errors import LlamaBoltsError
from ..untrusted import label_of


class TokenizerError(LlamaBoltsError):
    """A tokenizer file that cannot be used, or a call with a wrong text or id."""


class TokenizerNotFoundError(TokenizerError):
    """A directory that holds no tokenizer file at all."""


class TokenizerMemoryError(TokenizerError, MemoryError):
    """The system refused memory for a tokenizer, a text or its ids."""


def mismatch(path: Path, what: str, expected: object, got: object) -> TokenizerError:
    """Form the error `<file>: <what>: expected X, got Y`; all but the path is shown as it
    is.
    """
    return TokenizerError(f"{label_of(path)}: {what}: expected {expected}, got {got}")
