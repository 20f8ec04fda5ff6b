"""From prompts to answers: the engine, sampling, and the chat formats."""

from .candidates import Candidate, Choice, Stage
from .chat_format import FoundFormat, encode_chat, end_ids, find_chat_format
from .chat_formats import CHAT_FORMATS, ChatFormat
from .engine import GenerationStats, InferenceEngine, Progress, Step
from .errors import (
    ChatFormatError,
    ContextFullError,
    InferenceError,
    NumericError,
    PromptError,
    SamplingError,
)
from .message import AnyMessage, Message, as_messages
from .sampling import Sampler, SamplingArgs

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
]
