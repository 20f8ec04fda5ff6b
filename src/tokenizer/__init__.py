"""Convert text to token ids and back, using the tokenizer files of Llama models."""

import os
from pathlib import Path

from ..ml.errors import declared_lack_of_memory
from ..untrusted import label_of, some_of
from .config_files import (
    CONFIG_FILE,
    MAX_FILE_BYTES,
    is_sentencepiece_file,
    read_added_tokens_of_config,
    read_token_settings,
)
from .errors import TokenizerError, TokenizerMemoryError, TokenizerNotFoundError, mismatch
from .tiktoken_file import llama3_tokenizer, read_tiktoken_file
from .tokenizer import StreamDecoder, Tokenizer

__all__ = [
    "MAX_FILE_BYTES",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerError",
    "TokenizerMemoryError",
    "TokenizerNotFoundError",
    "load_tokenizer",
]

_JSON_FILE = "tokenizer.json"
_MODEL_FILES = ("tokenizer.model", "original/tokenizer.model")
_HUGGING_FACE_FILES = ("config.json", CONFIG_FILE)


@declared_lack_of_memory("load_tokenizer", TokenizerMemoryError)
def load_tokenizer(directory: str | Path) -> Tokenizer:
    """Load the tokenizer from a model directory, which need not contain weights.

    In a Hugging Face directory (with `config.json` or `tokenizer_config.json`),
    `tokenizer.json` is preferred; in any other directory, `tokenizer.model` is preferred.
    If the preferred file is missing, the other one is read. The first bytes of
    `tokenizer.model` show whether it contains base64 ranks or a SentencePiece model.

    Args:
        directory: A directory with `tokenizer.json`, `tokenizer.model`, or
            `original/tokenizer.model`.

    Returns:
        The tokenizer.

    Raises:
        TokenizerNotFoundError: The directory has no tokenizer file.
        TokenizerMemoryError: Memory cannot be allocated.
        TokenizerError: A tokenizer file is damaged or has an unknown format.
    """
    path = tokenizer_file(Path(directory))
    if path.name == _JSON_FILE:
        # This is the largest reader, so import it only for Hugging Face files.
        from .tokenizer_json import read_tokenizer_json

        return read_tokenizer_json(path)
    if is_sentencepiece_file(path):
        from .sentencepiece_model import read_sentencepiece_model, sentencepiece_tokenizer

        model = read_sentencepiece_model(path)
        added = read_added_tokens_of_config(path.parent, model.ids, model.special)
        return sentencepiece_tokenizer(model, read_token_settings(path.parent), added)
    return llama3_tokenizer(read_tiktoken_file(path))


def tokenizer_file(directory: Path) -> Path:
    """Return the path of the file that `load_tokenizer` reads.

    Raises:
        TokenizerNotFoundError: The directory has no tokenizer file.
        TokenizerError: The directory cannot be read.
    """
    try:
        names = sorted(entry.name for entry in directory.iterdir())
        models = [
            directory / name for name in _MODEL_FILES if os.path.exists(directory / name)
        ]
    except OSError as error:
        raise TokenizerError(
            f"{label_of(directory)}: expected a readable directory, got {error.strerror}"
        ) from error
    hugging_face = any(name in names for name in _HUGGING_FACE_FILES)
    if _JSON_FILE in names and (hugging_face or not models):
        return directory / _JSON_FILE
    if not models:
        expected = (
            "tokenizer.model (Meta's layout), tokenizer.json or tokenizer.model (Hugging "
            "Face's)"
        )
        files = some_of(names) if names else "nothing"
        missing = mismatch(directory, "tokenizer", expected, files)
        raise TokenizerNotFoundError(*missing.args)
    return models[0]
