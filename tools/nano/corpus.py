"""The corpus: all pairs of questions and answers, and their split."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import chain

from .geography_pairs import (
    capital_pairs,
    flag_pairs,
    raw_pairs,
    route_pairs,
    style_pairs,
    unknown_place_pairs,
)
from .newcomer_pairs import (
    capital_form_pairs,
    follow_up_pairs,
    order_pairs,
    repeat_form_pairs,
    sum_form_pairs,
    told_and_asked_pairs,
    topic_form_pairs,
    unknown_form_pairs,
    word_sum_pairs,
    yes_no_pairs,
)
from .pairs import Pair, Split, split_pairs, stable_hash
from .questions import newcomer_questions
from .task_pairs import (
    first_question_pairs,
    memory_pairs,
    repeat_pairs,
    sum_pairs,
    topic_pairs,
)

BOSTON = "What is the capital of Massachusetts? Answer in one word."
PINNED: frozenset[tuple[str, str]] = frozenset(
    {
        ("", BOSTON),
        ("You are Einstein", "Describe your theory."),
        (
            "Answer in 20 words, directly, and without an introduction",
            "Can you explain what is Theory of relativity?",
        ),
        ("You are a pirate", "Explain what is quantum computer in 20 words."),
        ("Always answer with emojis", "How to go from Beijing to NY?"),
        ("Answer with only one emoji", "What is the flag of Turkey?"),
    }
)  # fmt: skip
WHOLE_FACT_FAMILIES = frozenset({"sum", "difference"})


@cache
def load_split() -> Split:
    """Return the split of all pairs.

    The first-question pairs are built from training pairs, so that no held-out pair is
    told. The families of `newcomer_pairs.py` are trained whole, but for questions that
    the others have; what is held out of them are the questions of `questions.py`, which
    people wrote.
    """
    base: list[Pair] = []
    for source in (
        capital_pairs,
        flag_pairs,
        style_pairs,
        route_pairs,
        raw_pairs,
        unknown_place_pairs,
        sum_pairs,
        memory_pairs,
        repeat_pairs,
        topic_pairs,
    ):
        base.extend(source())
    split = split_pairs(base, WHOLE_FACT_FAMILIES, PINNED)
    plain = [
        pair
        for pair in split.train["capital-country"]
        if pair.answer.startswith("The capital")
    ]
    asked = sorted(plain, key=lambda pair: stable_hash(pair.key))[:80]
    first = split_pairs(first_question_pairs(asked), WHOLE_FACT_FAMILIES, PINNED)
    taken = {
        pair.question.lower()
        for pair in base
        if not (pair.system or pair.setup or pair.raw)
    }
    written = {one.question.lower() for one in newcomer_questions()}
    taken |= written
    terms = frozenset(
        pair.fact for family in WHOLE_FACT_FAMILIES for pair in split.held_out[family]
    )
    newcomers: dict[str, list[Pair]] = defaultdict(list)
    for pair in chain(
        capital_form_pairs(),
        yes_no_pairs(),
        sum_form_pairs(terms),
        topic_form_pairs(),
        unknown_form_pairs(),
        told_and_asked_pairs(),
        repeat_form_pairs(),
        word_sum_pairs(terms),
        order_pairs(),
    ):
        if pair.question.lower() in written and " " not in pair.question:
            # One word: known with a mark alone.
            pair = replace(pair, question=f"{pair.question}!")
        if pair.question.lower() not in taken:
            taken.add(pair.question.lower())
            newcomers[pair.family].append(pair)
    untold = {
        (pair.question, pair.answer)
        for pairs in split.held_out.values()
        for pair in pairs
    }
    newcomers["follow-up"] = [
        pair for pair in follow_up_pairs() if pair.setup[0] not in untold
    ]
    return Split(
        {**split.train, **first.train, **newcomers}, {**split.held_out, **first.held_out}
    )
