"""What `/show` tells about a chat."""

from collections.abc import Callable, Sequence

from ..inference import FoundFormat, InferenceEngine
from ..memory import available_memory, readable_bytes
from .errors import UsageError
from .session import Session
from .token_text import token_table
from .words import counted

_NOTHING_YET = "nothing was said yet"


def topic_text(session: Session, topic: str) -> str:
    """Return what there is to tell about a topic, without a newline at its end.

    Args:
        session: the chat.
        topic: one of `TOPICS`.

    Raises:
        UsageError: there is no such topic.
    """
    tell = TOPICS.get(topic)
    if tell is None:
        raise UsageError(f"/show wants one of {', '.join(TOPICS)}: got {topic or 'nothing'}")
    return tell(session)


def model_parts(engine: InferenceEngine, chat_format: FoundFormat | None) -> list[str]:
    """Return all that was found and decided on loading: model, chat format, cache, free memory.

    Args:
        engine: the engine with its model.
        chat_format: the format of the chat; None where there is none.
    """
    context, free = engine.context, available_memory()
    parts = engine.model.description.split("; ")
    if chat_format is not None:
        parts.append(f"chat format {chat_format.name} by {chat_format.by}")
    return [
        *parts,
        f"KV cache {readable_bytes(context.nbytes)} for {context.sequence_length} tokens",
        f"{'unknown' if free is None else readable_bytes(free)} free",
    ]


def _model(session: Session) -> str:
    found = None if session.completion else session.chat_format
    return "\n".join(model_parts(session.engine, found))


def _params(session: Session) -> str:
    system = session.system or "none"
    lines = [*session.settings.lines(), f"system prompt: {system}"]
    if not session.completion:
        found = session.chat_format
        lines.append(f"chat format: {found.name} (by {found.by})")
    if session.candidates:
        lines.append(f"candidates shown of each token: {session.candidates} (/probs)")
    if session.attached:
        lines.append(f"read, to go before the next message: {len(session.attached)} characters")
    return "\n".join(lines)


def _prompt(session: Session) -> str:
    return session.tokenizer.decode(session.prompt_ids()) or _NOTHING_YET


def _tokens(session: Session) -> str:
    ids = session.history_ids()
    if not ids:
        return _NOTHING_YET
    return f"{token_table(session.tokenizer, ids)}\n{counted(len(ids), 'token')}"


def _cache(session: Session) -> str:
    engine = session.engine
    context, cached = engine.context, engine.cached_ids
    first = context.caches[0]
    per_token = first.keys.nbytes // first.capacity + first.values.nbytes // first.capacity
    layers = len(context.caches)
    lines = [
        f"positions: {len(cached)} of {context.sequence_length} hold keys and values",
        f"layers: {layers}, each with keys and values of {first.heads} heads of {first.head_dim} "
        f"numbers in {first.dtype}",
        f"bytes: {readable_bytes(len(cached) * layers * per_token)} in use of "
        f"{readable_bytes(context.nbytes)}; {layers * per_token} a position, "
        f"{counted(layers, 'layer')} * {per_token}",
        f"reuse: {_reuse(session)}",
    ]
    history = session.history_ids()
    if history:
        lines.append(
            f"the conversation takes {len(history)} tokens, of which the first "
            f"{_common(history, cached)} need not be run again"
        )
    return "\n".join(lines)


def _reuse(session: Session) -> str:
    stats = None if session.last is None else session.last.stats
    if stats is None:
        return "nothing was run yet"
    read = stats.prompt_tokens - stats.cached_tokens
    return (
        f"of the last prompt's {stats.prompt_tokens} tokens, {stats.cached_tokens} were in the "
        f"cache and {read} were run; {stats.new_tokens} new ones were drawn"
    )


def _common(ids: Sequence[int], others: Sequence[int]) -> int:
    """Return how many ids at the beginning are the same."""
    pairs = enumerate(zip(ids, others, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(ids), len(others)))


TOPICS: dict[str, Callable[[Session], str]] = {
    "model": _model,
    "params": _params,
    "prompt": _prompt,
    "cache": _cache,
    "tokens": _tokens,
}
