"""From prompts to answers: the engine, sampling, and the chat formats."""

from .answer_text import GenerationStats, Step, split_thoughts
from .chat_encoding import FoundFormat, encode_chat, end_ids, find_chat_format
from .chat_formats import CHAT_FORMATS, AnyMessage, ChatFormat, Message, as_messages
from .engine import InferenceEngine, Progress
from .errors import (
    ChatFormatError,
    ContextFullError,
    InferenceError,
    NumericError,
    PromptError,
    SamplingError,
)
from .sampling import Candidate, Choice, Sampler, SamplingArgs, Stage

__all__ = [
    "CHAT_FORMATS",
    "AnyMessage",
    "Candidate",
    "ChatFormat",
    "ChatFormatError",
    "Choice",
    "ContextFullError",
    "FoundFormat",
    "GenerationStats",
    "InferenceEngine",
    "InferenceError",
    "Message",
    "NumericError",
    "Progress",
    "PromptError",
    "Sampler",
    "SamplingArgs",
    "SamplingError",
    "Stage",
    "Step",
    "as_messages",
    "encode_chat",
    "end_ids",
    "find_chat_format",
    "split_thoughts",
]
