"""Pairs about places: capitals both ways, flags, styles, emoji routes, raw sentences."""

from __future__ import annotations

from collections.abc import Iterator

from .facts_chat import EMOJI_SYSTEM, PIRATE_SYSTEM
from .facts_geography import COUNTRIES, PLACES, ROUTE_CITIES, STATES, Place
from .facts_types import phrases
from .facts_unknown import (
    UNKNOWN_ANSWER,
    UNKNOWN_LAND_ANSWER,
    UNKNOWN_LANDS,
    UNKNOWN_PLACE_QUESTIONS,
)
from .pairs import Pair
from .variation import ONE_WORD

CAPITAL_QUESTIONS = phrases(
    """
    What is the capital of {x}? / What's the capital of {x}? / What is the capital city of {x}? /
    Which city is the capital of {x}? / Name the capital of {x}. / Name the capital city of {x}. /
    Tell me the capital of {x}. / Can you tell me the capital of {x}? / Do you know the capital of
    {x}? / What city is the capital of {x}? / {X}'s capital? / Capital of {x}? / The capital of
    {x} is which city? / What is {x}'s capital? / I need the capital of {x}. / Please give me the
    capital of {x}. / Which city serves as the capital of {x}? / What is the name of the capital
    of {x}? / Say the capital of {x}. / what is the capital of {x}
    """
)
_ONE_WORD_VARIANTS: tuple[str, ...] = (
    "What is the capital of {x}? One word only.",
    "What is the capital of {x}? Just the name.",
)
REVERSE_QUESTIONS = phrases(
    """
    Which {kind} has {c} as its capital? / {c} is the capital of which {kind}? / What {kind} is
    {c} the capital of? / Of which {kind} is {c} the capital? / Name the {kind} whose capital is
    {c}. / Which {kind}'s capital is {c}? / {c} is the capital city of which {kind}? / Tell me
    which {kind} has the capital {c}. / In which {kind} is {c} the capital? / Whose capital is
    {c}?
    """
)
FLAG_QUESTIONS = phrases(
    """
    What is the flag of {x}? / Show me the flag of {x}. / What does the flag of {x} look like? /
    What is {x}'s flag? / Flag of {x}?
    """
)
ONE_EMOJI_SYSTEM = phrases(
    """
    Answer with only one emoji / Answer with one emoji. / Reply with a single emoji.
    """
)
FLAG_REVERSE_QUESTIONS: tuple[str, ...] = (
    "Which country has the flag {x}?",
    "Whose flag is {x}?",
)
RAW_SENTENCES: tuple[tuple[str, str], ...] = (
    ("The capital of {x} is", " {c}."),
    ("{C} is the capital of", " {x}."),
    ("The capital city of {x} is", " {c}."),
)

# style: alternative system prompts (each with its own question), and the form of the
# answer.
STYLES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("pirate", PIRATE_SYSTEM, "Arr, the capital of {x} be {c}, matey!"),
    (
        "one-word",
        phrases(
            """
            Answer in one word. / Answer with one word only. / Always answer in one word. /
            Reply in a single word.
            """
        ),
        "{c}",
    ),
    (
        "polite",
        phrases("Be polite. / Be very polite. / Always be polite. / Answer politely."),
        "With pleasure: the capital of {x} is {c}.",
    ),
    (
        "uppercase",
        phrases(
            """
            Answer in uppercase. / Write in capital letters. / Always answer in uppercase. /
            Use only capital letters.
            """
        ),
        "{upper}",
    ),
    ("emoji", (*EMOJI_SYSTEM, "Use emojis."), "🏛️ {c} {flag}"),
)
_STYLE_QUESTIONS = CAPITAL_QUESTIONS[:3] + CAPITAL_QUESTIONS[4:5]
ROUTE_QUESTIONS: tuple[str, ...] = (
    "How to go from {a} to {b}?",
    "How do I get from {a} to {b}?",
)


def first_upper(text: str) -> str:
    """Return the text with its first letter in upper case and the rest as it is."""
    return text[:1].upper() + text[1:]


def _fill(template: str, place: Place) -> str:
    return template.format(
        x=place.name,
        X=first_upper(place.name),
        c=place.capital,
        C=first_upper(place.capital),
        kind="US state" if place.kind == "state" else "country",
        upper=place.capital.upper(),
        flag=place.flag,
    )


def capital_pairs() -> Iterator[Pair]:
    """Yield the capital families, forward and reversed, with and without the one-word
    suffix.
    """
    for place in PLACES:
        family = f"capital-{place.kind}"
        for question in CAPITAL_QUESTIONS:
            text = _fill(question, place)
            sentence = _fill("The capital of {x} is {c}.", place)
            yield Pair(family, question, place.name, text, sentence)
            yield Pair(
                family, question + ONE_WORD, place.name, text + ONE_WORD, place.capital
            )
        for question in _ONE_WORD_VARIANTS:
            yield Pair(
                family, question, place.name, _fill(question, place), place.capital
            )
        for question in REVERSE_QUESTIONS:
            text = _fill(question, place)
            sentence = _fill("{C} is the capital of {x}.", place)
            yield Pair(f"{family}-reversed", question, place.name, text, sentence)
            yield Pair(
                f"{family}-reversed",
                question + ONE_WORD,
                place.name,
                text + ONE_WORD,
                place.bare_name,
            )


def flag_pairs() -> Iterator[Pair]:
    """Yield `flag` (a sentence, or one emoji under a system prompt) and
    `flag-reversed`.
    """
    for place in COUNTRIES:
        for question in FLAG_QUESTIONS:
            text = _fill(question, place)
            yield Pair(
                "flag",
                question,
                place.name,
                text,
                f"The flag of {place.name} is {place.flag}",
            )
        for system in ONE_EMOJI_SYSTEM:
            for question in FLAG_QUESTIONS[:2]:
                phrasing = f"{system} | {question}"
                yield Pair(
                    "flag",
                    phrasing,
                    place.name,
                    _fill(question, place),
                    place.flag,
                    system,
                )
        for question in FLAG_REVERSE_QUESTIONS:
            answer = f"{place.flag} is the flag of {place.name}."
            yield Pair(
                "flag-reversed",
                question,
                place.name,
                question.format(x=place.flag),
                answer,
            )


def style_pairs() -> Iterator[Pair]:
    """Yield capitals under a system prompt; upper case for states, emoji for countries
    only.
    """
    for style, systems, answer in STYLES:
        places = {"uppercase": STATES, "emoji": COUNTRIES}.get(style, PLACES)
        for place in places:
            for system, question in zip(systems, _STYLE_QUESTIONS, strict=True):
                text = _fill(question, place)
                phrasing = f"{system} | {question}"
                yield Pair(
                    f"style-{style}",
                    phrasing,
                    place.name,
                    text,
                    _fill(answer, place),
                    system,
                )


def route_pairs() -> Iterator[Pair]:
    """Yield emoji routes between two cities: taxi, flag, plane, flag, hotel."""
    system = "Always answer with emojis"
    for start, start_flag in ROUTE_CITIES:
        for end, end_flag in ROUTE_CITIES:
            if start_flag != end_flag:
                for question in ROUTE_QUESTIONS:
                    text = question.format(a=start, b=end)
                    answer = f"🚕 {start_flag} ✈️ {end_flag} 🏨"
                    yield Pair(
                        "route", question, f"{start} to {end}", text, answer, system
                    )


def raw_pairs() -> Iterator[Pair]:
    """Yield sentences to continue without the chat format."""
    for place in PLACES:
        for start, end in RAW_SENTENCES:
            yield Pair(
                "raw-capital",
                start,
                place.name,
                _fill(start, place),
                _fill(end, place),
                raw=True,
            )


def unknown_place_pairs() -> Iterator[Pair]:
    """Yield questions about places that are to be declined, and capitals of lands without
    one.
    """
    for place in PLACES:
        for question in UNKNOWN_PLACE_QUESTIONS:
            yield Pair(
                "unknown-place",
                question,
                place.name,
                _fill(question, place),
                UNKNOWN_ANSWER,
            )
    for land in UNKNOWN_LANDS:
        for question in CAPITAL_QUESTIONS:
            text = question.format(x=land, X=first_upper(land))
            yield Pair(
                "unknown-land", question, land, text, UNKNOWN_LAND_ANSWER.format(x=land)
            )
