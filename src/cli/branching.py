"""`--branch` and `/branch`: the last answer with another token at one place."""

import re
import signal
import textwrap
from dataclasses import dataclass, replace
from itertools import zip_longest

from ..inference import Step
from ..untrusted import escape_line
from .answer import INTERRUPTED, PrintedAnswer, one_interrupt, token_text
from .console import UsageError
from .session import Session

_USAGE = "usage: /branch N TOKEN"
_COLUMN = 44  # the width of the text of each continuation
_MOST_LISTED = 200  # tokens of an answer that are listed


@dataclass(frozen=True)
class Branch:
    """A second continuation of an answer.

    Attributes:
        place: The number of the replaced token in the answer, counted from 1.
        replaced: The token of the answer.
        ids: The tokens instead of it.
        steps: The steps after these tokens. The first one repeats the text before it.
        stop_reason: Why the continuation stopped.
    """

    place: int
    replaced: int
    ids: tuple[int, ...]
    steps: tuple[Step, ...]
    stop_reason: str

    @property
    def text(self) -> str:
        """The whole text of the answer with the other token."""
        return "".join(step.text for step in self.steps)


def branch_last(session: Session, argument: str) -> str:
    """Return both continuations of the last answer, or its tokens without an argument.

    The conversation is not changed.

    Args:
        session: The chat, whose last answer is continued.
        argument: `N TOKEN`: the number of a token of the answer, counted from 1, and the
            text that replaces it. `#ID` is the token with an id.

    Raises:
        UsageError: If there is no answer, or if N or TOKEN is not valid.
    """
    answer = session.last
    if answer is None or not answer.ids or answer.stats is None:
        raise UsageError("/branch: expected an answer, got none yet")
    if not argument.strip():
        return _token_list(session, answer)
    number, _, text = argument.lstrip().partition(" ")
    place = int(number) if number.isdecimal() else 0
    if not 1 <= place <= len(answer.ids):
        got = escape_line(number, 40)
        raise UsageError(f"{_USAGE}, N from 1 to {len(answer.ids)}: got {got}")
    branch = _run_branch(session, answer, place, _token_ids(session, text))
    return side_by_side(session, answer, branch)


def _token_ids(session: Session, text: str) -> tuple[int, ...]:
    """Return the tokens of a text, or the token of `#ID`."""
    if not text:
        raise UsageError(f"{_USAGE}: expected a token, got nothing")
    match = re.fullmatch(r"#(\d+)", text)
    if match is None:
        return tuple(session.tokenizer.encode(text, bos=False, eos=False))
    token = int(match[1])
    size = session.engine.model.args.vocab_size
    if token >= size:
        raise UsageError(f"{_USAGE}: expected a token id below {size}, got {token}")
    return (token,)


def _run_branch(
    session: Session, answer: PrintedAnswer, place: int, ids: tuple[int, ...]
) -> Branch:
    """Run the answer with other tokens at a place, with its settings and seed."""
    assert answer.stats is not None
    settings = replace(answer.settings, seed=answer.stats.seed)
    if settings.max_tokens is not None:
        left = settings.max_tokens - (place - 1) - len(ids)
        settings = replace(settings, max_tokens=max(left, 1))
    before = (*answer.ids[: place - 1], *ids)
    steps: list[Step] = []
    reason = INTERRUPTED
    with one_interrupt(signal.SIGINT, session.console.before_death):
        try:
            for step in session.steps(answer.prompt, before, settings):
                steps.append(step)
                reason = step.stop_reason or reason
        except KeyboardInterrupt:
            reason = INTERRUPTED
        finally:
            session.console.clear_progress()
    return Branch(place, answer.ids[place - 1], ids, tuple(steps), reason)


def side_by_side(session: Session, answer: PrintedAnswer, branch: Branch) -> str:
    """Return the two continuations in two columns."""
    tokenizer = session.tokenizer
    replaced = token_text(tokenizer, branch.replaced)
    others = " ".join(token_text(tokenizer, token) for token in branch.ids)
    heads = (f"token {branch.place}: {replaced}", f"token {branch.place}: {others}")
    left = _lines(answer.text)
    right = _lines(branch.text)
    reasons = (f"({answer.stop_reason})", f"({branch.stop_reason})")
    rows = [heads, *zip_longest(left, right, fillvalue=""), reasons]
    return "\n".join(f"{a:<{_COLUMN}}  {b}".rstrip() for a, b in rows)


def _lines(text: str) -> list[str]:
    """Return a text in lines of a column, without control characters."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        wrapped = textwrap.wrap(line, _COLUMN, break_on_hyphens=False) or [""]
        lines += [escape_line(part) for part in wrapped]
    return lines


def _token_list(session: Session, answer: PrintedAnswer) -> str:
    """Return the numbered tokens of an answer."""
    texts = [
        f"{number} {token_text(session.tokenizer, token)}"
        for number, token in enumerate(answer.ids[:_MOST_LISTED], 1)
    ]
    more = len(answer.ids) - _MOST_LISTED
    if more > 0:
        texts.append(f"and {more} more")
    return "\n".join(textwrap.wrap("   ".join(texts), 2 * _COLUMN))
