"""No text takes long: two seconds of processor time per MiB are asked for (row X1).

The bound here is twice that, because processors differ and are shared; growth is counted
in steps, and docs/RELIABILITY.md has the times of one machine.
"""

import random
import time
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest

from src.model.sources import BUNDLED_MODEL
from src.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.conftest import encode, real_tokenizer
from tests.tokenizer.growth import steps_of

MIB = 1 << 20
SECONDS_PER_MIB = 4.0
TRIES = 3  # a processor may be shared with others
DOCS = Path(__file__).resolve().parents[2] / "docs"


def random_bytes(size: int, errors: str) -> str:
    return random.Random(9).randbytes(size).decode(errors=errors)


def prose(size: int) -> str:
    """Returns words of the documentation in any order, with their punctuation."""
    words = [
        word
        for page in sorted(DOCS.glob("*.md"))
        for word in page.read_text("utf-8").split()
    ]
    return " ".join(random.Random(10).choices(words, k=size // 4))[:size]


LONG_PIECES = {
    "one letter": lambda size: "a" * size,
    "spaces": lambda size: " " * size,
    "emoji": lambda size: "😀" * (size // 4),
    "newlines": lambda size: "\n" * size,
    "random letters": lambda size: "".join(
        random.Random(7).choices(ascii_lowercase, k=size)
    ),
    "Cyrillic": lambda size: "".join(
        random.Random(8).choices("абвгдежзийклмнопрстуфхцч", k=size)
    ),
    "ideographs": lambda size: "中文" * (size // 6),
}
REPEATED = ("one letter", "spaces", "emoji", "newlines", "ideographs")
TEXTS = {
    **{name: LONG_PIECES[name] for name in REPEATED},
    "random bytes": lambda size: random_bytes(size, "replace"),
    "random bytes and surrogates": lambda size: random_bytes(size, "surrogateescape"),
    "prose": prose,
}
KINDS = (
    "bundled",
    "llama3/tokenizer.model",
    "llama3/tokenizer.json",
    "llama2/tokenizer.model",
    "llama2/tokenizer.json",
)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "bundled":
        return load_tokenizer(BUNDLED_MODEL)
    return real_tokenizer(request.param)


def check_time(tokenizer: Tokenizer, text: str) -> None:
    most = SECONDS_PER_MIB * len(text.encode("utf-8", "surrogatepass")) / MIB
    taken = []
    for _ in range(TRIES):
        started = time.process_time()
        encode(tokenizer, text)
        taken.append(time.process_time() - started)
        if taken[-1] <= most:
            print(f"{taken[-1] / most * SECONDS_PER_MIB:.2f} s per MiB")
            return
    raise AssertionError(
        f"{min(taken):.2f} s of processor time, expected at most {most:.2f} s"
    )


def steps_to_encode(tokenizer: Tokenizer, text: str) -> int:
    """Count for one text, with empty caches."""
    encoder: Any = tokenizer._encoder
    for pairs in (encoder._merges.ranks, encoder._merges.joined):
        if type(pairs).__name__ == "_Spelled":
            pairs.clear()
    for cache in (encoder._encode_cached, encoder._merge_cached):
        cache.cache_clear()
    return steps_of(lambda: tokenizer.encode(text, bos=False, eos=False))


@pytest.mark.parametrize("kind", LONG_PIECES)
def test_work_grows_no_faster_than_n_log_n(tokenizer, kind):
    """A quadratic step would give a ratio near 4."""
    shorter, longer = (
        steps_to_encode(tokenizer, LONG_PIECES[kind](n)) for n in (512, 1024)
    )
    assert longer <= 2.6 * shorter


@pytest.mark.parametrize("name", TEXTS)
def test_32_kib_of_any_kind_take_no_longer_than_the_bound(tokenizer, name):
    check_time(tokenizer, TEXTS[name](MIB // 32))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TEXTS if name != "prose"])
def test_a_mib_of_any_kind_takes_no_longer_than_the_bound(tokenizer, name):
    check_time(tokenizer, TEXTS[name](MIB))


@pytest.mark.slow
def test_10_mib_of_prose_take_no_longer_than_the_bound(tokenizer):
    check_time(tokenizer, prose(10 * MIB))
