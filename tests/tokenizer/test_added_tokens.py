from hypothesis import given
from hypothesis import strategies as st

from src.tokenizer.added_tokens import AddedToken, AddedTokenFinder


def found(finder: AddedTokenFinder, text: str) -> list[str | int]:
    return [
        segment.text if segment.token_id is None else segment.token_id
        for segment in finder.split(text)
    ]


def finder(*texts: str, special: tuple[str, ...] = ()) -> AddedTokenFinder:
    numbered = enumerate((*texts, *special))
    return AddedTokenFinder(AddedToken(text, n, special=text in special) for n, text in numbered)


def test_the_leftmost_token_is_found_and_of_several_there_the_longest() -> None:
    assert found(finder("ab", "abc", "bcd"), "xabcdab") == ["x", 1, "d", 0]
    assert found(finder("a", "aa"), "aaa") == [1, 0]
    assert found(finder("]", "^-", "[^"), "x[^-]") == ["x", 2, "-", 0]  # no letter is a pattern


def test_a_special_token_stays_text_and_hides_what_is_inside_of_it() -> None:
    assert found(finder("tool", special=("<tool>",)), "<tool>tool") == ["<tool>", 0]


def test_without_tokens_a_text_is_one_segment_and_an_empty_one_is_none() -> None:
    assert found(finder(), "text") == ["text"]
    assert found(finder("x"), "") == []


def test_segments_say_where_they_start() -> None:
    segments = list(finder("--").split("a--bc--"))
    assert [segment.start for segment in segments] == [0, 1, 3, 5]


@given(st.text("abc<> ", max_size=40))
def test_segments_join_to_the_text(text: str) -> None:
    tokens = [AddedToken("ab", 0, False), AddedToken("<", 1, False, False, True, True)]
    split = list(AddedTokenFinder(tokens).split(text))
    assert "".join(segment.text for segment in split) == text
    assert all(segment.text for segment in split)
    assert all(text[segment.start :].startswith(segment.text) for segment in split)
