"""Vary a question as people type it: case, marks, blanks, contractions, courtesy, typing
errors.

The answer stays as it is written in the tables, so training on varied questions teaches
the model to read them all as the same question.
"""

from __future__ import annotations

import random
import re

from .facts_geography import PLACES, ROUTE_CITIES
from .facts_memory import HOME_CITIES, NAMES, WORDS
from .facts_types import phrases, words

KEPT = "\x00"
"""Stands for the part of a text that the answer copies; no variation touches it."""

ONE_WORD = " Answer in one word."

_ONE_WORD_AFTER = phrases(
    """
    One word. / In one word. / One word only. / Answer with one word. / Just one word, please. /
    Reply in one word. / One word answer. / (one word) / Use one word. / Please answer in one word.
    """
)
_ONE_WORD_BEFORE = phrases(
    """
    Answer in one word. / Answer in one word: / In one word: / In one word, / One word: / One word
    answer: / Reply in one word: / Use one word. / With one word: / Please answer in one word:
    """
)
_OPENINGS = phrases(
    """
    hey, / hi, / hello, / hey / hi! / Hello! / ok, / so, / well, / um, / please / please, / Please
    tell me: / tell me, / question: / I have a question: / quick one: / can you tell me: / I want
    to know: / I would like to know: / hey, do you know: / could you please tell me: / Hey there! /
    and / now / then / good morning, / excuse me, / sorry, / just wondering, / help me: / I ask
    you: / my question is: / dear Nano, / Nano,
    """
)
_CLOSINGS = phrases(
    """
    please / please? / thanks / thank you / , please / , thanks / pls / , thank you! / now / ? thx /
    again? / , do you know? / , can you say? / , Nano? / ...
    """
)
_CONTRACTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("what is", ("what's", "whats", "wats", "what s")),
    ("who is", ("who's", "whos")),
    ("where is", ("where's", "wheres")),
    ("how is", ("how's", "hows")),
    ("that is", ("that's", "thats")),
    ("i am", ("i'm", "im")),
    ("you are", ("you're", "youre", "ur")),
    ("do not", ("don't", "dont")),
    ("is not", ("isn't", "isnt")),
    ("what are", ("what're", "whatre")),
    ("are you", ("r u", "are u")),
    ("do you", ("do u", "d'you")),
    ("please", ("pls", "plz")),
    ("thank you", ("thanks", "thx", "ty")),
    ("i would", ("i'd",)),
)
_KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_NEIGHBOURS = {
    letter: row[max(0, place - 1) : place] + row[place + 1 : place + 2]
    for row in _KEYBOARD
    for place, letter in enumerate(row)
}
_TABLE_NAMES = (
    *(place.name for place in PLACES),
    *(place.capital for place in PLACES),
    *(city for city, _ in ROUTE_CITIES),
    *HOME_CITIES,
    *NAMES,
    *WORDS,
)
KNOWN_WORDS = frozenset(
    word.lower() for name in _TABLE_NAMES for word in re.findall(r"\w+", name)
)
"""The words of all names, lower case: a typing error must not turn one into another."""
_COMMON_WORDS = frozenset(
    words(
        """
        what which whose where does that this with have tell name know give find city cities country
        state capital located answer word please could would explain mean work describe about
        question called much make added from
        """
    )
)
"""Words of many questions: an error in another word is the one that is hard to read."""


def vary(text: str, generator: random.Random) -> str:
    """Return the text as a person might type it, with the same meaning.

    Args:
        text: a question; `KEPT` stands for what must stay as it is.
        generator: the source of all choices; the same state gives the same text.
    """
    chance = generator.random
    if text.endswith(ONE_WORD) and chance() < 0.5:
        text = _one_word(text.removesuffix(ONE_WORD), generator)
    if chance() < 0.25:
        text = _contracted(text, generator)
    # Else it would be taken for what is copied.
    courtesy = KEPT not in text or text.endswith("?")
    if courtesy and chance() < 0.22:
        text = _with_opening(text, generator)
    if courtesy and chance() < 0.08:
        text = f"{text.rstrip('?.! ')} {generator.choice(_CLOSINGS)}".replace(" ,", ",")
        text = text.replace(" ?", "?").replace(" ...", "...")
    if chance() < 0.45:
        text = _punctuated(text, generator)
    if chance() < 0.6:
        text = _without_blanks(text, generator)
    if chance() < 0.6:
        text = typing_error(text, generator)
    return _in_case(text, generator)


def _one_word(text: str, generator: random.Random) -> str:
    if generator.random() < 0.5:
        return f"{text} {generator.choice(_ONE_WORD_AFTER)}"
    return f"{generator.choice(_ONE_WORD_BEFORE)} {text}"


def _contracted(text: str, generator: random.Random) -> str:
    """Contract the first phrase of the table that occurs."""
    for whole, short in _CONTRACTIONS:
        match = re.search(rf"\b{whole}\b", text, re.IGNORECASE)
        if match:
            chosen = generator.choice(short)
            chosen = chosen.capitalize() if match[0][0].isupper() else chosen
            return text[: match.start()] + chosen + text[match.end() :]
    return text


def _with_opening(text: str, generator: random.Random) -> str:
    return f"{generator.choice(_OPENINGS)} {text[:1].lower()}{text[1:]}"


def _punctuated(text: str, generator: random.Random) -> str:
    """Drop or change the last mark, or drop every mark but those inside of words and
    numbers.
    """
    if generator.random() < 0.3:
        return re.sub(r"[?!.,:]+(?=\s|$)", "", text).rstrip()
    bare = text.rstrip("?.! ")
    return bare + generator.choice(
        ("", "", "", "", "?", "?", "??", "???", "!", ".", " ?", "?!", "!!")
    )


def _without_blanks(text: str, generator: random.Random) -> str:
    """Close up sums (`2+2`), at times on one side alone; double a blank now and then."""
    if re.search(r"\d [-+] \d", text):
        form = generator.choice((r"\1", r"\1", r" \1", r"\1 "))
        text = re.sub(r"(?<=\d) ([-+]) (?=\d)", form, text)
        return text.replace(" =", "=") if generator.random() < 0.5 else text
    if generator.random() < 0.06 and " " in text:
        place = generator.choice([at for at, letter in enumerate(text) if letter == " "])
        return text[:place] + generator.choice(("  ", "")) + text[place + 1 :]
    return text


def typing_error(text: str, generator: random.Random) -> str:
    """Return the text with one error in one word of at least four letters.

    Two letters swapped, one dropped, one doubled, or one replaced by its neighbour on the
    keyboard; three of four are in a word that is not common. A result that is a known
    name or a listed word is left out, and the text comes back unchanged.
    """
    found = list(re.finditer(r"[A-Za-z]{4,}", text))
    if not found:
        return text
    rare = [match for match in found if match[0].lower() not in _COMMON_WORDS]
    match = generator.choice(rare if rare and generator.random() < 0.75 else found)
    word = match[0]
    place = generator.randrange(len(match[0]))
    kind = generator.randrange(4)
    if kind == 0:
        place = min(place, len(word) - 2)
        wrong = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    elif kind == 1:
        wrong = word[:place] + word[place + 1 :]
    elif kind == 2:
        wrong = word[:place] + word[place] + word[place:]
    else:
        near = generator.choice(_NEIGHBOURS[word[place].lower()])
        near = near.upper() if word[place].isupper() else near
        wrong = word[:place] + near + word[place + 1 :]
    if wrong.lower() in KNOWN_WORDS:
        return text
    return text[: match.start()] + wrong + text[match.end() :]


def _without_a_letter(word: str) -> set[str]:
    return {word, *(word[:place] + word[place + 1 :] for place in range(len(word)))}


_NEAR_NAMES = frozenset().union(*map(_without_a_letter, KNOWN_WORDS))


def could_be_a_name(word: str) -> bool:
    """Say whether a word is a known name but for one letter that is wrong, missing or too
    many.
    """
    return not _NEAR_NAMES.isdisjoint(_without_a_letter(word.lower()))


def _in_case(text: str, generator: random.Random) -> str:
    draw = generator.random()
    if draw < 0.45:
        return text.lower()
    if draw < 0.62:
        return text.upper()
    if draw < 0.66:
        return text[:1].upper() + text[1:].lower()
    if draw < 0.69:
        return text.title()
    return text
