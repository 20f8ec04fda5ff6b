"""Text to token ids and back, by the tokenizer files that Llama models come with."""

from .config_files import MAX_FILE_BYTES
from .directory import load_tokenizer
from .errors import TokenizerError, TokenizerMemoryError, TokenizerNotFoundError
from .gguf_keys import gguf_tokenizer
from .tokenizer import StreamDecoder, Tokenizer

__all__ = [
    "MAX_FILE_BYTES",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerError",
    "TokenizerMemoryError",
    "TokenizerNotFoundError",
    "gguf_tokenizer",
    "load_tokenizer",
]
