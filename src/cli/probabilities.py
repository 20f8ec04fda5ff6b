"""What `/probs` tells: which tokens could have been drawn, with their chances step by step."""

from collections.abc import Sequence

from ..inference import Candidate, Choice, Stage
from ..tokenizer import Tokenizer
from .token_text import piece

_DRAWN = "*"
_LEFT_OUT = "-"
_SMALLEST = 0.0001
_NARROWEST = len("100.00%")  # so that the tables of an answer stand below each other


def choices_text(tokenizer: Tokenizer, choices: Sequence[Choice]) -> str:
    """Return a table for each token: a row per candidate, a column per step of the sampling.

    Args:
        tokenizer: knows the texts of tokens.
        choices: of one answer, in order.
    """
    return "\n\n".join(_table(tokenizer, choice) for choice in choices)


def _table(tokenizer: Tokenizer, choice: Choice) -> str:
    headings = [_heading(stage) for stage in choice.stages]
    rows = [
        ("", headings, f"position {choice.position}"),
        *(_row(tokenizer, choice, candidate) for candidate in choice.candidates),
        ("", [str(stage.kept) for stage in choice.stages], "tokens have a chance"),
    ]
    widths = [
        max(_NARROWEST, *(len(cells[column]) for _, cells, _ in rows))
        for column in range(len(headings))
    ]
    return "\n".join(
        f"{mark:1} "
        + "".join(f"{cell:>{width}}  " for cell, width in zip(cells, widths, strict=True))
        + text
        for mark, cells, text in rows
    )


def _heading(stage: Stage) -> str:
    return stage.name if stage.value is None else f"{stage.name} {stage.value:g}"


def _row(tokenizer: Tokenizer, choice: Choice, candidate: Candidate) -> tuple[str, list[str], str]:
    token = candidate.token_id
    mark = _DRAWN if token == choice.token_id else ""
    cells = [_percent(probability) for probability in candidate.probabilities]
    return mark, cells, f"{token} {piece(tokenizer, token)}"


def _percent(probability: float) -> str:
    if probability == 0.0:
        return _LEFT_OUT
    return f"{probability:.2%}" if probability >= _SMALLEST else f"<{_SMALLEST:.2%}"
