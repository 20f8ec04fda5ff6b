import random
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from src.tokenizer import Tokenizer, bpe
from src.tokenizer.bpe import (
    BytePairEncoder,
    adjacent_bytes,
    merge_batches,
    merge_long,
    merge_short,
)
from tests.tokenizer.conftest import ranks_of


def merged_by_definition(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """The rule, step by step: the lowest rank, the leftmost of equals, one merge at a time."""
    parts = [bytes([byte]) for byte in piece]
    while True:
        ranked = [
            (ranks[left + right], place)
            for place, (left, right) in enumerate(pairwise(parts))
            if left + right in ranks
        ]
        if not ranked:
            return [ranks[part] for part in parts]
        place = min(ranked)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def merged_in_batches(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    return merge_batches([bytes([byte]) for byte in piece], ranks)


# Tokens over three letters, ranked in any order: also such as no training would give.
VOCABULARIES = st.lists(
    st.lists(st.sampled_from(b"abc"), min_size=2, max_size=7).map(bytes), unique=True, max_size=25
).map(lambda tokens: ranks_of(*tokens))
PIECES = st.lists(st.sampled_from(b"abc"), min_size=1, max_size=40).map(bytes)
REPETITIVE = st.builds(
    lambda start, unit, times, end: start + unit * times + end,
    *(PIECES.map(lambda p: p[:3]), PIECES.map(lambda p: p[:6]), st.integers(1, 30), PIECES),
)
MERGES = [merge_short, merge_long, merged_in_batches]


@pytest.mark.parametrize("merge", MERGES)
@given(ranks=VOCABULARIES, piece=st.one_of(PIECES, REPETITIVE))
@settings(max_examples=150)
def test_every_way_of_merging_follows_the_rule_for_any_vocabulary(
    merge: Callable[..., list[int]], ranks: dict[bytes, int], piece: bytes
) -> None:
    assert merge(piece, ranks) == merged_by_definition(piece, ranks)


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize(
    ("tokens", "piece", "expected"),
    [
        ([b"aa"], b"aaaaa", [b"aa", b"aa", b"a"]),  # the leftmost of overlapping pairs
        ([b"bc", b"ab"], b"abc", [b"a", b"bc"]),  # the lower rank, not the first place
        ([b"abc", b"ab"], b"ababc", [b"ab", b"abc"]),  # a merge that makes a lower ranked pair
        ([b"aba", b"ab"], b"ababab", [b"aba", b"b", b"ab"]),  # ... which takes the next one's part
        ([b"aab", b"ab", b"aabab"], b"aaabab", [b"a", b"aabab"]),
        ([b"ab"], b"xyz", [b"x", b"y", b"z"]),
        ([], b"a", [b"a"]),
        ([b"a" * 2**k for k in range(1, 6)], b"a" * 63, [b"a" * 2**k for k in range(5, -1, -1)]),
    ],
)
def test_known_pieces_merge_as_the_rule_says(
    merge: Callable[..., list[int]], tokens: list[bytes], piece: bytes, expected: list[bytes]
) -> None:
    ranks = ranks_of(*tokens)
    assert merge(piece, ranks) == [ranks[token] for token in expected]
    assert merged_by_definition(piece, ranks) == [ranks[token] for token in expected]


@given(VOCABULARIES, st.text(st.sampled_from("abcé"), min_size=1, max_size=120))
@settings(max_examples=150)
def test_a_piece_is_one_token_if_it_can_be_and_is_merged_otherwise(
    ranks: dict[bytes, int], piece: str
) -> None:
    whole = ranks.get(piece.encode())
    expected = merged_by_definition(piece.encode(), ranks) if whole is None else [whole]
    assert BytePairEncoder(ranks).encode_pieces([piece, piece]) == expected * 2


def test_a_whole_piece_is_looked_up_before_anything_merges() -> None:
    """The token "abc" cannot be reached by merges: neither "ab" nor "bc" is a token."""
    encoder = BytePairEncoder(ranks_of(b"abc"))
    assert encoder.encode_pieces(["abc"]) == [256]
    assert encoder.encode_pieces(["abcd"]) == [*b"abcd"]


def test_a_part_between_two_cuts_is_not_looked_up_as_a_whole_piece() -> None:
    """No token holds "c!": "abc" stands alone there, but as a part it must be merged."""
    encoder = BytePairEncoder(ranks_of(b"abc"))
    assert encoder.encode_pieces(["abc!"]) == [*b"abc!"]


def test_bytes_are_adjacent_where_a_token_holds_them_so() -> None:
    answers = adjacent_bytes(ranks_of(b"xyz", b"\xff\x00"))
    found = {divmod(place, 256) for place, answer in enumerate(answers) if answer}
    assert found == {(ord("x"), ord("y")), (ord("y"), ord("z")), (0xFF, 0x00)}


def test_the_cache_is_bounded_in_entries_and_in_their_size() -> None:
    encoder = BytePairEncoder(ranks_of())
    encoder.encode_pieces(["x" * (bpe.CACHED_PIECE_CHARS + 1)])
    assert encoder._encode_cached.cache_info().currsize == 0
    encoder.encode_pieces(["x" * bpe.CACHED_PIECE_CHARS])
    assert encoder._encode_cached.cache_info().currsize == 1
    assert encoder._encode_cached.cache_info().maxsize == bpe.CACHED_PIECES


def steps_of(run: Callable[[], object]) -> int:
    """Count the bytecode instructions that a call executes in the tokenizer's own modules."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "tokenizer" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def random_letters(size: int) -> str:
    return "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz", k=size))


LONG_PIECES = {
    "one letter": lambda size: "a" * size,
    "spaces": lambda size: " " * size,
    "emoji": lambda size: "😀" * (size // 4),
    "newlines": lambda size: "\n" * size,
    "random letters": random_letters,
    "Cyrillic": lambda size: "".join(random.Random(8).choices("абвгдежзийклмнопрстуфхцч", k=size)),
    "ideographs": lambda size: "中文" * (size // 6),
}


@pytest.mark.parametrize("kind", LONG_PIECES)
def test_work_grows_no_faster_than_n_log_n(llama3: Tokenizer, kind: str) -> None:
    """Counted in instructions, not in seconds; a quadratic step would give a ratio near 4."""

    def steps(size: int) -> int:
        text = LONG_PIECES[kind](size)
        return steps_of(lambda: llama3.encode(text, bos=False, eos=False))

    assert steps(8192) <= 2.6 * steps(4096)


def test_the_growth_test_sees_quadratic_work() -> None:
    """Its negative: the rule followed step by step, which is in a directory of the same name."""
    ranks = ranks_of(b"aa", b"aaaa")

    def steps(size: int) -> int:
        return steps_of(lambda: merged_by_definition(b"a" * size, ranks))

    assert steps(80) > 3.5 * steps(40)


def test_a_hostile_vocabulary_cannot_make_the_batches_quadratic() -> None:
    """Every merge of the first batch makes a pair that ranks lower and must go first."""
    ranks = ranks_of(b"abc", b"ab")

    def steps(size: int) -> int:
        return steps_of(lambda: merged_in_batches(b"abc" * size, ranks))

    assert merged_in_batches(b"abc" * 50, ranks) == [256] * 50
    assert steps(2000) <= 2.6 * steps(1000)
