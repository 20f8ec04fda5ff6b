"""Text generation: the inference engines, sampling, and chat formats."""

from importlib import import_module
from typing import TYPE_CHECKING

from ..chat_formats import CHAT_FORMATS, ChatFormat
from .answer import GenerationStats, Step
from .answer_forms import split_thoughts
from .chat_encoding import encode_chat, end_ids, find_chat_template
from .chat_template import ChatTemplate, named_template
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
    ThreadRefusedError,
    TimeLimitError,
)
from .messages import AnyMessage, Message, Tool, ToolCall, as_messages
from .request import Request, TokenMask
from .sampling import Candidate, Choice, Sampler, SamplingArgs, SamplingStage
from .sampling_defaults import SamplingDefaults, sampling_defaults

if TYPE_CHECKING:
    from .batch import BatchEngine, Counters, SubmittedAnswer
    from .perplexity import mean_estimate, perplexity_of, score_chunks, text_chunks
    from .prompt_cache import load_prompt_cache, save_prompt_cache

__all__ = [
    "CHAT_FORMATS",
    "AnyMessage",
    "BatchEngine",
    "Candidate",
    "ChatFormat",
    "ChatFormatError",
    "ChatTemplate",
    "Choice",
    "ClosedError",
    "ContextFullError",
    "Counters",
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
    "SamplingDefaults",
    "SamplingError",
    "SamplingStage",
    "Step",
    "SubmittedAnswer",
    "ThreadRefusedError",
    "TimeLimitError",
    "TokenMask",
    "Tool",
    "ToolCall",
    "as_messages",
    "encode_chat",
    "end_ids",
    "find_chat_template",
    "load_prompt_cache",
    "mean_estimate",
    "named_template",
    "perplexity_of",
    "sampling_defaults",
    "save_prompt_cache",
    "score_chunks",
    "split_thoughts",
    "text_chunks",
]
_ON_DEMAND = dict.fromkeys(("BatchEngine", "Counters", "SubmittedAnswer"), "batch")
_ON_DEMAND |= dict.fromkeys(("load_prompt_cache", "save_prompt_cache"), "prompt_cache")
_ON_DEMAND |= dict.fromkeys(
    ("mean_estimate", "perplexity_of", "score_chunks", "text_chunks"), "perplexity"
)


def __getattr__(name: str) -> object:
    """Import a module lazily, when one of its names is first accessed."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_ON_DEMAND[name]}", __name__), name)
