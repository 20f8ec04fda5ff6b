"""Find the tokenizer of a model directory, and tell its kind."""

import os
from pathlib import Path

from ..ml.errors import declared_lack_of_memory
from .errors import (
    TokenizerError,
    TokenizerMemoryError,
    TokenizerNotFoundError,
    label,
    shown,
)
from .roles import CONFIG_FILE, read_settings
from .sentencepiece_file import is_sentencepiece_file, read_sentencepiece_model
from .sentencepiece_text import sentencepiece_tokenizer
from .tiktoken_file import llama3_tokenizer, read_tiktoken_file
from .tokenizer import Tokenizer
from .tokenizer_json import read_tokenizer_json
from .tokens_beside import read_tokens_beside

_JSON_FILE = "tokenizer.json"
_MODEL_FILES = ("tokenizer.model", "original/tokenizer.model")
_HUGGING_FACE_FILES = ("config.json", CONFIG_FILE)


@declared_lack_of_memory("load_tokenizer", TokenizerMemoryError)
def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer of a model directory; weights are not needed.

    A Hugging Face directory (one with `config.json` or `tokenizer_config.json`) is read by its
    `tokenizer.json`, any other by its `tokenizer.model`; either way the other file serves where
    that one is missing. Whether a `tokenizer.model` holds base64 ranks or a SentencePiece model
    is seen in its bytes.

    Args:
        directory: holds `tokenizer.json`, `tokenizer.model`, or `original/tokenizer.model`.

    Returns:
        The tokenizer.

    Raises:
        TokenizerNotFoundError: for a directory without a tokenizer file.
        TokenizerMemoryError: where the system gives no memory.
        TokenizerError: for a tokenizer file that is damaged or of a kind that is not known.
    """
    directory = Path(directory)
    try:
        names = sorted(entry.name for entry in directory.iterdir())
        models = [directory / name for name in _MODEL_FILES if os.path.exists(directory / name)]
    except OSError as error:
        raise TokenizerError(f"{label(directory)}: cannot be read: {error.strerror}") from error
    hugging_face = any(name in names for name in _HUGGING_FACE_FILES)
    if _JSON_FILE in names and (hugging_face or not models):
        return read_tokenizer_json(directory / _JSON_FILE)
    if not models:
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "nothing"
        raise TokenizerNotFoundError(
            f"{label(directory)}: tokenizer: expected tokenizer.json or tokenizer.model, "
            f"got {shown(listed)}"
        )
    path = models[0]
    if is_sentencepiece_file(path):
        model = read_sentencepiece_model(path)
        added = read_tokens_beside(path.parent, model)
        return sentencepiece_tokenizer(model, read_settings(path.parent), added)
    return llama3_tokenizer(read_tiktoken_file(path))
