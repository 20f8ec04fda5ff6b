"""From prompts to answers: the engine, sampling, and the chat formats."""

from importlib import import_module
from typing import TYPE_CHECKING

from .answer_text import GenerationStats, Step, TokenMask, split_thoughts
from .chat_encoding import FoundFormat, encode_chat, end_ids, find_chat_format
from .chat_formats import CHAT_FORMATS, AnyMessage, ChatFormat, Message, Tool, ToolCall, as_messages
from .engine import InferenceEngine, Progress
from .errors import (
    ChatFormatError,
    ClosedError,
    ContextFullError,
    GrammarError,
    InferenceError,
    NumericError,
    PromptCacheError,
    PromptError,
    QueueFullError,
    SamplingError,
    TimeLimitError,
)
from .sampling import Candidate, Choice, Sampler, SamplingArgs, Stage

if TYPE_CHECKING:
    from .batch import BatchEngine, Counters, Request
    from .prompt_cache import load_prompt_cache, save_prompt_cache

__all__ = [
    "CHAT_FORMATS",
    "AnyMessage",
    "BatchEngine",
    "Candidate",
    "ChatFormat",
    "ChatFormatError",
    "Choice",
    "ClosedError",
    "ContextFullError",
    "Counters",
    "FoundFormat",
    "GenerationStats",
    "GrammarError",
    "InferenceEngine",
    "InferenceError",
    "Message",
    "NumericError",
    "Progress",
    "PromptCacheError",
    "PromptError",
    "QueueFullError",
    "Request",
    "Sampler",
    "SamplingArgs",
    "SamplingError",
    "Stage",
    "Step",
    "TimeLimitError",
    "TokenMask",
    "Tool",
    "ToolCall",
    "as_messages",
    "encode_chat",
    "end_ids",
    "find_chat_format",
    "load_prompt_cache",
    "save_prompt_cache",
    "split_thoughts",
]
_ON_DEMAND = dict.fromkeys(("BatchEngine", "Counters", "Request"), "batch")
_ON_DEMAND |= dict.fromkeys(("load_prompt_cache", "save_prompt_cache"), "prompt_cache")


def __getattr__(name: str) -> object:
    """Return a name that a chat does not need, from a module that it does not load."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ON_DEMAND[name]}", __name__), name)
