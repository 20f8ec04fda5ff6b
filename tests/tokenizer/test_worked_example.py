"""The merges of Llama 3's tokenizer that the chapter on tokenizers shows are those of its
file.
"""

import re
from itertools import pairwise
from pathlib import Path

from src.tokenizer.tiktoken_file import read_tiktoken_file
from tests.support.shared_data import shared_data
from tests.tokenizer.conftest import encode, real_tokenizer

CHAPTER = Path(__file__).resolve().parents[2] / "docs" / "05-tokenizer.md"
WORD = "tokenization"


def merges(ranks: dict[bytes, int], word: str) -> list[tuple[int, str]]:
    """Returns each merge's rank and the parts after it, by looking at all neighbours each
    time.
    """
    parts = [bytes([byte]) for byte in word.encode()]
    found = []
    while True:
        joined = [left + right for left, right in pairwise(parts)]
        known = [
            (ranks[token], place) for place, token in enumerate(joined) if token in ranks
        ]
        if not known:
            return found
        rank, place = min(known)
        parts[place : place + 2] = [joined[place]]
        found.append((rank, " ".join(part.decode() for part in parts)))


def test_the_chapter_shows_the_merges_of_llama_3():
    path = shared_data("llama3/tokenizer.model")
    text = CHAPTER.read_text(encoding="utf-8")
    shown = [
        (int(n), parts) for n, parts in re.findall(r"^\| (\d+) \| `(.+)` \|$", text, re.M)
    ]
    assert shown == merges(read_tiktoken_file(path), WORD)
    ids = real_tokenizer("llama3/tokenizer.model").encode(WORD, bos=False, eos=False)
    assert f"Llama 3 has `{ids}`" in text


def test_the_chapter_shows_the_ids_of_llama_2():
    tokenizer = real_tokenizer("llama2/tokenizer.model")
    ids = encode(tokenizer, WORD)
    pieces = [tokenizer.token_bytes(number).decode() for number in ids]
    text = CHAPTER.read_text(encoding="utf-8").replace("\n", " ")
    assert f"`{WORD}` is `{ids}`, `{pieces[0]!r}` and `{pieces[1]!r}`" in text
