"""Find the tokenizer of a model directory."""

from pathlib import Path

from .errors import TokenizerError, TokenizerNotFoundError, shown
from .tiktoken_file import is_sentencepiece_file, read_tiktoken_file
from .tokenizer import Tokenizer

_MODEL_FILES = ("tokenizer.model", "original/tokenizer.model")


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer of a model directory; weights are not needed.

    Args:
        directory: holds `tokenizer.model`, or `original/tokenizer.model` as downloads from
            Hugging Face do.

    Returns:
        The tokenizer.

    Raises:
        TokenizerNotFoundError: for a directory without a tokenizer file.
        TokenizerError: for a tokenizer file in another format, or a bad one.
    """
    directory = Path(directory)
    try:
        names = sorted(entry.name for entry in directory.iterdir())
        found = [directory / name for name in _MODEL_FILES if (directory / name).exists()]
    except OSError as error:
        raise TokenizerError(f"{shown(directory)}: cannot be read: {error.strerror}") from error
    if not found:
        raise _nothing_to_read(directory, names)
    path = found[0]
    if is_sentencepiece_file(path):
        raise TokenizerError(
            f"{shown(path)}: format: expected base64 ranks (Llama 3), got a SentencePiece model"
        )
    return Tokenizer(read_tiktoken_file(path))


def _nothing_to_read(directory: Path, names: list[str]) -> TokenizerError:
    if "tokenizer.json" in names:
        return TokenizerError(
            f"{shown(directory)}: tokenizer: expected tokenizer.model (base64 ranks), "
            "got only tokenizer.json"
        )
    listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing"
    return TokenizerNotFoundError(
        f"{shown(directory)}: tokenizer: expected tokenizer.model, got {shown(listed)}"
    )
