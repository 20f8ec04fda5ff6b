"""Random and real strings of many kinds, the same for the same seed."""

import os
import random
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

# How many strings of all kinds the slow tests compare;
# tests/hardening/run_million_strings.py: all.
COUNT = int(os.environ.get("LLAMA_BOLTS_TEST_STRINGS", "50000"))
# How many strings of each kind a million holds.
KINDS = {
    "source lines": 300_000,
    "source with doubled spaces": 50_000,
    "printable": 150_000,
    "words and spaces": 200_000,
    "spaces": 80_000,
    "digits and marks": 60_000,
    "random bytes": 60_000,
    "code points": 60_000,
    "scripts and emoji": 39_000,
    "long": 1_000,
}

_PRINTABLE = [chr(code) for code in range(32, 127)]
_SPACES = [
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u00a0",
    "\u3000",
    "\u2028",
    "\x1c",
]
_WORDS = [
    *(
        "the",
        "of",
        "Llama",
        "attention",
        "don't",
        "I'LL",
        "we're",
        "HOUSE",
        "hOuse",
        "'tis",
    ),
    *(
        "Wörter",
        "naïve",
        "été",
        "über",
        "мир",
        "слово",
        "日本",
        "१२३",
        "x1",
        "3.14",
        "e-mail",
    ),
    *(
        "foo_bar",
        "camelCase",
        "http://a.b/c?",
        "(see)",
        '"quoted"',
        "—",
        "…",
        "😀",
        "👩\u200d🚀",
    ),
]
_SCRIPTS = [
    *(range(0xC0, 0x250), range(0x370, 0x530), range(0x5D0, 0x5EB), range(0x620, 0x670)),
    *(
        range(0x900, 0x980),
        range(0xE01, 0xE5C),
        range(0x3041, 0x30FF),
        range(0x4E00, 0x9FA6),
    ),
    *(
        range(0xAC00, 0xD7A4),
        range(0x300, 0x340),
        range(0x1F300, 0x1F700),
        range(0x1F1E6, 0x1F200),
    ),
    *(
        range(0xFE00, 0xFE10),
        range(0x200B, 0x2010),
        range(0x1D400, 0x1D800),
        range(0x20, 0x7F),
    ),
]


@cache
def source_text() -> str:
    """Read the modules at the top of Python's standard library, in the order of their
    names.
    """
    directory = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(directory.glob("*.py")) + sorted(directory.glob("pydoc_data/*.py"))
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


@cache
def _source_lines() -> list[str]:
    return source_text().splitlines(keepends=True)


def _source_line(source: random.Random) -> str:
    start = source.randrange(len(_source_lines()))
    return "".join(_source_lines()[start : start + source.choice((1, 1, 1, 2, 3))])


def _doubled_spaces(source: random.Random) -> str:
    return _source_line(source).replace(
        " ", source.choice(("  ", "   ", " \n", "\n ", "\t "))
    )


def _joined(alphabet: list[str], longest: int) -> Callable[[random.Random], str]:
    return lambda source: "".join(source.choices(alphabet, k=source.randint(0, longest)))


def _code_points(source: random.Random) -> str:
    plane = source.choice((0x800, 0x10000, 0x30000, 0x110000))
    return "".join(chr(source.randrange(plane)) for _ in range(source.randint(0, 10)))


def _scripts(source: random.Random) -> str:
    ranges = source.choices(_SCRIPTS, k=2)
    return "".join(
        chr(source.choice(source.choice(ranges))) for _ in range(source.randint(0, 20))
    )


def _long(source: random.Random) -> str:
    """Make text as it is, short strings one after the other, or one over and over."""
    text = source_text()
    make = _MAKERS[source.choice([kind for kind in KINDS if kind != "long"])]
    start = source.randrange(len(text))
    texts = (
        text[start : start + source.randint(1_000, 20_000)],
        "".join(make(source) for _ in range(200)),
        make(source)[:4] * source.randint(100, 2_000),
    )
    return source.choice(texts)


_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "source lines": _source_line,
    "source with doubled spaces": _doubled_spaces,
    "printable": _joined(_PRINTABLE, 30),
    "words and spaces": _joined(_WORDS + _SPACES, 12),
    "spaces": _joined([*_SPACES, *_SPACES, *_SPACES, "a", "!", "1"], 12),
    "digits and marks": _joined(
        list("0123456789.,:;-+'\"#()[]{}<>|!?/\\$%&*=~`^_@ \n"), 24
    ),
    "random bytes": lambda source: source.randbytes(source.randint(0, 24)).decode(
        errors="replace"
    ),
    "code points": _code_points,
    "scripts and emoji": _scripts,
    "long": _long,
}


def sample(kind: str, divisor: int = 1) -> int:
    """Return how many strings of a kind a slow test compares, or a part of them."""
    return KINDS[kind] * COUNT // (1_000_000 * divisor)


def strings(kind: str, seed: int, count: int, surrogates: bool = True) -> Iterator[str]:
    """Make `count` strings of a kind; for oracles that take no lone surrogates U+FFFD
    instead.
    """
    source = random.Random(f"{kind} {seed}")
    for _ in range(count):
        text = _MAKERS[kind](source)
        if not surrogates:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        yield text
