"""From prompts to answers: the engine, sampling, and the chat format."""

from .chat_format import Message, encode_chat
from .engine import GenerationStats, InferenceEngine, Progress, Step
from .errors import (
    ChatFormatError,
    ContextFullError,
    InferenceError,
    NumericError,
    PromptError,
    SamplingError,
)
from .sampling import Sampler, SamplingArgs

__all__ = [
    "ChatFormatError",
    "ContextFullError",
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
    "Step",
    "encode_chat",
]
