"""Nonsense: texts of many kinds, none of them empty."""

import random
from collections import Counter

from tools.nano.corpus import load_split
from tools.nano.facts_geography import PLACES
from tools.nano.nonsense import invented_place, invented_word, nonsense, text_to_copy


def test_nonsense_is_never_empty_nor_a_question_of_the_corpus_and_hardly_ever_repeats() -> (
    None
):
    asked = {
        pair.question.lower() for pairs in load_split().train.values() for pair in pairs
    }
    generator = random.Random(5)
    found = [nonsense(generator) for _ in range(5000)]
    assert all(text.strip() for text in found)
    assert len(set(found)) > 4000
    assert sum(text.lower() in asked for text in found) < 25  # single signs and letters


def test_invented_places_begin_or_end_like_known_ones() -> None:
    generator = random.Random(7)
    found = [invented_place(generator) for _ in range(1000)]
    names = [place.name.lower() for place in PLACES]
    like_known = [
        any(place[:3] == name[:3] or place[-3:] == name[-3:] for name in names)
        for place in found
    ]
    assert 400 < sum(like_known) < 900
    assert len(set(found) - set(names)) > 900


def test_texts_to_copy_have_up_to_six_words() -> None:
    generator = random.Random(8)
    counts = Counter(len(text_to_copy(generator).split()) for _ in range(2000))
    assert counts.keys() == {1, 2, 3, 4, 6}
    assert 800 < counts[1] < 1200


def test_an_invented_word_is_hardly_ever_one_of_the_corpus(known_words: set[str]) -> None:
    generator = random.Random(9)
    assert sum(invented_word(generator) in known_words for _ in range(1000)) < 60
