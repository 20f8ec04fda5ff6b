"""Texts without a meaning, to be declined: letters, signs, keys, digits and unrelated
words.
"""

from __future__ import annotations

import random
import re

from .facts_chat import SMALL_TALK
from .facts_geography import PLACES
from .facts_llama import LIBRARY_TOPICS, LLAMA_TOPICS
from .facts_memory import NAMES, WORDS
from .facts_newcomer import (
    ACTION_FORMS,
    ALIASES,
    LIBRARY_MORE,
    LLAMA_MORE,
    NOUN_FORMS,
    TALK_MORE,
    UNKNOWN_CITIES,
    UNKNOWN_NOUNS,
)
from .facts_types import words
from .facts_unknown import UNKNOWN_LANDS, UNKNOWN_QUESTIONS
from .newcomer_pairs import topic_form_pairs
from .variation import KNOWN_WORDS

_ONSETS = words(
    "b bl br c ch cl cr d dr f fl fr g gl gr h j k kr l m n p ph pl pr qu r s sc sh sk sl sm sn sp"
    " st str sw t th tr tw v w wh x y z"
)
_NUCLEI = words("a a a e e e i i i o o o u u ai au ea ee ei ia ie io oo ou y")
_CODAS = words(
    "b ck d ff ft g k l ld ll m mp n nd ng nk nn nt p r rd rk rn rs rt s ss st t th tt x z"
)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SIGNS = "!?.,;:#$%&*()[]{}<>/\\|@^~_-+=\"'"
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm", "1234567890")
_FOREIGN = "äöüßéèêñçøåłžšđţăαβγδλπωабвгдежзиклмнопрстуфхאבגדابتثج你好世界日本語한국어ไทย"
_TOPICS = (*LLAMA_TOPICS, *LIBRARY_TOPICS, *SMALL_TALK)
_CORPUS_TEXTS = (
    LLAMA_MORE,
    LIBRARY_MORE,
    TALK_MORE,
    *NOUN_FORMS,
    *ACTION_FORMS,
    *UNKNOWN_NOUNS,
    *UNKNOWN_QUESTIONS,
    *UNKNOWN_LANDS,
    *UNKNOWN_CITIES,
    *(text for topic in _TOPICS for text in (*topic.questions, topic.answer)),
)
_CORPUS_WORDS: tuple[str, ...] = tuple(
    sorted({*re.findall(r"[a-z]{2,}", " ".join(_CORPUS_TEXTS).lower()), *KNOWN_WORDS})
)
_ASKED_ALONE = (
    *KNOWN_WORDS,
    *(alias for alias, _ in ALIASES),
    *(pair.question for pair in topic_form_pairs()),
    *(question for topic in _TOPICS for question in topic.questions),
)
_LONE_WORDS: tuple[str, ...] = tuple(
    sorted(
        {*_CORPUS_WORDS} - {question.strip("-/?!.").lower() for question in _ASKED_ALONE}
    )
)
_TALK_WORDS = words(
    "hello hi hey yes no thanks bye please okay sorry help stop start test good bad morning night"
    " world boy girl friend dog cat nice day love you me my happy birthday welcome please what why"
    " nano llama bot computer robot done ready goodbye food fun baby man woman cheese pizza moon"
)
_PLACES: tuple[str, ...] = tuple(
    sorted(
        {word.lower() for place in PLACES for word in re.findall(r"\w{4,}", place.name)}
    )
)
_SMALL_WORDS = words(
    "the of and with under very blue is to at my your which quickly never not for in on a an or but"
    " from by as it this that be was he she we they if so then there here some any all"
)
_ACTIONS = words(
    "bring build buy call carry change choose chop clean close cook count cut draw drive drop eat"
    " fix grow hide hold join keep learn leave lift lose make mix move open order paint pick plant"
    " play pour pull push put sell send sing start take throw try turn wash watch wear"
)


def invented_word(generator: random.Random) -> str:
    """Return a word of one to three syllables, or of pieces of listed words."""
    if generator.random() < 0.45:
        return _pieced_word(generator)
    word = _syllables(generator, generator.choice((1, 2, 2, 2, 3)))
    return word if len(word) > 2 else invented_word(generator)


def text_to_copy(generator: random.Random) -> str:
    """Return one word or, less often, up to six."""
    count = generator.choice((1, 1, 1, 1, 1, 2, 2, 3, 4, 6))
    return " ".join(word_to_copy(generator) for _ in range(count))


def word_to_copy(generator: random.Random) -> str:
    """Return a word that is invented, of the corpus or of small talk."""
    draw = generator.random()
    if draw < 0.12:
        return generator.choice(_CORPUS_WORDS)
    return generator.choice(_TALK_WORDS) if draw < 0.24 else invented_word(generator)


def invented_place(generator: random.Random) -> str:
    """Return an invented word, one with parts of known places, or "the" and a thing."""
    draw = generator.random()
    if draw < 0.06:
        return f"the {generator.choice(WORDS)}"
    if draw < 0.2:
        return invented_word(generator)
    first = generator.choice(_PLACES)
    last = generator.choice(_PLACES)
    if (
        draw > 0.6
    ):  # a known place with a syllable within, or in place of up to three letters
        start = generator.randint(0, len(first) - 2)
        end = min(len(first) - 1, start + generator.randint(0, 3))
        return first[:start] + _syllables(generator, 1) + first[end:]
    beginning = first[: generator.randint(2, len(first) - 2)]
    ending = last[-generator.randint(2, len(last) - 2) :]
    if draw < 0.32:
        beginning = _syllables(generator, generator.choice((1, 1, 2)))
    elif draw < 0.44:
        ending = _syllables(generator, generator.choice((1, 1, 2)))
    return beginning + ending


def _syllables(generator: random.Random, count: int) -> str:
    text = ""
    for _ in range(count):
        onset = generator.choice(_ONSETS) if text or generator.random() < 0.85 else ""
        text += onset + generator.choice(_NUCLEI)
        text += generator.choice(_CODAS) if generator.random() < 0.4 else ""
    return text


def _pieced_word(generator: random.Random) -> str:
    """Return two or three pieces of known words, joined:
    most tokens occur in some piece.
    """
    pieces = ""
    for _ in range(generator.choice((2, 2, 3, 3))):
        whole = generator.choice(_CORPUS_WORDS)
        start = generator.randrange(max(1, len(whole) - 2))
        pieces += whole[start : start + generator.randint(2, 5)]
    return pieces


def nonsense(generator: random.Random) -> str:
    """Return a text that nobody could answer; the same state of the generator gives the
    same.
    """
    kind = generator.choice(_KINDS)
    text = kind(generator).strip() or "~"
    draw = generator.random()
    text = text.upper() if draw < 0.1 else text.capitalize() if draw < 0.3 else text
    return text + generator.choice(("", "", "", "?", "!", ".", "??"))


def _random_letters(generator: random.Random) -> str:
    count = range(generator.randint(1, 5))
    return " ".join(
        "".join(generator.choices(_LETTERS, k=generator.randint(2, 9))) for _ in count
    )


def _keys(generator: random.Random) -> str:
    """Return runs of neighbouring keys, as a hand on the keyboard makes them."""
    row = generator.choice(_ROWS)
    start = generator.randrange(len(row) - 3)
    run = row[start : start + generator.randint(3, 6)]
    return run * generator.randint(1, 3) + "".join(
        generator.choices(row, k=generator.randint(0, 6))
    )


def _one_letter(generator: random.Random) -> str:
    return generator.choice(_LETTERS + _SIGNS) * generator.randint(1, 12)


def _signs(generator: random.Random) -> str:
    return "".join(generator.choices(_SIGNS + " ", k=generator.randint(2, 14)))


def _foreign(generator: random.Random) -> str:
    count = range(generator.randint(1, 4))
    return " ".join(
        "".join(generator.choices(_FOREIGN, k=generator.randint(1, 6))) for _ in count
    )


def _digits(generator: random.Random) -> str:
    return "".join(generator.choices("0123456789", k=generator.randint(4, 12)))


def _numbers(generator: random.Random) -> str:
    numbers = (str(generator.randint(0, 999)) for _ in range(generator.randint(2, 5)))
    return generator.choice((" ", ", ", ".", " . ", ":")).join(numbers)


def _mixed(generator: random.Random) -> str:
    return "".join(
        generator.choices(_LETTERS + "0123456789" + _SIGNS, k=generator.randint(4, 20))
    )


def _printable(generator: random.Random) -> str:
    length = generator.randint(3, 40)
    return "".join(chr(generator.randint(32, 126)) for _ in range(length))


def _invented_words(generator: random.Random) -> str:
    return " ".join(invented_word(generator) for _ in range(generator.randint(1, 5)))


def _unrelated_words(generator: random.Random) -> str:
    """Return listed words, names and small words in any order."""
    nouns = [noun.split()[-1] for noun in UNKNOWN_NOUNS]
    pool = (WORDS, WORDS, nouns, _SMALL_WORDS, NAMES)
    count = generator.randint(2, 8)
    return " ".join(generator.choice(generator.choice(pool)) for _ in range(count))


def _small_words(generator: random.Random) -> str:
    """Return small words in any order, or one of them again and again."""
    count = generator.randint(2, 6)
    if generator.random() < 0.3:
        return " ".join([generator.choice((*_SMALL_WORDS, *WORDS))] * count)
    return " ".join(generator.choices(_SMALL_WORDS, k=count))


def _corpus_words(generator: random.Random) -> str:
    """Return words of questions, answers, places and topics in any order."""
    count = generator.choice((2, 2, 2, 3, 3, 4, 6, 9, 12))
    return " ".join(generator.choices(_CORPUS_WORDS, k=count))


def _action(generator: random.Random) -> str:
    """Return a command that nobody can follow: it is not one to repeat, to say or to
    spell.
    """
    return f"{generator.choice(_ACTIONS)} {generator.choice(_CORPUS_WORDS)}"


def _lone_word(generator: random.Random) -> str:
    """Return a word of the corpus that is no question by itself."""
    return generator.choice(_LONE_WORDS)


def _letters_of_many_scripts(generator: random.Random) -> str:
    letters = (
        chr(generator.choice((generator.randint(97, 122), generator.randint(192, 1500))))
        for _ in range(generator.randint(3, 36))
    )
    return "".join(letters)


def _question_of_invented(generator: random.Random) -> str:
    """Return a well-formed question about something that does not exist."""
    start = generator.choice(
        (
            "What is a",
            "What is",
            "Who is",
            "Explain",
            "Tell me about",
            "How does a",
            "Why is",
            "Where is",
            "When did",
            "Do you know",
            "Can you",
            "What does",
            "Is",
            "Are there",
        )
    )
    return f"{start} {_invented_words(generator)}"


def _large_sum(generator: random.Random) -> str:
    """Return a sum or difference outside of what is learned."""
    bounds = generator.choice(((60, 200), (60, 200), (101, 99999)))
    terms = [
        generator.randint(*bounds),
        generator.randint(generator.choice((1, 60)), bounds[1]),
    ]
    a, b = generator.sample(terms, 2)
    sign = generator.choice(
        (" + ", " - ", "+", "-", " * ", " / ", " plus ", " minus ", " times ")
    )
    return generator.choice(("", "What is ", "what is ", "calculate ")) + f"{a}{sign}{b}"


_KINDS = (
    _random_letters,
    _random_letters,
    _keys,
    _one_letter,
    _signs,
    _foreign,
    _digits,
    _numbers,
    _mixed,
    _printable,
    _printable,
    _letters_of_many_scripts,
    _corpus_words,
    _corpus_words,
    _corpus_words,
    _corpus_words,
    _corpus_words,
    _lone_word,
    _action,
    _action,
    _invented_words,
    _unrelated_words,
    _unrelated_words,
    _small_words,
    _question_of_invented,
    _question_of_invented,
    _large_sum,
)
