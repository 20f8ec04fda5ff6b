"""What `/show` tells about a chat."""

from collections.abc import Callable

from ..model import readable_bytes
from .errors import UsageError
from .session import Session

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


def _model(session: Session) -> str:
    return session.engine.model.description.replace("; ", "\n")


def _params(session: Session) -> str:
    system = session.system or "none"
    lines = [*session.settings.lines(), f"system prompt: {system}"]
    if not session.completion:
        found = session.chat_format
        lines.append(f"chat format: {found.name} (by {found.by})")
    return "\n".join(lines)


def _prompt(session: Session) -> str:
    return session.tokenizer.decode(session.prompt_ids()) or _NOTHING_YET


def _tokens(session: Session) -> str:
    ids = session.history_ids()
    if not ids:
        return _NOTHING_YET
    shown = "  ".join(f"{token} {_token_text(session, token)!r}" for token in ids)
    return f"{len(ids)} tokens\n{shown}"


def _cache(session: Session) -> str:
    engine = session.engine
    cached, context = len(engine.cached_ids), engine.context
    per_token = context.nbytes // context.sequence_length
    return (
        f"{cached} of {context.sequence_length} positions hold keys and values\n"
        f"{readable_bytes(cached * per_token)} of {readable_bytes(context.nbytes)}, "
        f"{per_token} bytes per token"
    )


def _token_text(session: Session, token: int) -> str:
    """Return a token as text, with bytes that are no whole character escaped."""
    if session.tokenizer.is_special(token):
        return session.tokenizer.decode([token])
    return session.tokenizer.token_bytes(token).decode("utf-8", errors="backslashreplace")


TOPICS: dict[str, Callable[[Session], str]] = {
    "model": _model,
    "params": _params,
    "prompt": _prompt,
    "cache": _cache,
    "tokens": _tokens,
}
