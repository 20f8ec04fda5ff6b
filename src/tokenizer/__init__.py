"""Text to token ids and back, by the tokenizer files that Llama models come with."""

from .errors import TokenizerError, TokenizerMemoryError, TokenizerNotFoundError
from .files import MAX_FILE_BYTES
from .loader import load_tokenizer
from .stream_decoder import StreamDecoder
from .tokenizer import Tokenizer

__all__ = [
    "MAX_FILE_BYTES",
    "StreamDecoder",
    "Tokenizer",
    "TokenizerError",
    "TokenizerMemoryError",
    "TokenizerNotFoundError",
    "load_tokenizer",
]
