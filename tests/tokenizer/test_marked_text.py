import pytest

from src.tokenizer.marked_text import Prefix, mark_spaces, words_are_independent


@pytest.mark.parametrize(
    ("prefix", "first", "expected"),
    [
        (Prefix.ALWAYS, True, ["", "▁a▁b", "▁▁a", "▁▁a"]),
        (Prefix.ALWAYS, False, ["", "▁a▁b", "▁▁a", "▁▁a"]),
        (Prefix.UNMARKED, True, ["", "▁a▁b", "▁a", "▁a"]),
        (Prefix.UNMARKED, False, ["", "▁a▁b", "▁a", "▁a"]),
        (Prefix.FIRST_UNMARKED, True, ["", "▁a▁b", "▁a", "▁a"]),
        (Prefix.FIRST_UNMARKED, False, ["", "a▁b", "▁a", "▁a"]),
        (Prefix.NEVER, True, ["", "a▁b", "▁a", "▁a"]),
    ],
)
def test_spaces_are_marked_and_a_mark_goes_before_where_the_rule_says(
    prefix: Prefix, first: bool, expected: list[str]
) -> None:
    texts = ["", "a b", " a", "▁a"]
    assert [mark_spaces(text, prefix, first=first) for text in texts] == expected


def test_words_are_independent_where_no_token_reaches_into_the_next() -> None:
    assert words_are_independent(["a", "▁", "▁▁", "▁▁ab", "ab"])
    assert not words_are_independent(["a", "a▁"])
    assert not words_are_independent(["▁a▁b"])
