"""The split into training and held-out pairs."""

from collections import Counter

from tools.nano.pairs import Pair, split_pairs, stable_hash

NO_FAMILIES: frozenset[str] = frozenset()
NO_PINS: frozenset[tuple[str, str]] = frozenset()


def grid(facts: int, phrasings: int) -> list[Pair]:
    return [
        Pair("family", f"phrasing {p}", f"fact {f}", f"question {p} {f}", f"answer {f}")
        for f in range(facts)
        for p in range(phrasings)
    ]


def test_the_hash_depends_on_the_text_alone() -> None:
    assert stable_hash("capital") == 0xBD08022E8FB80701


def test_nothing_is_held_out_that_is_pinned_or_when_a_fact_would_be_lost() -> None:
    assert split_pairs(grid(30, 1), NO_FAMILIES, NO_PINS).held_out["family"] == []
    pairs = grid(10, 10)
    unpinned = split_pairs(pairs, NO_FAMILIES, NO_PINS).held_out["family"]
    pins = frozenset((pair.system, pair.question) for pair in unpinned)
    pinned = split_pairs(pairs, NO_FAMILIES, pins).held_out["family"]
    assert len(pinned) == len(unpinned)
    assert not {pair.key for pair in unpinned} & {pair.key for pair in pinned}


def test_a_whole_fact_is_held_out_in_all_phrasings() -> None:
    split = split_pairs(grid(40, 6), frozenset({"family"}), NO_PINS)
    asked = Counter(pair.fact for pair in split.held_out["family"])
    assert len(asked) == 4
    assert set(asked.values()) == {6}
    assert not set(asked) & {pair.fact for pair in split.train["family"]}


def test_the_split_does_not_depend_on_the_order_of_the_families() -> None:
    other = [Pair("other", pair.phrasing, pair.fact, "q", "a") for pair in grid(5, 5)]
    one = split_pairs([*grid(10, 10), *other], NO_FAMILIES, NO_PINS)
    two = split_pairs([*other, *grid(10, 10)], NO_FAMILIES, NO_PINS)
    assert one.held_out["family"] == two.held_out["family"]
