from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer import bpe
from src.tokenizer.bpe import (
    NO_MERGE,
    PAIR_SHIFT,
    Merges,
    listed_merges,
    merge,
    merge_long,
    merge_short,
    spelled_merges,
)
from tests.tokenizer.conftest import TOKENS, ranks_of
from tests.tokenizer.growth import steps_of


def merged_by_definition(ids: list[int], merges: Merges) -> list[int]:
    """The rule, step by step: the lowest rank, the leftmost of equals, one merge at a
    time.
    """
    ids = list(ids)
    while True:
        pairs = [left << PAIR_SHIFT | right for left, right in pairwise(ids)]
        ranked = [(merges.ranks[pair], place) for place, pair in enumerate(pairs)]
        rank, place = min(ranked, default=(NO_MERGE, 0))
        if rank == NO_MERGE:
            return ids
        ids[place : place + 2] = [merges.joined[pairs[place]]]


def by_spelling(*tokens: bytes) -> Merges:
    """Every pair that joins to one of the tokens merges, at the token's place."""
    ranks = ranks_of(*tokens)
    return spelled_merges(list(ranks), ranks, ranks)


@st.composite
def merge_lists(draw: st.DrawFn) -> Merges:
    """Any pairs of the symbols 0 to 9 in any order; several may give the same symbol."""
    symbols = st.tuples(st.integers(0, 9), st.integers(0, 9))
    pairs = draw(st.lists(symbols, unique=True, max_size=25))
    joined = [draw(st.integers(3, 9)) for _ in pairs]
    return listed_merges([left << PAIR_SHIFT | right for left, right in pairs], joined)


@st.composite
def equal_ranks(draw: st.DrawFn) -> Merges:
    """Tokens of which several have the same rank, as pieces of SentencePiece may."""
    tokens = ranks_of(*draw(TOKENS))
    ranks = {token: draw(st.integers(0, 4)) for token in tokens}
    return spelled_merges(list(tokens), ranks, tokens)


MERGES = st.one_of(
    TOKENS.map(lambda tokens: by_spelling(*tokens)), merge_lists(), equal_ranks()
)
PIECES = st.lists(st.integers(0, 2), min_size=1, max_size=40)
REPETITIVE = st.builds(
    lambda start, unit, times, end: start + unit * times + end,
    *(
        PIECES.map(lambda p: p[:3]),
        PIECES.map(lambda p: p[:6]),
        st.integers(1, 30),
        PIECES,
    ),
)
WAYS = [merge, merge_short, merge_long]


def letters(merges: Merges, ids: list[int]) -> list[int]:
    """The symbols 0, 1, 2 for lists, the letters a, b, c for spelled tokens."""
    return (
        ids
        if isinstance(merges.ranks, bpe._Listed)
        else [number + ord("a") for number in ids]
    )


@pytest.mark.parametrize("way", WAYS)
@given(merges=MERGES, piece=st.one_of(PIECES, REPETITIVE))
def test_every_way_of_merging_follows_the_rule_for_any_merges(way, merges, piece):
    ids = letters(merges, piece)
    assert way(list(ids), merges) == merged_by_definition(ids, merges)


@pytest.mark.parametrize("way", [*WAYS, merged_by_definition])
@pytest.mark.parametrize(
    ("tokens", "piece", "expected"),
    [
        ([b"aa"], b"aaaaa", [b"aa", b"aa", b"a"]),  # the leftmost of overlapping pairs
        ([b"bc", b"ab"], b"abc", [b"a", b"bc"]),  # the lower rank, not the first place
        (
            [b"abc", b"ab"],
            b"ababc",
            [b"ab", b"abc"],
        ),  # a merge that makes a lower ranked pair
        (
            [b"aba", b"ab"],
            b"ababab",
            [b"aba", b"b", b"ab"],
        ),  # ... which takes the next one's part
        ([b"aab", b"ab", b"aabab"], b"aaabab", [b"a", b"aabab"]),
        ([b"ab"], b"xyz", [b"x", b"y", b"z"]),
        ([], b"a", [b"a"]),
        (
            [b"a" * 2**k for k in range(1, 6)],
            b"a" * 63,
            [b"a" * 2**k for k in range(5, -1, -1)],
        ),
        (
            [b"ba", b"aa"],
            b"b" + b"a" * 41,
            [b"ba"] + [b"aa"] * 20,
        ),  # a pass that does not pay
        ([b"ba", b"baa"], b"b" + b"a" * 40, [b"baa"] + [b"a"] * 38),  # ... and one more
    ],
)
def test_known_pieces_merge_as_the_rule_says(way, tokens, piece, expected):
    ranks = ranks_of(*tokens)
    merges = by_spelling(*tokens)
    assert way(list(piece), merges) == [ranks[token] for token in expected]


def test_a_list_merges_only_what_it_names():
    """Of the two ways to put "aab" together, the second is not in the list."""
    a, b, aa, ab, aab = range(5)

    def listed(*merges: tuple[int, int, int]) -> Merges:
        pairs = [left << PAIR_SHIFT | right for left, right, _ in merges]
        return listed_merges(pairs, [joined for _, _, joined in merges])

    assert merge([a, a, b], listed((a, b, ab), (a, a, aa), (a, ab, aab))) == [aab]
    assert merge([a, a, b], listed((a, a, aa), (a, b, ab), (a, ab, aab))) == [aa, b]


@pytest.mark.parametrize("way", [*WAYS, merged_by_definition])
@pytest.mark.parametrize(
    ("spelled", "piece", "expected"),
    [
        ([b"bc", b"ab"], b"abc", [b"ab", b"c"]),  # whatever its id
        (
            [b"bc", b"abc"],
            b"abcabc",
            [b"abc", b"abc"],
        ),  # a merge makes a pair to its left
        (
            [b" " * n for n in range(2, 17)],
            b" " * 40,
            [b" " * 16, b" " * 16, b" " * 8],
        ),  # Llama 2
    ],
)
def test_of_equal_ranks_the_leftmost_merges_first(way, spelled, piece, expected):
    tokens = ranks_of(*spelled)
    equal = spelled_merges(list(tokens), dict.fromkeys(tokens, 0), tokens)
    assert way([*piece], equal) == [tokens[token] for token in expected]


def test_the_cached_pairs_are_bounded(monkeypatch):
    monkeypatch.setattr(bpe, "CACHED_PAIRS", 100)
    merges = by_spelling(b"ab", b"cd", b"abcd")
    for left in range(256):
        assert merges.ranks[left << PAIR_SHIFT | ord("x")] == NO_MERGE
        assert len(merges.ranks) <= 100
        assert merge([*b"xabcdx"], merges) == [ord("x"), 258, ord("x")]


def test_the_growth_test_sees_quadratic_work():
    """Its negative: the rule followed step by step, which is in a directory of the same
    name.
    """
    merges = by_spelling(b"aa", b"aaaa")

    def steps(size: int) -> int:
        return steps_of(lambda: merged_by_definition([ord("a")] * size, merges))

    assert steps(80) > 3.5 * steps(40)


def test_a_hostile_vocabulary_cannot_make_the_batches_quadratic():
    """Every merge of the first batch makes a pair that ranks lower and must go first."""
    merges = by_spelling(b"abc", b"ab")

    def steps(size: int) -> int:
        return steps_of(lambda: merge_long([*b"abc" * size], merges))

    assert merge_long([*b"abc" * 50], merges) == [256] * 50
    assert steps(2000) <= 2.6 * steps(1000)
