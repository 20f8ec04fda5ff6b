"""An endless stream of training documents, made of the training pairs of the corpus.

Run `python -m tools.nano.documents` to read the counts and a few documents.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import facts_memory as memory
from .corpus import BOSTON, WHOLE_FACT_FAMILIES, load_split
from .facts_chat import NEUTRAL_SYSTEM, STORIES
from .facts_geography import PLACES
from .facts_unknown import UNKNOWN_ANSWER
from .mixtures import COPIED_FAMILIES, EVEN, Mixture
from .nonsense import invented_place, invented_word, nonsense, text_to_copy, word_to_copy
from .pairs import Pair, Turn
from .questions import newcomer_questions
from .task_pairs import LARGEST_TERM
from .variation import KEPT, KNOWN_WORDS, could_be_a_name, vary

SYSTEM_PART = 0.1  # documents with a system prompt that sets the style
RAW_PART = 0.04  # raw texts
NEUTRAL_PART = 0.06  # other conversations with a system prompt that changes nothing
FIRST_ASKED_PART = (
    0.06  # other conversations that end with asking for their first question
)
BOSTON_PART = 0.004  # turns with the one prompt that the README shows
INVENTED_PART = 0.75  # words, names and numbers that are invented instead of listed
VARIED_PART = 0.85  # questions that are varied as people type
VARIED_STYLE_PART = 0.35  # the same under a system prompt
# The question must come right after its setup.
ADJACENT_FAMILIES = frozenset({"follow-up"})
REPEATED_FAMILIES = frozenset({"repeat", "repeat-forms", "twice"})
DECLINED_FAMILIES = frozenset({"unknown-land", "unknown-town"})


@dataclass(frozen=True)
class Document:
    """One training text.

    Attributes:
        messages: (role, content) in order; the pieces of a raw text have the roles `text`
            (given) and `continuation` (learned).
        raw: True for a raw text between begin-of-text and end-of-text.
    """

    messages: tuple[tuple[str, str], ...]
    raw: bool = False


class DocumentStream:
    """An endless stream of training documents, the same for the same seed."""

    def __init__(self, seed: int, mixture: Mixture = EVEN) -> None:
        self.generator = random.Random(seed)
        self._mixture = mixture
        train = load_split().train
        self._plain = {
            family: [pair for pair in train[family] if not pair.system]
            for family in mixture.turns
            if family != "nonsense"
        }
        self._held_out = {
            (pair.system, pair.setup, pair.question)
            for pairs in load_split().held_out.values()
            for pair in pairs
        } | {("", (), one.question) for one in newcomer_questions()}
        self._systems: dict[str, list[Pair]] = defaultdict(list)
        self._styled: dict[str, list[Pair]] = {}
        for family in mixture.systems:
            self._styled[family] = [pair for pair in train[family] if pair.system]
            for pair in self._styled[family]:
                self._systems[pair.system].append(pair)
        self._raw = train["raw-capital"]
        self._held_out_terms = {
            pair.fact
            for family in WHOLE_FACT_FAMILIES
            for pair in load_split().held_out[family]
        }
        self._questions: dict[tuple[Turn, ...], list[str]] = defaultdict(list)
        self._family_questions: dict[str, list[str]] = defaultdict(list)
        for family in self._plain:
            for pair in self._plain[family] if self._plain[family][0].setup else ():
                self._questions[pair.setup].append(pair.question)
                self._family_questions[family].append(pair.question)
        self._first_facts = {pair.fact for pair in train["first-question"]}
        self._families = list(mixture.turns)
        self._weights = list(mixture.turns.values())

    @property
    def state(self) -> tuple[Any, ...]:
        """Where the stream stands; set it to go on from there."""
        return self.generator.getstate()

    @state.setter
    def state(self, state: tuple[Any, ...]) -> None:
        self.generator.setstate(state)

    def document(self, turns: int | None = None) -> Document:
        """Return the next document.

        Args:
            turns: about how many turns; None draws a number, mostly one to three, and
                allows raw texts.
        """
        draw = self.generator.random()
        if turns is None:
            if draw < RAW_PART:
                return self._raw_document()
            turns = self.generator.choice(self._mixture.lengths)
        if draw < RAW_PART + SYSTEM_PART:
            return self._system_document(turns)
        return self._conversation(turns)

    def _raw_document(self) -> Document:
        kind = self.generator.random()
        if kind < 0.25:
            story = self.generator.choice(STORIES)
            spaces = [index for index, letter in enumerate(story) if letter == " "]
            cut = self.generator.choice(
                (
                    0,
                    0,
                    self.generator.choice(spaces[:8]),
                    self.generator.choice(spaces[:8]) + 1,
                )
            )
            return Document(
                (("text", story[:cut]), ("continuation", story[cut:])), raw=True
            )
        if kind < 0.5:
            return Document(self._equations(self.generator.randint(4, 16)), raw=True)
        pair = self.generator.choice(self._raw)
        return Document(
            (("text", pair.question), ("continuation", pair.answer)), raw=True
        )

    def _equations(self, count: int) -> tuple[tuple[str, str], ...]:
        pieces: list[tuple[str, str]] = []
        while len(pieces) < 2 * count:
            a = self.generator.randint(0, LARGEST_TERM)
            b = self.generator.randint(0, LARGEST_TERM)
            minus = b <= a and self.generator.random() < 0.6
            term = f"{a} - {b}" if minus else f"{a} + {b}"
            if term not in self._held_out_terms:
                result = a - b if minus else a + b
                pieces += [("text", f"{term} ="), ("continuation", f" {result}.\n")]
        return tuple(pieces)

    def _system_document(self, turns: int) -> Document:
        systems = self._mixture.systems
        family = self.generator.choices(list(systems), list(systems.values()))[0]
        first = self.generator.choice(self._styled[family])
        messages = [("system", first.system)]
        for index in range(turns):
            pair = self.generator.choice(self._systems[first.system]) if index else first
            pair = self._varied(pair, VARIED_STYLE_PART)
            messages += [("user", pair.question), ("assistant", pair.answer)]
        return Document(tuple(messages))

    def _conversation(self, turns: int) -> Document:
        """Return a conversation; a setup stands some turns before its question."""
        slots: list[Turn | None] = [None] * turns
        if turns > 1 and self.generator.random() < self._mixture.first_asked:
            self._place(self.generator.choice(self._plain["first-question"]), 0, slots)
        used: set[str] = set()
        for place in range(turns):
            if slots[place] is not None:
                continue
            pair = self._pair()
            if pair.setup and (
                pair.family in used or not self._place(pair, place, slots)
            ):
                pair = self._pair(without_setup=True)
            if pair.setup:
                used.add(pair.family)
            else:
                slots[place] = (pair.question, pair.answer)
        said = [slot for slot in slots if slot is not None]
        first = said[0][0]
        if (
            len(said) > 2
            and first.endswith("?")
            and self.generator.random() < FIRST_ASKED_PART
        ):
            answer = memory.FIRST_ANSWER.format(x=first)
            asked = first not in self._first_facts
            said += (
                [(self.generator.choice(memory.FIRST_QUESTIONS), answer)] if asked else []
            )
        messages: list[tuple[str, str]] = []
        if self.generator.random() < NEUTRAL_PART:
            messages.append(("system", self.generator.choice(NEUTRAL_SYSTEM)))
        for question, answer in said:
            messages += [("user", question), ("assistant", answer)]
        return Document(tuple(messages))

    def _place(self, pair: Pair, place: int, slots: list[Turn | None]) -> bool:
        """Put a pair's setup at `place` and its question into a later slot; say if it was
        done.
        """
        free = [index for index in range(place, len(slots)) if slots[index] is None]
        if pair.family == "first-question" and place != 0:
            return False
        if len(free) < 2 or pair.family in ADJACENT_FAMILIES:
            slots[place : place + 1] = [*pair.setup, (pair.question, pair.answer)]
            return True
        later = min(
            self.generator.randint(1, len(free) - 1),
            self.generator.randint(1, len(free) - 1),
        )
        slots[place] = pair.setup[0]
        slots[free[later]] = (pair.question, pair.answer)
        questions = self._questions.get(pair.setup, self._family_questions[pair.family])
        for index in free[1:] if self._mixture.again else ():
            if slots[index] is None and self.generator.random() < self._mixture.again:
                slots[index] = (self.generator.choice(questions), pair.answer)
        return True

    def _pair(self, without_setup: bool = False) -> Pair:
        while True:
            if self.generator.random() < BOSTON_PART:
                return Pair("capital-state", "", "", BOSTON, "Boston")
            family = self.generator.choices(self._families, self._weights)[0]
            if family == "nonsense":
                while ("", (), text := nonsense(self.generator)) in self._held_out:
                    pass
                return Pair(family, "", "", text, UNKNOWN_ANSWER)
            pair = self.generator.choice(self._plain[family])
            if (
                family in self._mixture.invented
                and self.generator.random() < INVENTED_PART
            ):
                pair = self._invented(pair)
            if not (without_setup and pair.setup):
                return self._varied(pair, VARIED_PART)

    def _varied(self, pair: Pair, part: float) -> Pair:
        """Return the pair as a person might type it; as it is where that would be a
        held-out one.

        What the answer copies changes case in question and answer alike. The setup of a
        first question stays, as its answer quotes it.
        """
        if self.generator.random() >= part:
            return pair
        one = pair
        copied = pair.family in COPIED_FAMILIES
        if copied and self.generator.random() < 0.4:
            fact = (
                pair.fact.lower() if self.generator.random() < 0.85 else pair.fact.upper()
            )
            one = _with_fact(pair, fact)

        def varied(text: str) -> str:
            kept = text.replace(one.fact, KEPT) if copied else text
            return vary(kept, self.generator).replace(KEPT, one.fact)

        setup = one.setup
        if one.family != "first-question":
            setup = tuple((varied(user), reply) for user, reply in setup)
        one = replace(one, question=varied(one.question), setup=setup)
        told = [("", (), user) for user, _ in one.setup]
        asked = (one.system, one.setup, one.question)
        return one if self._held_out.isdisjoint((asked, *told)) else pair

    def _invented(self, pair: Pair) -> Pair:
        """Return the pair with an invented word, name or number, so that copying is
        learned.
        """
        declined = pair.family in DECLINED_FAMILIES
        if pair.family == "number":
            new = self._number()
        elif pair.family in REPEATED_FAMILIES:  # "Write" and several words ask for a text
            alone = pair.phrasing.startswith("Write")
            new = (word_to_copy if alone else text_to_copy)(self.generator)
        else:
            new = (invented_place if declined else invented_word)(self.generator)
        new = new if pair.fact.islower() or " " in new else new.capitalize()
        listed = could_be_a_name if declined else KNOWN_WORDS.__contains__
        one = pair if listed(new.lower()) else _with_fact(pair, new)
        return pair if (one.system, one.setup, one.question) in self._held_out else one

    def _number(self) -> str:
        """Return a number that is not among the listed ones."""
        drawn = (self.generator.randint(10, 9999) for _ in range(9))
        return str(
            self.generator.choice([number for number in drawn if number % 13 != 12])
        )


def _with_fact(pair: Pair, new: str) -> Pair:
    """Return the pair with another fact, in its question, its answer and its setup."""
    old = pair.fact
    answer = "-".join(new) if pair.family == "spell" else pair.answer.replace(old, new)
    setup = tuple(
        (user.replace(old, new), reply.replace(old, new)) for user, reply in pair.setup
    )
    return replace(
        pair,
        fact=new,
        question=pair.question.replace(old, new),
        answer=answer,
        setup=setup,
    )


def tokenizer_texts(seed: int) -> Iterator[str]:
    """Yield the texts that the tokenizer is trained on: facts in sentences and alone,
    documents.
    """
    for family in sorted(load_split().held_out.keys() - WHOLE_FACT_FAMILIES):
        seen: dict[str, int] = defaultdict(int)
        for pair in load_split().train[family]:
            seen[pair.fact] += 1
            if seen[pair.fact] <= 6:
                yield f" {pair.question}\n{pair.answer}"
    for place in PLACES:
        for name in (place.bare_name, place.capital, place.flag, f" {place.flag}"):
            yield from (name,) * 60
        for name in (place.bare_name.lower(), place.capital.lower()):
            yield from (f" {name}",) * 60
    stream = DocumentStream(seed)
    for _ in range(20_000):
        for _, content in stream.document().messages:
            yield content


def main() -> None:
    """Print the size of each family and a few documents."""
    split = load_split()
    for family, pairs in split.train.items():
        held_out = len(split.held_out.get(family, ()))
        print(f"{family:26} {len(pairs):6} training pairs {held_out:5} held out")
    stream = DocumentStream(seed=1)
    for _ in range(12):
        print(stream.document())


if __name__ == "__main__":
    main()
