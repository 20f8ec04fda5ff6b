"""Text to token ids and back, by the tokenizer files that Llama models come with."""

from .errors import TokenizerError, TokenizerNotFoundError
from .loader import load_tokenizer
from .stream_decoder import StreamDecoder
from .tokenizer import Tokenizer

__all__ = [
    "StreamDecoder",
    "Tokenizer",
    "TokenizerError",
    "TokenizerNotFoundError",
    "load_tokenizer",
]
