"""One question with its one expected answer, and the split into training and held-out
pairs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

HELD_OUT_PART = 10
"""One pair in this many is held out, rounded up within each group."""

Turn = tuple[str, str]


@dataclass(frozen=True)
class Pair:
    """A phrasing applied to a fact.

    Attributes:
        family: the kind of task, the unit in which accuracy is reported.
        phrasing: the identity of the wording, system prompt included.
        fact: the identity of what is asked for.
        question: the last user message, or the start of a raw text when `raw`.
        answer: the one expected answer, to the letter.
        system: the system prompt; empty for none.
        setup: turns that must come before the question because the answer depends on
            them.
        raw: True for a text to continue without the chat format.
    """

    family: str
    phrasing: str
    fact: str
    question: str
    answer: str
    system: str = ""
    setup: tuple[Turn, ...] = ()
    raw: bool = False

    @property
    def key(self) -> str:
        """The identity of the pair, the input of the split's hash."""
        return f"{self.family}\n{self.phrasing}\n{self.fact}"


def stable_hash(text: str) -> int:
    """Return a 64-bit number that depends on the text alone, not on the process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


@dataclass(frozen=True)
class Split:
    """All pairs of the corpus, apart by family.

    Attributes:
        train: the pairs that training documents are made of.
        held_out: the pairs that no training document contains.
    """

    train: dict[str, list[Pair]]
    held_out: dict[str, list[Pair]]


def split_pairs(
    pairs: Iterable[Pair],
    whole_fact_families: frozenset[str],
    pinned: frozenset[tuple[str, str]],
) -> Split:
    """Hold out at least one pair in `HELD_OUT_PART` of every family.

    Within a family the pairs are ordered by hash and the first tenth is held out; a pair
    whose fact or phrasing would then have no training pair left stays in training and the
    next one takes its place. In a family of `whole_fact_families` a held-out fact is held
    out in all phrasings.

    Args:
        pairs: all pairs, each (family, phrasing, fact) once.
        whole_fact_families: families in which a fact can be worked out without having
            been seen.
        pinned: (system, question) of the pairs that must stay in training.

    Returns:
        The split; it depends on nothing but the pairs.
    """
    families: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        families[pair.family].append(pair)
    train: dict[str, list[Pair]] = {}
    held_out: dict[str, list[Pair]] = {}
    for family, members in families.items():
        if family in whole_fact_families:
            train[family], held_out[family] = _split_by_fact(members)
        else:
            train[family], held_out[family] = _split_by_pair(members, pinned)
    return Split(train, held_out)


def _split_by_pair(
    pairs: list[Pair], pinned: frozenset[tuple[str, str]]
) -> tuple[list[Pair], list[Pair]]:
    wanted = -(-len(pairs) // HELD_OUT_PART)
    left: dict[tuple[str, str], int] = defaultdict(int)
    for pair in pairs:
        left["fact", pair.fact] += 1
        left["phrasing", pair.phrasing] += 1
    chosen: set[str] = set()
    for pair in sorted(pairs, key=lambda pair: stable_hash(pair.key)):
        uses = (("fact", pair.fact), ("phrasing", pair.phrasing))
        if len(chosen) == wanted:
            break
        if (pair.system, pair.question) in pinned:
            continue
        if all(left[use] > 1 for use in uses):
            chosen.add(pair.key)
            for use in uses:
                left[use] -= 1
    train = [pair for pair in pairs if pair.key not in chosen]
    return train, [pair for pair in pairs if pair.key in chosen]


def _split_by_fact(pairs: list[Pair]) -> tuple[list[Pair], list[Pair]]:
    by_fact: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_fact[f"{pair.family}\n{pair.fact}"].append(pair)
    wanted = -(-len(by_fact) // HELD_OUT_PART)
    chosen = set(sorted(by_fact, key=stable_hash)[:wanted])
    train = [
        pair
        for fact, members in by_fact.items()
        if fact not in chosen
        for pair in members
    ]
    return train, [pair for fact in by_fact if fact in chosen for pair in by_fact[fact]]
