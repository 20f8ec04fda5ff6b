"""What `/why` tells: why the last answer stopped, and what was cut."""

from ..inference import GenerationStats
from ..tokenizer import StreamDecoder, Tokenizer
from .answer import INTERRUPTED
from .session import LastAnswer, Session
from .token_text import piece
from .words import counted


def why_text(session: Session) -> str:
    """Return why the last answer stopped, what was cut of it, and how the context stands."""
    last = session.last
    if last is None:
        return "nothing was answered yet"
    if last.stats is None:
        return "interrupted: Ctrl-C came before anything was run; /continue asks the question again"
    reason = last.answer.stop_reason
    lines = [f"{reason}: {_cause(session, last, last.stats)}"]
    lines += _cut(session.tokenizer, last)
    prompt, size = last.stats.prompt_tokens, session.engine.sequence_length
    lines += (
        f"prompt: sent whole, {prompt} tokens, {last.stats.cached_tokens} of them from the cache",
        f"context: {prompt + last.stats.new_tokens} of {size} positions at the end of the answer",
    )
    return "\n".join(lines)


def _cause(session: Session, last: LastAnswer, stats: GenerationStats) -> str:
    reason = last.answer.stop_reason
    if reason == "eot":
        token = last.ids[-1]
        shown = piece(session.tokenizer, token)
        return f"the model drew {shown} (token {token}), which ends an answer"
    if reason == "max tokens":
        return (
            f"{counted(stats.new_tokens, 'token')} drawn, as many as max_tokens allows; "
            "the model had not ended its answer; /continue goes on"
        )
    if reason == "stop string":
        stops = " or ".join(map(repr, last.settings.stop))
        return f"the text came to {stops}, which ends an answer"
    if reason == "context full":
        return (
            f"prompt and answer filled all {session.engine.sequence_length} positions of the "
            "context; the model had not ended its answer"
        )
    assert reason == INTERRUPTED
    return (
        f"Ctrl-C came after {counted(stats.new_tokens, 'token')}; /continue goes on, /regen asks "
        "again"
    )


def _cut(tokenizer: Tokenizer, last: LastAnswer) -> list[str]:
    """Return what was drawn and is not in the text that was shown, and what no text stands for."""
    drawn = list(last.ids)
    if last.answer.stop_reason == "eot":
        drawn.pop()
    decoder = StreamDecoder(tokenizer, first=last.first)
    text = "".join(map(decoder.push, drawn)) + decoder.finish()
    cut = text.removeprefix(last.answer.text)
    lines = [f"cut: {cut!r}, drawn but not shown" if cut else "cut: nothing, all text is shown"]
    data = b"".join(map(tokenizer.token_bytes, drawn))
    try:
        data.decode()
    except UnicodeDecodeError as error:
        bad = data[error.start : error.end].hex(" ")
        lines.append(f"bytes that are no character are shown as U+FFFD, the first: {bad}")
    return lines
