"""How often each family of the corpus is drawn, one mixture for each part of training."""

from __future__ import annotations

from dataclasses import dataclass, replace

COPIED_FAMILIES = frozenset(
    {
        "name",
        "home",
        "number",
        "repeat",
        "repeat-forms",
        "twice",
        "spell",
        "unknown-land",
        "unknown-town",
        "told-and-asked",
    }
)
"""Families whose answer copies the fact as it was typed."""

NEWCOMER_TURNS: dict[str, float] = {
    "capital-forms": 14,
    "capital-forms-reversed": 8,
    "yes": 5,
    "no": 7,
    "sum-forms": 5,
    "difference-forms": 4,
    "llama-forms": 9,
    "library-forms": 5,
    "talk-forms": 7,
    "unknown-forms": 6,
    "unknown-requests": 5,
    "unknown-town": 1.5,
    "unknown-arithmetic": 1.5,
    "nonsense": 5,
    "follow-up": 3,
    "told-and-asked": 3,
    "orders": 3,
    "word-sums": 3,
    "repeat-forms": 2,
}
"""Weights of the families of `newcomer_pairs.py`, which every mixture has, and of
nonsense.
"""


@dataclass(frozen=True)
class Mixture:
    """How often each family is drawn.

    Attributes:
        turns: weights of the families in conversations without a style.
        systems: weights of the families with a system prompt that sets the style.
        first_asked: part of the conversations that are built around their first question.
        lengths: numbers of turns, each drawn as often as the others.
        again: how often a later turn asks once more for what was said.
        invented: families in which words, names or numbers are often invented instead of
            listed.
        long_every: one step of training in this many has long conversations.
        short: tokens of a row in the other steps, and one to predict.
        cut: part of the words of questions that are encoded in pieces (`Encoder.encode`).
    """

    turns: dict[str, float]
    systems: dict[str, float]
    first_asked: float
    lengths: tuple[int, ...] = (1, 1, 1, 1, 2, 2, 3, 4, 6)
    again: float = 0.0
    invented: frozenset[str] = COPIED_FAMILIES - {"home", "spell"}
    long_every: int = 8
    short: int = 257
    cut: float = 0.0


EVEN = Mixture(
    turns={
        "capital-country": 24, "capital-country-reversed": 13,
        "capital-state": 8, "capital-state-reversed": 4, "flag": 5, "flag-reversed": 3,
        "sum": 13, "difference": 8, "llama": 5, "library": 3, "talk": 4,
        "unknown": 3, "unknown-place": 3, "unknown-land": 1,
        "name": 4, "home": 2, "number": 3, "first-question": 1.5,
        "repeat": 3, "twice": 1.5, "spell": 3,
        **NEWCOMER_TURNS,
    },
    systems={
        "style-pirate": 3, "style-one-word": 3, "style-polite": 3, "style-uppercase": 2.5,
        "style-emoji": 3, "flag": 3, "route": 2, "role": 3,
    },
    first_asked=0.03,
)  # fmt: skip
"""The mixture to start with."""

LATE = Mixture(
    turns={
        "capital-country": 12, "capital-country-reversed": 12,
        "capital-state": 4, "capital-state-reversed": 4, "flag": 5, "flag-reversed": 7,
        "sum": 20, "difference": 18, "llama": 4, "library": 3, "talk": 4,
        "unknown": 2, "unknown-place": 2, "unknown-land": 4,
        "name": 11, "home": 6, "number": 3, "first-question": 2,
        "repeat": 9, "twice": 5, "spell": 6,
        **NEWCOMER_TURNS,
        "yes": 10, "no": 9, "talk-forms": 10, "llama-forms": 11, "sum-forms": 7,
        "difference-forms": 6, "unknown-town": 5, "capital-forms-reversed": 10,
    },
    systems={
        "style-pirate": 2, "style-one-word": 2, "style-polite": 2, "style-uppercase": 6,
        "style-emoji": 4, "flag": 5, "route": 1.5, "role": 3,
    },
    first_asked=0.14,
    lengths=(1, 1, 1, 2, 2, 3, 4, 6, 8),
    again=0.08,
    invented=COPIED_FAMILIES,
    long_every=5,
)  # fmt: skip
"""More of what is learned last: arithmetic, yes or no, flags, letters, copying,
recalling.
"""

TYPING = replace(
    LATE,
    turns={
        **LATE.turns,
        "capital-country": 30,
        "capital-country-reversed": 20,
        "capital-forms": 30,
        "capital-forms-reversed": 16,
        "capital-state": 7,
        "capital-state-reversed": 7,
        "sum": 14,
        "difference": 16,
        "talk-forms": 19,
        "llama-forms": 20,
        "library-forms": 18,
        "name": 18,
        "home": 10,
        "repeat": 22,
        "twice": 8,
        "unknown-land": 20,
        "unknown-town": 18,
        "unknown-forms": 12,
        "unknown-requests": 10,
        "nonsense": 40,
        "told-and-asked": 6,
        "orders": 26,
        "word-sums": 7,
        "repeat-forms": 10,
    },
    first_asked=0.2,
    lengths=(1, 1, 1, 1, 1, 2, 2, 3, 4),
    long_every=7,
    short=129,
    cut=0.25,
)
"""More of what typing errors are in: names of places, topics, small talk, words to copy.
"""

MIXTURES = {"even": EVEN, "late": LATE, "typing": TYPING}
